//! The rules of Azure Storage that a strict adapter must apply itself, as pure functions.
//!
//! Knows limits and state transitions; knows no clock, no table, no map. Memory and SQLite both use it, so that
//! they cannot disagree; an adapter of your own may use it too.

pub mod lease;
pub mod limits;
mod xml;

pub use xml::{MAX_ESCAPED_BYTES, escaped_bytes, illegal_character};
