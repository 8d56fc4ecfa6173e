//! A storage that spreads each queue over several physical queues, in one or several accounts. Callers use it
//! like any other storage.
//!
//! Azure serves at most 2,000 messages a second from one queue and 20,000 from one account ([scalability
//! targets]). For more, a queue is spread over shards: physical queues `<queue>-s<shard>v<generation>`.
//!
//! - **Home.** The physical queue with the logical name, in the first account, holds the metadata. Workers
//!   always read it, so they deliver messages sent before the queue was sharded, and messages of external
//!   producers.
//! - **Placement.** A message with a key goes to the shard to which its key hashes. A message without a key
//!   goes to the next shard in turn; shards that are throttled or did not answer are skipped for a while.
//! - **Map.** A blob of the first account, `jobqueue-shards/<queue>`, lists the shards. Writes are
//!   conditional. [`Sharded::reshard`] changes the number of shards by adding a generation, to which new
//!   messages go; messages of all generations are delivered. [`Sharded::retire`] deletes the shards of former
//!   generations when they are empty and no process can still use an old map, since no process puts by a map
//!   older than the refresh interval.
//! - **Deletion.** The home queue is deleted last, so that a deletion that was interrupted can be repeated.
//!   Until then a put or a reader may create shards again: programs that use the queue must end before.
//! - **Dead-letter queues** are not spread unless they are configured by name.
//! - **Blobs** are in the first account.
//!
//! Queue names that end like the names of shards are refused. The order of messages is not promised, as for a
//! single queue; a sender can ask for it (`SendOptions::in_order`).
//!
//! [scalability targets]: https://learn.microsoft.com/azure/storage/queues/scalability-targets

mod gather;
mod map;
mod maps;
mod place;
mod powers;
mod put;
mod shard_health;
mod store;
mod turns;

pub use maps::CONTAINER as MAPS;
#[doc(hidden)]
pub use maps::LONGEST_PUT;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use self::maps::Maps;
use self::store::ShardedQueues;
use crate::clock::WITHOUT_END;
use crate::name::QueueName;
use crate::{StoreError, StoreErrorKind, Stores};

/// The maximum number of shards of a queue.
pub const MAX_SHARDS: u32 = 256;

/// Collects accounts and numbers of shards. [`Sharded::builder`] creates the builder.
#[derive(Debug)]
#[must_use = "a sharded storage is made by `build`"]
pub struct ShardedBuilder {
    pub(super) accounts: Vec<(String, Stores)>,
    pub(super) shards: BTreeMap<String, u32>,
    pub(super) default_shards: u32,
    pub(super) refresh: Duration,
}

impl ShardedBuilder {
    /// Adds an account under a durable name. The first account is the home account, whose runtime the storage
    /// uses. The map stores the name, so do not change it later. Shards are assigned to the accounts in turn.
    pub fn account(mut self, name: impl Into<String>, storage: impl Into<Stores>) -> Self {
        self.accounts.push((name.into(), storage.into()));
        self
    }

    /// Sets the number of shards for a queue that has no map yet; [`Sharded::reshard`] changes it later. A
    /// queue with 1 shard has only the home queue.
    pub fn shards(mut self, queue: impl Into<String>, shards: u32) -> Self {
        self.shards.insert(queue.into(), shards);
        self
    }

    setters! {
        /// Sets the number of shards for queues that are not configured by name, except dead-letter queues.
        /// The default is 1.
        default_shards(shards: u32) => default_shards;

        /// Sets the maximum age of a map, by default 30 seconds. All processes must use the same value.
        refresh(every: Duration) => refresh = every.min(WITHOUT_END);
    }

