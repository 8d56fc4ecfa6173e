//! The powers of a storage: its abilities beyond the methods that every adapter implements.
//!
//! A power is a trait. A store returns its powers in [`QueuePowers`](super::QueuePowers) or
//! [`BlobPowers`](super::BlobPowers) when a `Storage` is built around it. If a power is missing, the
//! framework does without it, as the power's documentation says.
//!
//! To add a power: write the trait, add its field to one of the two structs, and follow the compiler to
//! [`Intercepted`](super::Intercepted) and to the sharded storage; each of its requests belongs to an
//! [`Operation`](super::Operation). Then give [`Queues`](super::Queues) a method with the fallback, and
//! `jobqueue-conformance` the promises.

mod blobs;
mod index;
mod message_log;
mod queues;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;

pub use self::blobs::{BlobLeases, LeaseId};
pub use self::index::{MessageIndex, MessagePage, MessageState};
pub use self::message_log::{LogPage, LoggedMessage, LoggedState, MessageLog};
pub use self::queues::{
    Arrivals, Batches, DeliveriesStopped, LeaseLinks, LeaseRevoked, MetadataStore, NativeDeadLetters,
    OrderedGroups, StateCounter, StateCounts, Upkeep, WarmUp,
};
use super::{Access, StoreError};

/// The database of a storage. A transaction of the application on it can include the storage's changes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransactionPlace {
    /// A SQLite file.
    File(Arc<Path>),
    /// A schema of a PostgreSQL database.
    #[non_exhaustive]
    Schema {
        /// The name of the schema.
        name: Arc<str>,
        /// The hosts, the database and the schema, without secrets. Places with different texts count as
        /// different.
        storage: Arc<str>,
    },
}

impl TransactionPlace {
    /// Returns the place of the schema `name`; `storage` names the hosts, the database and the schema,
    /// without secrets.
    pub fn schema(name: impl Into<Arc<str>>, storage: impl Into<Arc<str>>) -> Self {
        Self::Schema { name: name.into(), storage: storage.into() }
    }
}

/// Promises of a queue store beyond the contract. By default it makes none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Guarantees {
    /// True if update and delete refuse an expired receipt even if no other worker has received the message
    /// since. Otherwise the framework's lease refuses it by the process's clock.
    pub checks_expiry: bool,
    /// True if operations requested at about the same time share one commit. Then [`Batches::delete_all`]
    /// costs less than single calls of [`QueueStore::delete`](super::QueueStore::delete), and concurrent
    /// calls of [`Batches::put_all`] cost less than successive calls. A worker therefore deletes the messages
    /// of jobs that end at about the same time together, and `Queue::send_all` sends more of them
    /// concurrently.
    pub commits_together: bool,
    /// True if [`Batches::put_all`] stores the messages of a list that it does not refuse together or not at
    /// all, in their order. Then a list with messages of [groups](OrderedGroups) is put in one call;
    /// otherwise the messages of a group are put one after the other.
    pub puts_lists_whole: bool,
    /// True if the store counts each delivery, however its lease ends. A worker then recognises the first
    /// delivery of a message by its number; otherwise it reads the records of earlier deliveries in any case.
    /// Of two deliveries with one number the later one then has the later
    /// [`next_visible`](super::LeasedMessage::next_visible).
    pub counts_deliveries: bool,
}

/// A storage with permissions.
///
/// # Contract
/// A check changes nothing, and fails exactly if an operation that belongs to the [`Access`] would be
/// refused. Workers check when they start. Without this power all access counts as granted, and the first
/// operation that needs a missing permission fails.
#[async_trait]
pub trait Permissions<Name: ?Sized>: fmt::Debug + Send + Sync + 'static {
    /// Checks whether the caller has the permissions for `access` to `name`: a queue, or the blobs of a
    /// container. Neither needs to exist.
    ///
    /// # Errors
    /// `Unauthorized`, naming the missing permissions; other kinds if the storage cannot be asked.
    async fn check_access(&self, name: &Name, access: Access) -> Result<(), StoreError>;
}

/// A storage whose connections belong to the runtime that opened them.
///
/// # Contract
/// The new handle reaches the same data and shares no connections with this handle: if the runtime of one
/// handle is blocked, the other still works. The lease renewer uses a detached handle, so that a handler that
/// blocks the main runtime cannot delay renewals. A storage that works on any runtime, such as a storage in
/// memory or with its own threads, does not need this power: the renewer then uses the same handle.
pub trait Detach<Store: ?Sized>: fmt::Debug + Send + Sync + 'static {
    /// Returns a handle for use on another runtime.
    fn detached(&self) -> Arc<Store>;
}
