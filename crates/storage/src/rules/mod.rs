//! The rules of Azure Storage that a strict adapter must apply itself, as pure functions.
//!
//! The rules know limits and state transitions, but no clock and no storage. The adapters for memory, SQLite
//! and PostgreSQL share them, so that they behave alike; other adapters may use them too.

pub mod lease;
pub mod limits;
pub mod listing;
pub mod metadata_text;
pub mod micros;
mod xml;

pub use xml::{MAX_ESCAPED_BYTES, illegal_character};
