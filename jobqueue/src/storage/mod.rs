//! The handle of a storage, and the port to write an adapter: the operations that the framework needs from a
//! storage, in bytes and durations.
//!
//! The crate `jobqueue-storage` has the port; write an adapter against it or against this module. The port
//! has two traits, [`QueueStore`] and [`BlobStore`], with the semantics of Azure Storage queues and blobs,
//! and the types of their arguments and answers. An adapter returns [`Stores`]. [`Storage`] is the handle
//! that the rest of the framework holds.

mod expiry;
mod handle;

pub(crate) use expiry::{EXPIRES, NEVER, needed_at_most_until, needed_until};
pub use handle::Storage;
#[doc(inline)]
pub use jobqueue_storage::{
    Access, Advice, Arrivals, Batches, Blob, BlobLeases, BlobListing, BlobName, BlobPowers, BlobProperties,
    BlobStore, Call, Condition, ContainerName, Created, DeadLetterCause, DeadLetterMessage,
    DeliveriesStopped, Detach, ETag, ExpiredReceipt, GetMessages, Guarantees, Intercepted, Interceptor,
    JournalEntry, JournalPage, JournalQuery, JournalStore, LeaseId, LeaseLinks, LeaseRevoked, LeasedMessage,
    LogPage, LoggedMessage, LoggedState, MAX_JOURNAL_SEARCH, MAX_MESSAGES, MAX_METADATA_BYTES,
    MAX_TEXT_BYTES, MAX_VISIBILITY, MessageId, MessageIndex, MessageLog, MessagePage, MessageRef,
    MessageState, Metadata, MetadataStore, NameError, NativeDeadLetters, Notifier, OpenStores, Operation,
    OrderedGroups, PUT_LIST_PERIOD, PeekedMessage, Permissions, PopReceipt, PutBlob, PutMessage, PutOutcome,
    QueueName, QueuePowers, QueueProperties, QueueStore, Queues, Received, StateCounter, StateCounts,
    StorageObserver, StorageRequest, StoreError, StoreErrorKind, Stores, Subject, Subscription,
    SweepLeftovers, SweptLeftovers, TransactionPlace, UpdateMessage, Updated, Upkeep, WarmUp, put_each,
    rules,
};
pub(crate) use jobqueue_storage::{
    BlobPages, Certainty, LONGEST_PUT, Listed, Throttle, Tries, delete_if_present, delete_if_same,
    get_if_present, list_all, put_creating, time_by_listing,
};
