//! The storage port: the operations that the framework needs from a storage, in bytes and durations.
//!
//! The port has two traits, [`QueueStore`] and [`BlobStore`], with the semantics of Azure Storage queues and blobs, and
//! the types of their arguments and answers. [`Storage`] is the handle that the rest of the framework holds. Adapters
//! implement the traits and know nothing above them: no message types, no envelopes, no workers.

mod access;
mod advice;
mod blob;
mod builder;
mod certainty;
mod error;
mod handle;
mod instrumented;
mod listing;
mod message;
mod notifier;
mod operation;
mod queue;
mod request;
pub mod rules;
mod throttle;

pub use crate::name::{BlobName, ContainerName, NameError, QueueName};
pub use access::Access;
pub use advice::Advice;
pub use blob::{
    Blob, BlobListing, BlobProperties, BlobStore, Condition, ETag, LeaseDuration, LeaseId, LeaseState,
    PutBlob,
};
pub use builder::StorageBuilder;
pub use error::{StoreError, StoreErrorKind};
pub use handle::Storage;
pub use instrumented::traced;
pub use message::{
    DeadLetterCause, LeasedMessage, MessageId, MessageRef, PeekedMessage, PopReceipt, Received,
};
pub use notifier::{Notifier, Subscription};
pub use operation::Operation;
pub use queue::{Created, LeaseEnded, Preparation, QueueProperties, QueueStore, StateCounts};
pub use request::{
    DeadLetterMessage, ExpiredReceipt, GetMessages, PutMessage, PutOutcome, SweepLeftovers, SweptLeftovers,
    UpdateMessage, Updated,
};

pub(crate) use listing::{Listed, list_all, list_with_time, put_creating};

pub(crate) use certainty::{Certainty, Tries};

/// The greatest number of bytes in the text of a message, as sent: 64 KiB ([Put Message]).
///
/// [Put Message]: https://learn.microsoft.com/rest/api/storageservices/put-message
pub const MAX_TEXT_BYTES: usize = 65_536;

/// The greatest number of messages that one call to get or peek returns ([Get Messages]).
///
/// [Get Messages]: https://learn.microsoft.com/rest/api/storageservices/get-messages
pub const MAX_MESSAGES: u32 = 32;

/// The longest visibility timeout: 7 days ([Get Messages]).
///
/// [Get Messages]: https://learn.microsoft.com/rest/api/storageservices/get-messages
pub const MAX_VISIBILITY: std::time::Duration = std::time::Duration::from_secs(604_800);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_object_safe_and_shareable() {
        fn shareable<T: Send + Sync + ?Sized>() {}
        shareable::<dyn QueueStore>();
        shareable::<dyn BlobStore>();
        shareable::<Storage>();
        shareable::<StoreError>();
    }
}