    /// Checks the configuration, without requests.
    ///
    /// # Errors
    /// [`Configuration`](StoreErrorKind::Configuration): no account was given, two accounts have the same
    /// name, only some accounts themselves keep dead-letter queues (Service Bus and another storage), or a
    /// number of shards is outside 1–256.
    pub fn build(self) -> Result<Sharded, StoreError> {
        let fail = |text: &str| {
            Err(StoreError::new(StoreErrorKind::Configuration, "build sharded storage", "").with_detail(text))
        };
        if self.accounts.is_empty() {
            return fail("configure at least one account");
        }
        let mut names: Vec<_> = self.accounts.iter().map(|(name, _)| name).collect();
        names.sort();
        names.dedup();
        if names.len() < self.accounts.len() {
            return fail("two accounts have the same name");
        }
        let of_their_own = |(_, storage): &(String, Stores)| storage.queues.powers().dead_letters.is_some();
        let with_letters = self.accounts.iter().filter(|account| of_their_own(account)).count();
        if ![0, self.accounts.len()].contains(&with_letters) {
            return fail("some accounts have dead-letter queues of their own, and some have not");
        }
        if !self.shards.values().chain([&self.default_shards]).all(|n| (1..=MAX_SHARDS).contains(n)) {
            return fail("a queue has 1 to 256 shards");
        }
        Ok(Sharded { queues: Arc::new(ShardedQueues::over(Maps::new(self))) })
    }
}

/// A sharded storage with its administration. [`stores`](Self::stores) returns the storage for queues and
/// workers. Cheap to clone.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use jobqueue::sharded::Sharded;
/// use jobqueue::{QueueName, Storage};
///
/// let (one, two) = (Storage::memory(), Storage::memory()); // accounts of Azure, say
/// let sharded = Sharded::builder().account("one", one).account("two", two).shards("orders", 4).build()?;
/// let orders = QueueName::new("orders")?;
/// let storage = Storage::from(sharded.stores());
/// storage.queues().create_queue(&orders, &Default::default()).await?;
/// sharded.reshard(&orders, 8).await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Sharded {
    queues: Arc<ShardedQueues>,
}

impl Sharded {
    /// Returns a builder without accounts.
    pub fn builder() -> ShardedBuilder {
        ShardedBuilder {
            accounts: Vec::new(),
            shards: BTreeMap::new(),
            default_shards: 1,
            refresh: Duration::from_secs(30),
        }
    }

    /// Returns the stores, from which `Storage::from` creates the handle for queues and workers.
    pub fn stores(&self) -> Stores {
        let home = self.queues.home();
        let accounts = self.queues.maps.options.accounts.len();
        let description = format!("sharded over {accounts} accounts, {}", home.description);
        Stores::new(Arc::clone(&self.queues) as Arc<_>, Arc::clone(&home.blobs), description)
            .with_runtime(home.runtime.clone())
    }

    /// Spreads a queue over another number of shards. New messages go to the new shards; messages in the
    /// former shards are still delivered. Other processes follow within the refresh interval.
    ///
    /// # Errors
    /// `InvalidInput` for a number outside 1–256; otherwise the errors of the accounts' storages. After an
    /// error, repeat the call.
    ///
    /// # Cancel safety
    /// If the future is dropped, the change is made or not made. Shards that no map names may have been
    /// created; the next call uses them.
    pub async fn reshard(&self, queue: &QueueName, shards: u32) -> Result<(), StoreError> {
        self.queues.maps.reshard(queue, shards).await
    }

    /// Deletes former shards that are empty and that no process can put into; returns the number of remaining
    /// former shards. Call it after [`reshard`](Self::reshard) until it returns 0, for instance on a
    /// schedule.
    ///
    /// A generation is deleted if it was superseded more than 4 refresh intervals and a minute ago, so that
    /// every put by the map before has ended, and if no shard has messages, visible or not. The clocks of the
    /// processes measure the age, and must not differ by more than 2 refresh intervals.
    ///
    /// # Errors
    /// The errors of the accounts' storages. After an error, repeat the call.
    ///
    /// # Cancel safety
    /// If the future is dropped, shards that the map still names may have been deleted. No process puts into
    /// them any more, and the next call continues.
    pub async fn retire(&self, queue: &QueueName) -> Result<usize, StoreError> {
        self.queues.maps.retire(queue).await
    }
}
