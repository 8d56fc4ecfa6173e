//! Azure Storage: queues, blobs and blob leases of a storage account, or of the emulator Azurite.
//!
//! [`Options`] sets the account and its credential, and opens its storage. Microsoft's crates
//! `azure_storage_queue` and `azure_storage_blob` make the requests. This module adds signatures by account
//! key, limits on answers, errors by the service's codes, and a log without receipts and signatures. None of
//! the SDK's types are part of this module's interface, except the trait `TokenCredential`.
//!
//! The service has these limits, which callers of the port must allow for:
//! - It accepts an expired receipt until another worker gets the message.
//! - It sends no notifications: queues are polled, and a message that is put over this opened storage wakes
//!   its workers.
//! - Durations are whole seconds; they are rounded up.
//! - Put, get, update and delete of messages are sent once. Calls that are harmless to repeat are sent up to
//!   three times while the service is unavailable. A call ends after 30 seconds. A call that carries a blob
//!   or a page of a list of blobs has an additional second for each 128 KiB, but ends after 30 seconds
//!   without an answer or a part of it.
//!
//! # What this crate knows
//! The port of `jobqueue-storage`, and Azure Storage. It does not know the messages, typed queues and workers
//! of `jobqueue`. The crate `jobqueue` re-exports it as `jobqueue::azure` (feature `azure`).

#![forbid(unsafe_code)]

mod account;
mod attempts;
mod blob;
mod call;
mod connection;
mod connection_string;
mod convert;
mod error;
mod options;
mod pipeline;
mod probe;
mod queue;
#[cfg(test)]
mod service_tests;
mod xml;

/// The `azure_core` version whose credentials [`Options`] accepts.
pub use azure_core;
pub use options::Options;
