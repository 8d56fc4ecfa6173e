//! placeholder
#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod __private;
pub mod codec;
pub mod memory;
#[cfg(feature = "sqlite")]
pub mod sqlite;
pub mod storage;
#[cfg(feature = "testing")]
pub mod testing;
mod vocabulary;

pub use jobqueue_derive::{QueueMessage, Validate};
pub use vocabulary::clock::{Clock, ManualClock, SystemClock};
pub use vocabulary::message::{DecodeError, EncodeError, MessageDefaults, QueueMessage};
pub use vocabulary::metadata::Metadata;
pub use vocabulary::name::{BlobName, ContainerName, NameError, QueueName};
pub use vocabulary::retry::Backoff;
pub use vocabulary::validate::{Path, Validate, Violation, Violations};
