//! The words of the framework: names, messages, validation, settings, retries, errors.
//!
//! Pure: no I/O, no runtime, no storage. Everything else may use this module; it uses nothing but
//! itself, the standard library and small crates that compute.

pub mod clock;
pub mod codec;
pub(crate) mod digits;
pub mod error;
pub mod job;
pub mod key;
pub mod message;
pub mod metadata;
pub mod name;
pub mod outcome;
pub mod retry;
pub mod settings;
pub mod trace;
pub mod upgrade;
pub mod validate;
