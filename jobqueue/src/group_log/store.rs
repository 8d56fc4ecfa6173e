//! The group logs of a queue in blobs: finds them, and caches those in use.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use super::clock::StorageClock;
use super::entry::{EndState, EntryRef, KeyHash};
use super::log::GroupLog;
use super::log_blob::LogBlob;
use super::message::InOrder;
use crate::error::{Error, ErrorKind};
use crate::json_blob::JsonBlob;
use crate::runtime::Runtime;
use crate::storage::{
    BlobName, BlobStore, ContainerName, NameError, QueueName, Storage, StoreError, StoreErrorKind as Kind,
    delete_if_present,
};
use crate::sync::lock;

pub(super) const CONTAINER: &str = "jobqueue-fifo";
const MAX_LOG_BYTES: u64 = 16 * 1024 * 1024;
/// The number of cached logs above which unused logs are forgotten.
const MAX_CACHED_LOGS: usize = 64;

/// The time after which an unseen group is forgotten: longer than a message near its turn is put back.
const FORGET_AFTER: Duration = Duration::from_secs(120);

/// The first jobs of the groups whose messages are put back.
#[derive(Debug, Default)]
struct FirstJobs {
    of: BTreeMap<KeyHash, FirstJob>,
    /// The time at which unseen groups were last forgotten.
    pruned: Option<Instant>,
}

/// The first job of a group whose messages are put back.
#[derive(Debug, Clone, Copy)]
struct FirstJob {
    job: KeyHash,
    /// The time at which this process first saw the job in this place.
    since: Instant,
    /// The time at which this process last saw the job in this place.
    seen: Instant,
    /// The minimum times for which the two jobs before it were in this place, the latest first.
    lasted: [Duration; 2],
}

/// The progress of a group, as far as this process has seen it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    /// The time for which its first job has been the same.
    pub(crate) stands_still: Duration,
    /// The minimum time for which each of the last two jobs was its first.
    pub(crate) pace: Duration,
}

/// The number of a log, and the number of a page unless it is the head.
type DocumentKey = (u16, Option<u64>);

#[derive(Debug)]
pub(crate) struct GroupLogs {
    pub(super) blobs: Arc<dyn BlobStore>,
    pub(super) runtime: Runtime,
    pub(super) queue: QueueName,
    pub(crate) clock: Arc<StorageClock>,
    pub(super) known: Mutex<BTreeMap<DocumentKey, Arc<LogBlob>>>,
    /// Kept apart from the cached logs, which are forgotten when there are too many.
    first_jobs: Mutex<FirstJobs>,
}

impl GroupLogs {
    pub(crate) fn new(storage: &Storage, queue: QueueName) -> Self {
        let (blobs, runtime) = (Arc::clone(storage.blobs()), storage.runtime().clone());
        let clock = StorageClock::new(Arc::clone(&blobs), runtime.clone());
        Self::over(blobs, runtime, queue, clock)
    }

    fn over(blobs: Arc<dyn BlobStore>, runtime: Runtime, queue: QueueName, clock: Arc<StorageClock>) -> Self {
        Self { blobs, runtime, queue, clock, known: Mutex::default(), first_jobs: Mutex::default() }
    }

    /// Returns the same logs for the renewer's runtime: with separate connections, and without a lock that a
    /// task of the worker may hold.
    pub(crate) fn detached(&self, storage: &Storage) -> Self {
        let blobs = storage.detached_blobs();
        let clock = self.clock.over(Arc::clone(&blobs));
        Self::over(blobs, self.runtime.clone(), self.queue.clone(), clock)
    }

    /// Returns the head of the log that has an entry's group.
    pub(crate) fn of(&self, entry: &EntryRef) -> Result<Arc<LogBlob>, NameError> {
        self.blob(entry, None)
    }

