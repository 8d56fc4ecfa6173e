//! Reads, creates and changes shard maps.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use tokio::time::{Instant, timeout};

use super::map::{Map, Shard, seconds};
use super::shard_health::ShardHealth;
use super::store::CONCURRENT_REQUESTS;
use super::{MAX_SHARDS, ShardedBuilder};
use crate::json_blob::{Edit, JsonBlob, Known};
use crate::name::{BlobName, ContainerName, DEAD_LETTER_SUFFIX, QueueName};
use crate::sync::lock;
use crate::{
    Intercepted, MAX_MESSAGES, Metadata, OfPart, Queues, StoreError, StoreErrorKind as K, Stores,
    delete_if_present,
};

/// The container of the shard maps.
pub const CONTAINER: &str = "jobqueue-shards";
const OPERATION: &str = "read shard map";
/// The maximum size of a map, in bytes.
const MAX_MAP_BYTES: u64 = 1 << 20;

/// The time that readers wait for a newer map if they know an older one.
const MAP_READ_TIMEOUT: Duration = Duration::from_secs(2);
/// The time that readers use an older map after a failed read, before they try again.
const STALE_MAP_TIME: Duration = Duration::from_secs(10);

/// The maximum time of a put that began just before its map became too old. In the first half the put tries
/// shards, each of which may take long to refuse it. The second half is enough for the last shard on Azure. A
/// put that takes longer, as on Service Bus while links are attached, is given up.
pub const LONGEST_PUT: Duration = Duration::from_secs(60);

/// The accounts, and the shard maps that this process has read.
#[derive(Debug)]
pub(super) struct Maps {
    pub(super) options: ShardedBuilder,
    pub(super) health: ShardHealth,
    /// The maps last read. The handle that renews leases shares them, since it may be unable to read maps
    /// itself.
    known: Arc<Mutex<HashMap<QueueName, KnownMap>>>,
    /// Locked by the caller that reads a map that is too old.
    reading: Mutex<HashMap<QueueName, Arc<tokio::sync::Mutex<()>>>>,
}

/// A map as it was last read.
#[derive(Debug, Clone)]
struct KnownMap {
    map: Map,
    read: Instant,
    /// The time of the last failed attempt to read the map again.
    failed: Option<Instant>,
}

impl Maps {
    pub(super) fn new(mut options: ShardedBuilder) -> Self {
        // The errors of an account say nothing about the load of the other shards.
        let of_shard = Arc::new(OfPart);
        for (_, storage) in &mut options.accounts {
            let queues = Intercepted::queues(Arc::clone(storage.queues.store()), &of_shard);
            storage.queues = Arc::new(Queues::new(queues));
        }
        Self { options, health: ShardHealth::default(), known: Arc::default(), reading: Mutex::default() }
    }

    /// Returns the same maps over other connections.
    pub(super) fn detached(&self) -> Self {
        let options = &self.options;
        let accounts = options.accounts.iter().map(|(name, storage)| (name.clone(), storage.detached()));
        let options = ShardedBuilder {
            accounts: accounts.collect(),
            shards: options.shards.clone(),
            default_shards: options.default_shards,
            refresh: options.refresh,
        };
        let known = Arc::clone(&self.known);
        Self { options, health: ShardHealth::default(), known, reading: Mutex::default() }
    }

    pub(super) fn home_name(&self) -> &str {
        &self.options.accounts[0].0
    }

    pub(super) fn home(&self) -> &Stores {
        &self.options.accounts[0].1
    }

    /// Returns whether the accounts themselves keep dead-letter queues. Then a shard's dead letters are in
    /// its account.
    pub(super) fn have_dead_letter_queues(&self) -> bool {
        self.options.accounts.iter().all(|(_, storage)| storage.queues.powers().dead_letters.is_some())
    }

    /// Returns whether all accounts announce the messages of all processes.
    pub(super) fn announces_all(&self) -> bool {
        self.options.accounts.iter().all(|(_, storage)| storage.queues.announces_all())
    }

