//! The powers of a storage: everything that it can do beyond the methods that every adapter writes.
//!
//! A power is a trait. A store hands over those that it has in [`QueuePowers`](super::QueuePowers) or
//! [`BlobPowers`](super::BlobPowers) when a `Storage` is built around it; where a power is missing, the framework does
//! without it, as the power's documentation says. To add one: write the trait, add its field to one of the two, and follow
//! the compiler to [`Intercepted`](super::Intercepted) and to the sharded storage; each of its requests belongs to an [`Operation`](super::Operation). Then give
//! [`Queues`](super::Queues) a method with the behaviour without it, and `jobqueue-conformance` its promises.

mod blobs;
mod index;
mod queues;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;

pub use self::blobs::{BlobLeases, LeaseId};
pub use self::index::{MessageIndex, MessagePage, MessageState};
pub use self::queues::{
    Arrivals, Batches, DeliveriesStopped, LeaseLinks, LeaseRevoked, MetadataStore, NativeDeadLetters,
    OrderedGroups, StateCounter, StateCounts, Upkeep, WarmUp,
};
use super::{Access, StoreError};

/// The database of a storage, on which a transaction of the caller's own can include its changes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransactionPlace {
    /// A SQLite file.
    File(Arc<Path>),
    /// A schema of a PostgreSQL database.
    #[non_exhaustive]
    Schema {
        /// Its name.
        name: Arc<str>,
        /// The hosts, the database and the schema, without secrets. Where one of them differs, it is taken for another place.
        storage: Arc<str>,
    },
}

impl TransactionPlace {
    /// Returns the place that is the schema `name`; `storage` names the hosts, the database and the schema, without secrets.
    pub fn schema(name: impl Into<Arc<str>>, storage: impl Into<Arc<str>>) -> Self {
        Self::Schema { name: name.into(), storage: storage.into() }
    }
}

/// Promises of a queue store beyond the contract. By default it makes none of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Guarantees {
    /// True if update and delete refuse an expired receipt even if no other worker has received the message since.
    /// Otherwise the lease refuses it by its own clock.
    pub checks_expiry: bool,
    /// True if operations that are requested at about the same time share one commit. Then
    /// [`Batches::delete_all`] costs less than as many calls of [`QueueStore::delete`](super::QueueStore::delete), and concurrent calls of
    /// [`Batches::put_all`] cost less than successive ones: a worker deletes messages of jobs that end at about the same
    /// time together, and `Queue::send_all` sends more of them concurrently.
    pub commits_together: bool,
    /// True if [`Batches::put_all`] stores the messages of a list that it does not refuse together or not at all, in their
    /// order. Then a list with messages of [groups](OrderedGroups) is put as one; elsewhere those of a group are put one after
    /// the other.
    pub puts_lists_whole: bool,
    /// True if the store counts each delivery, however its lease ends. Then the first delivery of a message is known by its number;
    /// elsewhere a worker reads the records of earlier ones all the same.
    pub counts_deliveries: bool,
}

/// A storage with permissions.
///
/// # Contract
/// A check changes nothing, and refuses exactly if an operation that belongs to the [`Access`] would be refused. Workers call
/// it at their start. Without this power all access counts as granted, and a missing permission shows at the first
/// operation that needs it.
#[async_trait]
pub trait Permissions<Name: ?Sized>: fmt::Debug + Send + Sync + 'static {
    /// Checks whether the caller has the permissions for `access` to `name`: a queue, or the blobs of a container. Neither
    /// needs to exist.
    ///
    /// # Errors
    /// `Unauthorized`, naming the missing permissions; other kinds when the storage cannot be asked.
    async fn check_access(&self, name: &Name, access: Access) -> Result<(), StoreError>;
}

/// A storage whose connections belong to the runtime that opened them.
///
/// # Contract
/// The new handle reaches the same data and shares no connections with this one: if the runtime of one is blocked, the other
/// still works. The lease renewer uses it, so that a handler that blocks the main runtime cannot delay renewals. A storage
/// that serves any runtime, such as one in memory or with threads of its own, does not need this power: the renewer then uses
/// the same handle.
pub trait Detach<Store: ?Sized>: fmt::Debug + Send + Sync + 'static {
    /// Returns a handle for use on another runtime.
    fn detached(&self) -> Arc<Store>;
}
