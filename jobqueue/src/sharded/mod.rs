//! A storage made of several queues per queue, over one or several accounts, that the rest cannot tell from one.
//!
//! Azure serves at most 2,000 messages a second from a queue and 20,000 from an account ([scalability targets]). Where that is too little, a
//! queue is spread over shards: physical queues `<queue>-s<shard>v<generation>`.
//!
//! - **Home.** The physical queue with the logical name, in the first account, holds the metadata. It is always read, so that
//!   what was in it before the queue was sharded, and what foreign producers put there, is delivered.
//! - **Placement.** A message with a key goes to the shard its key hashes to, one without to the next in turn, past
//!   those that are throttled.
//! - **Map.** Which shards there are stands in a blob of the first account, `jobqueue-shards/<queue>`, written on
//!   condition that nobody else has changed it. Changing the number ([`Sharded::reshard`]) adds a generation: new messages go
//!   to the newest one, all are read. [`Sharded::retire`] deletes the shards of former generations when they are empty
//!   and when no process can have an old map any more: a map older than the refresh interval is never put by.
//! - **Dead-letter queues** are not spread unless they are named themselves.
//! - **Blobs** are in the first account.
//!
//! Names that end as those of shards do are refused. The order of messages is no more promised than by one queue; a sender
//! who needs it asks for it ([`SendOptions::in_order`](crate::SendOptions::in_order)).
//!
//! [scalability targets]: https://learn.microsoft.com/azure/storage/queues/scalability-targets

mod gather;
mod map;
mod maps;
mod place;
mod shard_health;
mod store;

pub(crate) use maps::CONTAINER as MAPS;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use place::Unpolled;

use self::store::ShardedQueues;
use crate::clock::{Clock, SystemClock, WITHOUT_END};
use crate::name::QueueName;
use crate::storage::{Storage, StoreError, StoreErrorKind};

/// The most shards of a queue.
pub const MAX_SHARDS: u32 = 256;

/// Collects accounts and numbers of shards. Begun by [`Sharded::builder`].
#[derive(Debug)]
#[must_use = "a sharded storage is made by `build`"]
pub struct Builder {
    pub(super) accounts: Vec<(String, Storage)>,
    pub(super) shards: BTreeMap<String, u32>,
    pub(super) default_shards: u32,
    pub(super) refresh: Duration,
    pub(super) clock: Arc<dyn Clock>,
}

impl Builder {
    /// Adds an account under a durable name, which stands in the map: keep it. Shards are dealt to the accounts in turn.
    pub fn account(mut self, name: impl Into<String>, storage: Storage) -> Self {
        self.accounts.push((name.into(), storage));
        self
    }

    /// How many shards a queue is spread over when it has no map yet; see [`Sharded::reshard`] for changing it. 1 is the home
    /// queue alone.
    pub fn shards(mut self, queue: impl Into<String>, shards: u32) -> Self {
        self.shards.insert(queue.into(), shards);
        self
    }

    /// The same for queues that are not named, dead-letter queues excepted. The default is 1.
    pub fn default_shards(mut self, shards: u32) -> Self {
        self.default_shards = shards;
        self
    }

    /// How old a map may be, 30 seconds unless said otherwise. All processes must say the same.
    pub fn refresh(mut self, every: Duration) -> Self {
        self.refresh = every.min(WITHOUT_END);
        self
    }

    /// Takes the time from `clock`.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Checks that everything fits together. Nothing is opened yet.
    ///
    /// # Errors
    /// `InvalidInput`: no account, two of one name, or a number of shards outside 1–256.
    pub fn build(self) -> Result<Sharded, StoreError> {
        let fail = |text: &str| {
            Err(StoreError::new(StoreErrorKind::InvalidInput, "build sharded storage", "").with_detail(text))
        };
        if self.accounts.is_empty() {
            return fail("give at least one account");
        }
        let mut names: Vec<_> = self.accounts.iter().map(|(name, _)| name).collect();
        names.sort();
        names.dedup();
        if names.len() < self.accounts.len() {
            return fail("two accounts have the same name");
        }
        if !self.shards.values().chain([&self.default_shards]).all(|n| (1..=MAX_SHARDS).contains(n)) {
            return fail("a queue has 1 to 256 shards");
        }
        Ok(Sharded { queues: Arc::new(ShardedQueues::new(self)) })
    }
}

/// A sharded storage, for those who look after it; [`storage`](Self::storage) is what the rest uses. Cheap to clone.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use jobqueue::sharded::Sharded;
/// use jobqueue::{QueueName, Storage};
///
/// let (one, two) = (Storage::memory(), Storage::memory()); // accounts of Azure, say
/// let sharded = Sharded::builder().account("one", one).account("two", two).shards("orders", 4).build()?;
/// let orders = QueueName::new("orders")?;
/// sharded.storage().queues().create_queue(&orders, &Default::default()).await?;
/// sharded.reshard(&orders, 8).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Sharded {
    queues: Arc<ShardedQueues>,
}

impl Sharded {
    /// Begins to put one together.
    pub fn builder() -> Builder {
        Builder {
            accounts: Vec::new(),
            shards: BTreeMap::new(),
            default_shards: 1,
            refresh: Duration::from_secs(30),
            clock: Arc::new(SystemClock),
        }
    }

    /// The storage.
    pub fn storage(&self) -> Storage {
        let blobs = Arc::clone(self.queues.home().blobs());
        let accounts = self.queues.accounts();
        let description = format!("sharded over {accounts} accounts, {}", self.queues.home().description());
        Storage::of_shards(Arc::clone(&self.queues) as Arc<_>, blobs, description)
    }

    /// Spreads a queue over another number of shards: new messages go there, what is in the former shards is still
    /// delivered. Other processes follow within the refresh interval.
    ///
    /// # Errors
    /// A number outside 1–256, or what the storages say; repeat it then.
    ///
    /// # Cancel safety
    /// If the future is dropped, the change is made or not made; shards that no map names may have been created, and are
    /// used by the next call.
    pub async fn reshard(&self, queue: &QueueName, shards: u32) -> Result<(), StoreError> {
        self.queues.reshard(queue, shards).await
    }

    /// Deletes former shards that are empty and that nobody can put into any more, and returns how many are left. Run it now
    /// and then after [`reshard`](Self::reshard), on a schedule for instance.
    ///
    /// A generation goes when it was superseded more than 4 refresh intervals ago (by the clocks of the processes, which
    /// must not differ by more than 2 of them) and all its shards were found without messages, visible or not.
    ///
    /// # Errors
    /// What the storages say; repeat it then.
    ///
    /// # Cancel safety
    /// If the future is dropped, shards may be deleted that the map still names. Nothing is put there any more; the next
    /// call goes on.
    pub async fn retire(&self, queue: &QueueName) -> Result<usize, StoreError> {
        self.queues.retire(queue).await
    }

    /// Whether this process has polled every shard of a queue within `within`: call it where the queue's worker runs.
    ///
    /// # Errors
    /// The shards that were not polled or not answered.
    ///
    /// # Cancel safety
    /// It only reads, but that it establishes the shard map if there is none yet, as every operation on the queue does.
    pub async fn health(&self, queue: &QueueName, within: Duration) -> Result<(), Unpolled> {
        self.queues.health(queue, within).await
    }
}

impl fmt::Debug for Sharded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sharded").field("queues", &self.queues).finish()
    }
}