    /// Returns the head of a log, or a page of the entry's group.
    pub(super) fn blob(&self, entry: &EntryRef, page: Option<u64>) -> Result<Arc<LogBlob>, NameError> {
        let mut known = lock(&self.known);
        if let Some(log) = known.get(&(entry.log, page)) {
            return Ok(Arc::clone(log));
        }
        if known.len() >= MAX_CACHED_LOGS {
            known.retain(|_, log| Arc::strong_count(log) > 1);
        }
        let head = self.head(entry.log)?;
        let name = page.map_or(Ok(head.clone()), |page| page_of(&head, page))?;
        let log = Arc::new(LogBlob::new(self.document(name)));
        known.insert((entry.log, page), Arc::clone(&log));
        Ok(log)
    }

    /// Returns the progress of an entry's group since the first call, as far as this process has seen it.
    pub(crate) fn progress(&self, log: &LogBlob, entry: &EntryRef) -> Progress {
        let now = Instant::now();
        let Some(job) = log.latest().first(entry.key) else {
            return Progress { stands_still: Duration::ZERO, pace: Duration::ZERO };
        };
        let mut first_jobs = lock(&self.first_jobs);
        if first_jobs.pruned.is_none_or(|pruned| now - pruned >= FORGET_AFTER) {
            first_jobs.pruned = Some(now);
            first_jobs.of.retain(|_, first| now - first.seen < FORGET_AFTER);
        }
        let new = FirstJob { job, since: now, seen: now, lasted: [Duration::ZERO; 2] };
        let first = first_jobs.of.entry(entry.key).or_insert(new);
        if first.job != job {
            let lasted = [first.seen - first.since, first.lasted[0]];
            *first = FirstJob { lasted, ..new };
        }
        first.seen = now;
        Progress { stands_still: now - first.since, pace: first.lasted[0].min(first.lasted[1]) }
    }

    /// Deletes a page whose entries the head has, or whose entries do not count. A page that remains costs
    /// its bytes and nothing else.
    pub(super) async fn delete_page(&self, entry: &EntryRef, page: u64) -> Result<(), NameError> {
        let blob = self.blob(entry, Some(page))?;
        if let Err(error) = delete_if_present(&*self.blobs, blob.name()).await {
            crate::log::debug!(queue = %self.queue, %error, "a page of a group log was not deleted");
        }
        lock(&self.known).remove(&(entry.log, Some(page)));
        Ok(())
    }

    /// Ends the position of a delivered job.
    ///
    /// # Errors
    /// The log cannot be changed, or a newer delivery of the message has the turn: then the lease is lost.
    pub(crate) async fn end(&self, position: InOrder, end: EndState) -> Result<(), Error> {
        let InOrder { entry, turn } = position;
        let now = self.clock.now().await;
        let ended = self.change(&entry, move |log| log.end(&entry, turn, end, now)).await?;
        ended.then_some(()).ok_or_else(superseded)
    }

    /// Returns whether no other message of the job and no newer delivery has its turn. None has if the log is
    /// damaged, because no delivery can confirm its turn there.
    ///
    /// # Errors
    /// The log cannot be read.
    pub(crate) async fn may_end(&self, position: InOrder) -> Result<bool, Error> {
        let InOrder { entry, turn } = position;
        match self.of(&entry)?.read_and_change(move |log| log.may_end(&entry, turn)).await {
            Err(error) if error.kind() == ErrorKind::Undecodable => Ok(true),
            may_end => may_end,
        }
    }

    /// Returns whether the log says that a job is done. Reads the log: the job may be sent again once the log
    /// has forgotten its end.
    ///
    /// # Errors
    /// The log cannot be read.
    pub(crate) async fn is_done(&self, entry: EntryRef) -> Result<bool, Error> {
        self.of(&entry)?.read_and_change(move |log| log.is_done(&entry)).await
    }

    pub(super) fn document(&self, name: BlobName) -> JsonBlob<GroupLog> {
        JsonBlob::new(&self.blobs, &self.runtime, name, MAX_LOG_BYTES)
    }

