//! placeholder
#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod __private;
#[cfg(feature = "azure")]
pub mod azure;
pub mod codec;
pub mod storage;
mod vocabulary;

pub use jobqueue_derive::{QueueMessage, Validate};
pub use vocabulary::clock::{Clock, ManualClock, SystemClock};
pub use vocabulary::message::{DecodeError, EncodeError, MessageDefaults, QueueMessage};
pub use vocabulary::metadata::Metadata;
pub use vocabulary::name::{BlobName, ContainerName, NameError, QueueName};
pub use vocabulary::retry::Backoff;
pub use vocabulary::validate::{Path, Validate, Violation, Violations};