    /// Returns the queue whose map applies to `queue`: for a dead-letter queue that the accounts keep
    /// themselves, its source queue.
    pub(super) fn queue_of<'q>(&self, queue: &'q QueueName) -> Cow<'q, QueueName> {
        let home = queue.as_str().strip_suffix(DEAD_LETTER_SUFFIX).filter(|_| self.have_dead_letter_queues());
        match home.and_then(|home| QueueName::new(home).ok()) {
            Some(home) => Cow::Owned(home),
            None => Cow::Borrowed(queue),
        }
    }

    /// Returns the physical queue of a shard and the account that holds it.
    pub(super) fn locate(
        &self,
        queue: &QueueName,
        shard: &Shard,
    ) -> Result<(&Stores, QueueName), StoreError> {
        let account = self.options.accounts.iter().find(|(name, _)| *name == shard.account);
        let (_, storage) = account.ok_or_else(|| {
            let detail =
                format!("the shard map contains the account `{}`, which is not configured", shard.account);
            StoreError::new(K::InvalidInput, "find shard", queue).with_detail(detail)
        })?;
        let physical = match self.queue_of(queue) {
            Cow::Borrowed(queue) => shard.physical(queue),
            Cow::Owned(home) => shard.physical(&home).and_then(|shard| shard.dead_letter()),
        };
        let physical =
            physical.map_err(|e| StoreError::new(K::InvalidInput, "name shard", queue).with_source(e))?;
        Ok((storage, physical))
    }

    pub(super) fn forget(&self, queue: &QueueName) {
        lock(&self.known).remove(queue);
    }

    fn remember(&self, queue: &QueueName, map: &Map, read: Instant) {
        let known = KnownMap { map: map.clone(), read, failed: None };
        lock(&self.known).insert(queue.clone(), known);
    }

    /// Returns the map, read at most one refresh interval ago. Fails if the map cannot be read: a put by an
    /// older map could reach a shard that is being retired.
    pub(super) async fn map(&self, queue: &QueueName) -> Result<Map, StoreError> {
        let queue = &*self.queue_of(queue);
        match self.young(queue) {
            Some(map) => Ok(map),
            None => self.refreshed(queue).await,
        }
    }

    /// Returns the map last read, unless that is too old.
    fn young(&self, queue: &QueueName) -> Option<Map> {
        let known = lock(&self.known);
        let known = known.get(queue).filter(|known| known.read.elapsed() < self.options.refresh)?;
        Some(known.map.clone())
    }

    /// Reads a map that is too old. If another caller reads it already, waits a moment for that caller.
    async fn refreshed(&self, queue: &QueueName) -> Result<Map, StoreError> {
        let reading = Arc::clone(lock(&self.reading).entry(queue.clone()).or_default());
        let _reader = match reading.try_lock() {
            Ok(reader) => Some(reader),
            Err(_) => {
                // Half of the time is left for a read of its own. After a failure all that have waited read
                // at once, not one after the other.
                let _ = timeout(MAP_READ_TIMEOUT / 2, reading.lock()).await;
                None
            }
        };
        match self.young(queue) {
            Some(map) => Ok(map),
            None => self.fresh(queue).await,
        }
    }

    /// Returns the newest map available soon, for callers that only read. At worst they miss shards that were
    /// added since.
    pub(super) async fn newest_known(&self, queue: &QueueName) -> Result<Map, StoreError> {
        let queue = &*self.queue_of(queue);
        let Some(known) = lock(&self.known).get(queue).cloned() else { return self.refreshed(queue).await };
        let failed_lately = known.failed.is_some_and(|failed| failed.elapsed() < STALE_MAP_TIME);
        if failed_lately || known.read.elapsed() < self.options.refresh {
            return Ok(known.map);
        }
        match timeout(MAP_READ_TIMEOUT, self.refreshed(queue)).await {
            Ok(Ok(map)) => return Ok(map),
            Ok(Err(error)) => {
                crate::log::warn!(%queue, %error, "reading the shard map failed; the last known map is used")
            }
            Err(_) => {
                crate::log::warn!(%queue, "reading the shard map got no answer; the last known map is used")
            }
        }
        if let Some(known) = lock(&self.known).get_mut(queue) {
            known.failed = Some(Instant::now());
        }
        Ok(known.map)
    }

    /// Returns the shards as last read, for callers that cannot wait.
    pub(super) fn known_shards(&self, queue: &QueueName) -> Vec<Shard> {
        let queue = &*self.queue_of(queue);
        let known = lock(&self.known);
        let map = known.get(queue).map(|known| known.map.clone()).unwrap_or_default();
        map.shards(self.home_name())
    }

    /// Reads the current map. Creates it if the queue should be spread and has no map.
    pub(super) async fn fresh(&self, queue: &QueueName) -> Result<Map, StoreError> {
        let queue = &*self.queue_of(queue);
        let read = Instant::now();
        let mut map = self.read(queue).await?;
        let wanted = self.wanted(queue);
        if map.generations.is_empty() && wanted > 1 {
            match self.home().queues.queue_metadata(queue).await {
                Ok(_) => map = self.grow(queue, &map, wanted).await?,
                // A queue that does not exist has no shards.
                Err(e) if e.kind() == K::QueueNotFound => return Ok(map),
                Err(e) => return Err(e),
            }
        }
        self.remember(queue, &map, read);
        Ok(map)
    }

    fn wanted(&self, queue: &QueueName) -> u32 {
        let named = self.options.shards.get(queue.as_str()).copied();
        named.unwrap_or(if queue.is_dead_letter() { 1 } else { self.options.default_shards })
    }

    fn blob(queue: &QueueName) -> Result<BlobName, StoreError> {
        let name =
            ContainerName::new(CONTAINER).and_then(|container| BlobName::new(container, queue.as_str()));
        name.map_err(|e| StoreError::new(K::InvalidInput, OPERATION, queue).with_source(e))
    }

    fn document(&self, queue: &QueueName) -> Result<JsonBlob<Map>, StoreError> {
        Ok(JsonBlob::new(&self.home().blobs, &self.home().runtime, Self::blob(queue)?, MAX_MAP_BYTES))
    }

    async fn read(&self, queue: &QueueName) -> Result<Map, StoreError> {
        let version = self.document(queue)?.read().await?;
        Ok(version.map(|version| version.value).unwrap_or_default())
    }

    /// Applies `edit` to the current map, which may differ from the map that the caller read; `edit` returns
    /// `None` to leave it as it is. Returns the resulting map.
    async fn change(
        &self,
        queue: &QueueName,
        edit: impl Fn(&Map) -> Option<Map> + Send,
    ) -> Result<Map, StoreError> {
        let change = |present: Option<Map>| {
            edit(&present.unwrap_or_default()).map_or(Edit::Keep(()), |map| Edit::Write(map, ()))
        };
        let changed = self.document(queue)?.change(Known::Nothing, change).await?;
        Ok(changed.version.map(|version| version.value).unwrap_or_default())
    }

    /// Adds a generation: first its queues, then the map. If another process has added a generation since
    /// `map` was read, returns that process's map.
    pub(super) async fn grow(&self, queue: &QueueName, map: &Map, shards: u32) -> Result<Map, StoreError> {
        let accounts = self.options.accounts.iter().map(|(name, _)| name.clone()).cycle();
        // One shard in the home account is the home queue itself.
        let accounts = if shards == 1 { Vec::new() } else { accounts.take(shards as usize).collect() };
        let grow = |map: &Map| map.grown(accounts.clone(), self.home().runtime.now());
        self.create_all(queue, grow(map).targets(self.home_name())).await?;
        let newest = map.generations.last();
        self.change(queue, |present| (present.generations.last() == newest).then(|| grow(present))).await
    }

    /// Creates the queues of shards, except the home queue.
    pub(super) async fn create_all(&self, queue: &QueueName, shards: Vec<Shard>) -> Result<(), StoreError> {
        let shards: Vec<_> = shards.into_iter().filter(|shard| shard.generation > 0).collect();
        let creations: Vec<_> = shards.iter().map(|shard| self.create(queue, shard)).collect();
        stream::iter(creations).buffer_unordered(CONCURRENT_REQUESTS).try_collect().await
    }

    async fn create(&self, queue: &QueueName, shard: &Shard) -> Result<(), StoreError> {
        let (storage, physical) = self.locate(queue, shard)?;
        match storage.queues.create_queue(&physical, &Metadata::new()).await {
            Err(e) if e.kind() != K::QueueAlreadyExists => Err(e),
            _ => Ok(()),
        }
    }

    pub(super) async fn reshard(&self, queue: &QueueName, shards: u32) -> Result<(), StoreError> {
        if !(1..=MAX_SHARDS).contains(&shards) {
            let error = StoreError::new(K::InvalidInput, "reshard queue", queue);
            return Err(error.with_detail("a queue has 1 to 256 shards"));
        }
        // The logical queue exists if and only if the home queue exists.
        self.home().queues.queue_metadata(queue).await?;
        let mut map = self.fresh(queue).await?;
        while map.targets(self.home_name()).len() != shards as usize {
            // The loop ends with a write of this call. Other processes may write afterwards.
            map = self.grow(queue, &map, shards).await?;
            self.forget(queue);
        }
        Ok(())
    }

    /// Retires former shards; see [`Sharded::retire`](super::Sharded::retire).
    pub(super) async fn retire(&self, queue: &QueueName) -> Result<usize, StoreError> {
        let mut map = self.fresh(queue).await?;
        let now = seconds(self.home().runtime.now());
        let grace = (self.options.refresh * 4 + LONGEST_PUT).as_secs();
        let (mut gone, mut deleted) = (Vec::new(), Vec::new());
        for generation in &map.generations {
            let is_of_generation = |shard: &Shard| shard.generation == generation.number;
            let shards: Vec<_> = map.shards(self.home_name()).into_iter().filter(is_of_generation).collect();
            let old = generation.superseded != 0 && now.saturating_sub(generation.superseded) > grace;
            if old && self.are_empty(queue, &shards).await? {
                gone.push(generation.number);
                deleted.extend(shards);
            }
        }
        if !gone.is_empty() {
            // The queues are deleted first, so that a put by an outdated map is refused, not lost.
            self.delete(queue, &deleted).await?;
            map = self.change(queue, |present| Some(present.without(&gone))).await?;
            self.forget(queue);
        }
        Ok(map.generations.iter().filter(|old| old.superseded != 0).map(|old| old.accounts.len()).sum())
    }

    /// Returns whether all shards are empty, including their dead-letter queues if these are deleted with
    /// them. Checks twice, so that a message that arrived in a shard after its first check is not missed.
    async fn are_empty(&self, queue: &QueueName, shards: &[Shard]) -> Result<bool, StoreError> {
        for shard in shards.iter().chain(shards) {
            let (storage, physical) = self.locate(queue, shard)?;
            let has_letters = storage.queues.powers().dead_letters.is_some();
            let letters = has_letters.then(|| physical.dead_letter()).transpose().map_err(|error| {
                StoreError::new(K::InvalidInput, "name dead-letter queue", &physical).with_source(error)
            })?;
            for physical in [Some(physical), letters].into_iter().flatten() {
                match storage.queues.queue_properties(&physical).await {
                    Ok(properties) if properties.approximate_count > 0 => return Ok(false),
                    Ok(_) if storage.queues.peek(&physical, MAX_MESSAGES).await?.is_empty() => {}
                    Ok(_) => return Ok(false),
                    Err(e) if matches!(e.kind(), K::QueueNotFound | K::QueueBeingDeleted) => {}
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(true)
    }

    /// Deletes the map and all shards except the home queue.
    pub(super) async fn delete_shards(&self, queue: &QueueName) -> Result<(), StoreError> {
        let mut shards = self.read(queue).await?.shards(self.home_name());
        shards.retain(|shard| shard.generation > 0);
        self.delete(queue, &shards).await?;
        self.forget(queue);
        delete_if_present(&*self.home().blobs, &Self::blob(queue)?).await
    }

    async fn delete(&self, queue: &QueueName, shards: &[Shard]) -> Result<(), StoreError> {
        for shard in shards {
            let (storage, physical) = self.locate(queue, shard)?;
            match storage.queues.delete_queue(&physical).await {
                Err(e) if !matches!(e.kind(), K::QueueNotFound | K::QueueBeingDeleted) => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }
}
