//! Azure Storage: queues, blobs and blob leases of a storage account, or of the emulator Azurite.
//!
//! [`Options`] says where the account is and by what right it is used, and opens it as a
//! [`Storage`](crate::storage::Storage). The requests are those of Microsoft's crates `azure_storage_queue` and
//! `azure_storage_blob`; what they lack stands here: signatures by account key, limits on answers, errors by the
//! service's codes, and a log without receipts and signatures. None of the SDK's types are part of this module's
//! interface, except the trait `TokenCredential`.
//!
//! What the service does not do, and callers of the port must allow for:
//! - It accepts an expired receipt until somebody else gets the message.
//! - It rings no bell: queues are polled.
//! - Durations are whole seconds; they are rounded up.
//! - Put, get, update and delete of messages are sent once. Calls that may be repeated without harm are sent up to
//!   three times while the service is unavailable. No call takes longer than 30 seconds.

mod account;
mod blob;
mod call;
mod connection;
mod connection_string;
mod error;
mod identity;
mod options;
mod pipeline;
mod probe;
mod queue;
mod secret;
mod time;
mod xml;

pub use options::Options;
