//! The storage port of `jobqueue`: the operations that the framework needs from a storage, in bytes and
//! durations.
//!
//! The port has two traits, [`QueueStore`] and [`BlobStore`], with the semantics of Azure Storage queues and
//! blobs. Further abilities of a storage are its optional [powers](QueuePowers). An adapter implements the
//! traits and returns [`Stores`], from which `jobqueue::Storage` is made; its options implement
//! [`OpenStores`]. Dropping the future of a function that only reads changes nothing.
//!
//! # What this crate knows
//! Names, texts of bytes, durations, leases, conditions and their errors; the rules that all adapters share
//! ([`rules`]); two storages without an adapter ([`memory`], [`sharded`]). Hidden items, such as a JSON
//! document in a blob that many processes change, serve the other crates of this repository and may change
//! with any release.
//!
//! # What it does not know
//! Messages, envelopes, queues of types, workers, and the adapters. Events and traces are made above this
//! crate, from the reports to a [`StorageObserver`].

#![forbid(unsafe_code)]

#[macro_use]
mod debug;
#[macro_use]
mod setters;

mod access;
mod advice;
mod backoff;
mod blob;
mod certainty;
pub mod clock;
mod error;
#[doc(hidden)]
pub mod fast;
mod instrumented;
mod intercept;
mod journal;
#[doc(hidden)]
pub mod json_blob;
mod listing;
#[doc(hidden)]
pub mod log;
pub mod memory;
mod message;
mod metadata;
mod name;
mod notifier;
mod observer;
mod operation;
mod powers;
mod put_list;
mod queue;
mod queues;
mod request;
pub mod rules;
pub mod runtime;
#[doc(hidden)]
pub mod secret;
pub mod sharded;
mod stores;
#[doc(hidden)]
pub mod sync;
#[doc(hidden)]
pub mod text;
mod throttle;

pub use access::Access;
pub use advice::Advice;
pub use backoff::Backoff;
pub use blob::{Blob, BlobListing, BlobPowers, BlobProperties, BlobStore, Condition, ETag, PutBlob};
pub use error::{StoreError, StoreErrorKind};
#[doc(hidden)]
pub use intercept::OfPart;
pub use intercept::{Call, Intercepted, Interceptor, Subject};
pub use journal::{JournalEntry, JournalPage, JournalQuery, JournalStore, MAX_JOURNAL_SEARCH};
pub use message::{
    DeadLetterCause, LeasedMessage, MessageId, MessageRef, PeekedMessage, PopReceipt, Received,
};
pub use metadata::{MAX_METADATA_BYTES, Metadata};
pub use name::{BlobName, ContainerName, DEAD_LETTER_SUFFIX, NameError, QueueName};
pub use notifier::{Notifier, Notifiers, Subscription};
pub use observer::{StorageObserver, StorageRequest};
pub use operation::Operation;
pub use powers::{
    Arrivals, Batches, BlobLeases, DeliveriesStopped, Detach, Guarantees, LeaseId, LeaseLinks, LeaseRevoked,
    LogPage, LoggedMessage, LoggedState, MessageIndex, MessageLog, MessagePage, MessageState, MetadataStore,
    NativeDeadLetters, OrderedGroups, Permissions, StateCounter, StateCounts, TransactionPlace, Upkeep,
    WarmUp,
};
pub use put_list::{PUT_LIST_PERIOD, put_each};
pub use queue::{Created, QueuePowers, QueueProperties, QueueStore};
pub use queues::Queues;
pub use request::{
    DeadLetterMessage, ExpiredReceipt, GetMessages, PutMessage, PutOutcome, SweepLeftovers, SweptLeftovers,
    UpdateMessage, Updated,
};
pub use rules::limits::{MAX_MESSAGES, MAX_TEXT_BYTES, MAX_VISIBILITY};
#[doc(hidden)]
pub use sharded::LONGEST_PUT;
pub use stores::{OpenStores, Stores};
#[doc(hidden)]
pub use throttle::Throttle;

#[doc(hidden)]
pub use listing::{
    BlobPages, Listed, delete_if_present, delete_if_same, get_if_present, has_any, list_all, put_creating,
    time_by_listing,
};

#[doc(hidden)]
pub use certainty::{Certainty, Tries};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_is_object_safe_and_shareable() {
        fn shareable<T: Send + Sync + ?Sized>() {}
        shareable::<dyn QueueStore>();
        shareable::<dyn BlobStore>();
        shareable::<Stores>();
        shareable::<StoreError>();
    }
}