    /// Returns the name of the head of a log.
    pub(super) fn head(&self, log: u16) -> Result<BlobName, NameError> {
        BlobName::new(ContainerName::new(CONTAINER)?, format!("{}/{log:04}", self.queue))
    }

    pub(super) fn invalid(&self, source: NameError) -> StoreError {
        StoreError::new(Kind::InvalidInput, "read group logs", &self.queue).with_source(source)
    }
}

/// Returns the name of a page of a log. The name is not below the head: in an account with a hierarchical
/// namespace a blob cannot be inside another.
pub(super) fn page_of(head: &BlobName, page: u64) -> Result<BlobName, NameError> {
    BlobName::new(head.container().clone(), format!("{}-{page:x}", head.name()))
}

/// Returns the error of a delivery that a newer one has replaced.
pub(crate) fn superseded() -> Error {
    Error::new(ErrorKind::LeaseLost, "superseded by a newer delivery of the same message")
}

#[cfg(test)]
mod tests {
    use super::super::entry::{Announcement, Turn};
    use super::super::log::Millis;
    use super::*;
    use crate::envelope::Identity;

    fn logs(storage: &Storage) -> GroupLogs {
        GroupLogs::new(storage, QueueName::new("steps").unwrap())
    }

    fn of_key(job: &str) -> InOrder {
        let entry = EntryRef::new("key", &Identity::new("/shop", job));
        InOrder { entry, turn: Turn { copy: 1, delivery: 1, lock: 0 } }
    }

    #[tokio::test(start_paused = true)]
    async fn job_is_not_done_once_its_log_has_forgotten_its_end() {
        let storage = Storage::memory();
        let (process, other) = (logs(&storage), logs(&storage));
        let job = of_key("job");
        process.end(job, EndState::Done).await.unwrap();
        assert!(process.is_done(job.entry).await.unwrap());
        for number in 0..300 {
            other.end(of_key(&number.to_string()), EndState::Done).await.unwrap();
        }
        assert!(!process.is_done(job.entry).await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn done_job_that_was_sent_again_ends_in_its_page() {
        let logs = logs(&Storage::memory());
        let job = of_key("job");
        logs.end(job, EndState::Done).await.unwrap();
        let again = EntryRef { page: Some(7), ..job.entry };
        let sent = Announcement { entry: again, nonce: 1, delay: Duration::ZERO, announced_at: None };
        let page = logs.blob(&again, Some(7)).unwrap();
        page.change(move |log| log.announce_in_page(true, &[sent], Millis(0))).await.unwrap().unwrap();
        assert!(page.latest().has(again.key, again.job));
        logs.end(InOrder { entry: again, ..job }, EndState::Done).await.unwrap();
        assert!(!page.latest().has(again.key, again.job));
    }

    #[tokio::test(start_paused = true)]
    async fn standstill_of_a_group_is_known_after_its_log_was_forgotten() {
        let logs = logs(&Storage::memory());
        let entry = |key: &str| EntryRef::new(key, &Identity::new("/shop", key));
        let read = async |key: &str| {
            let log = logs.of(&entry(key)).unwrap();
            log.read_and_change(|_| ()).await.unwrap();
            log
        };
        let still = entry("still");
        let now = logs.clock.now().await;
        let announced = read("still").await.change(move |log| log.announce(&still, 1, now)).await.unwrap();
        assert_eq!(announced, super::super::Announced::Entered);
        assert_eq!(logs.progress(&*read("still").await, &still).stands_still, Duration::ZERO);
        tokio::time::sleep(Duration::from_secs(50)).await;
        for key in 0..2 * MAX_CACHED_LOGS {
            drop(read(&key.to_string()).await);
        }
        let log = read("still").await;
        assert!(logs.progress(&log, &still).stands_still >= Duration::from_secs(50));
    }
}
