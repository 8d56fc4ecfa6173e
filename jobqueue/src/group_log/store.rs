//! Group logs in blobs.
//!
//! The changes that one process makes to a log share writes: while one write is under way, the next changes gather.
//! The process caches the logs that it has read or written last. A change starts from the cached log and costs one
//! write, unless another process was faster. A question is answered from a log that was read after it was asked.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tokio::sync::{Notify, oneshot};

use super::entry::{EndState, EntryRef, KeyHash, LOGS};
use super::log::{GroupLog, Millis};
use super::message::InOrder;
use crate::error::{Error, ErrorKind};
use crate::json_blob::{Edit, JsonBlob, Known, Version, is_raced};
use crate::runtime::Runtime;
use crate::storage::{BlobName, ContainerName, NameError, QueueName};
use crate::storage::{BlobStore, Storage, StoreError, StoreErrorKind as Kind};
use crate::sync::lock;

/// The maximum number of attempts to delete all logs.
const CLEAR_TRIES: u32 = 6;
/// The pause after the first of them; it grows with each.
const CLEAR_PAUSE: Duration = Duration::from_millis(200);
/// The longest pause, whatever the storage asks for.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// The container of the group logs.
const CONTAINER: &str = "jobqueue-fifo";
const MAX_BYTES: u64 = 16 * 1024 * 1024;
/// The number of cached logs above which unused ones are forgotten.
const MANY: usize = 64;

#[derive(Debug)]
pub(crate) struct GroupLogs {
    blobs: Arc<dyn BlobStore>,
    pub(super) runtime: Runtime,
    pub(super) queue: QueueName,
    known: Mutex<BTreeMap<u16, Arc<LogBlob>>>,
}

impl GroupLogs {
    pub(crate) fn new(storage: &Storage, queue: QueueName) -> Self {
        let (blobs, runtime) = (Arc::clone(storage.blobs()), storage.runtime().clone());
        Self { blobs, runtime, queue, known: Mutex::default() }
    }

    /// Returns the same logs for the renewer's runtime: with connections of their own, and no lock that a task of the worker may hold.
    pub(crate) fn apart(&self, storage: &Storage) -> Self {
        let (blobs, runtime) = (storage.blobs_apart(), storage.runtime().clone());
        Self { blobs, runtime, queue: self.queue.clone(), known: Mutex::default() }
    }

    pub(crate) fn of(&self, entry: &EntryRef) -> Result<Arc<LogBlob>, NameError> {
        let mut known = lock(&self.known);
        if let Some(log) = known.get(&entry.log) {
            return Ok(Arc::clone(log));
        }
        if known.len() >= MANY {
            known.retain(|_, log| Arc::strong_count(log) > 1);
        }
        let log = Arc::new(LogBlob::new(self.document(self.name(entry.log)?)));
        known.insert(entry.log, Arc::clone(&log));
        Ok(log)
    }

    /// Ends the position of a delivered job.
    ///
    /// # Errors
    /// The log cannot be changed, or a newer delivery of the message has the turn: then the lease is lost.
    pub(crate) async fn end(&self, position: InOrder, end: EndState, now: SystemTime) -> Result<(), Error> {
        let InOrder { entry, turn } = position;
        let now = Millis::from(now);
        let ended = self.of(&entry)?.change(move |log| log.end(&entry, turn, end, now)).await?;
        ended.then_some(()).ok_or_else(superseded)
    }

    fn document(&self, name: BlobName) -> JsonBlob<GroupLog> {
        JsonBlob::new(&self.blobs, &self.runtime, name, MAX_BYTES)
    }

    fn name(&self, log: u16) -> Result<BlobName, NameError> {
        BlobName::new(ContainerName::new(CONTAINER)?, format!("{}/{log:04}", self.queue))
    }

    /// Reads all stored logs, including ones unknown to this process.
    pub(super) async fn all(&self) -> Result<Vec<GroupLog>, StoreError> {
        let mut logs = Vec::new();
        for log in self.stored().await? {
            let name = self.name(log).map_err(|e| self.invalid(e))?;
            let blob = self.document(name);
            logs.extend(blob.read().await?.map(|version| version.value));
        }
        Ok(logs)
    }

    /// Deletes all logs. Call it after the messages are gone. Tries again for a while: a job that is left in a log without
    /// its message holds up its key.
    pub(crate) async fn clear(&self) -> Result<(), StoreError> {
        let mut tries = 1;
        while let Err(error) = self.clear_once().await {
            if !error.is_retryable() || tries == CLEAR_TRIES {
                return Err(error);
            }
            tokio::time::sleep(error.retry_after().unwrap_or(CLEAR_PAUSE * tries).min(LONGEST_PAUSE)).await;
            tries += 1;
        }
        Ok(())
    }

    async fn clear_once(&self) -> Result<(), StoreError> {
        for log in self.stored().await? {
            let name = self.name(log).map_err(|e| self.invalid(e))?;
            match self.blobs.delete_blob(&name, None).await {
                Err(e) if e.kind() != Kind::BlobNotFound => return Err(e),
                _ => {}
            }
        }
        lock(&self.known).clear();
        Ok(())
    }

    async fn stored(&self) -> Result<Vec<u16>, StoreError> {
        let container = ContainerName::new(CONTAINER).map_err(|e| self.invalid(e))?;
        let prefix = format!("{}/", self.queue);
        let (mut logs, mut marker) = (Vec::new(), None);
        loop {
            let page = match self.blobs.list_blobs(&container, &prefix, marker.as_deref()).await {
                Err(e) if e.kind() == Kind::ContainerNotFound => return Ok(logs),
                page => page?,
            };
            let numbers =
                page.blobs.iter().filter_map(|(name, _)| name.strip_prefix(&prefix)?.parse::<u16>().ok());
            logs.extend(numbers.filter(|log| *log < LOGS));
            marker = page.next;
            if marker.is_none() {
                return Ok(logs);
            }
        }
    }

    /// Empties the logs that are stored now, because the queue does not exist and so all their messages are gone.
    /// Leaves out a log that changes in the meantime, and stops if `are_stale` returns false after the logs were
    /// read.
    pub(crate) async fn clear_stale<F>(&self, are_stale: impl Fn() -> F) -> Result<(), StoreError>
    where
        F: Future<Output = Result<bool, StoreError>>,
    {
        for log in self.stored().await? {
            let blob = self.document(self.name(log).map_err(|e| self.invalid(e))?);
            let Some(version) = blob.read().await? else { continue };
            if version.value == GroupLog::default() {
                continue;
            }
            if !are_stale().await? {
                return Ok(());
            }
            let read = version.value.clone();
            let empty = |found: Option<GroupLog>| match found {
                Some(log) if log == read => Edit::Write(GroupLog::default(), ()),
                _ => Edit::Keep(()),
            };
            blob.change(Known::Version(version), empty).await?;
        }
        Ok(())
    }

    fn invalid(&self, source: NameError) -> StoreError {
        StoreError::new(Kind::InvalidInput, "clear group logs", &self.queue).with_source(source)
    }
}

/// Returns the error of a delivery that a newer one has replaced.
pub(crate) fn superseded() -> Error {
    Error::new(ErrorKind::LeaseLost, "superseded by a newer delivery of the same message")
}

/// A change of a log. It leaves its result where its caller finds it.
type Change = Box<dyn FnMut(&mut GroupLog) + Send>;

/// A change that waits for a write.
struct Pending {
    change: Change,
    /// True if the log must be read after this change was requested.
    fresh: bool,
    done: oneshot::Sender<Result<(), Arc<StoreError>>>,
}

/// One log, with the version that this process knows.
pub(crate) struct LogBlob {
    blob: JsonBlob<GroupLog>,
    /// Locked while the log is read or written.
    known: tokio::sync::Mutex<Option<Version<GroupLog>>>,
    pending: Mutex<Vec<Pending>>,
    latest: Mutex<Arc<GroupLog>>,
    /// The deliveries of this process that wait to be the first of their group.
    waiting: Mutex<BTreeMap<(KeyHash, KeyHash), Arc<Notify>>>,
    /// Locked by the one waiting delivery that reads the log at intervals.
    pub(crate) looking: tokio::sync::Mutex<()>,
}

impl LogBlob {
    fn new(blob: JsonBlob<GroupLog>) -> Self {
        Self {
            blob,
            known: tokio::sync::Mutex::default(),
            pending: Mutex::default(),
            latest: Mutex::default(),
            waiting: Mutex::default(),
            looking: tokio::sync::Mutex::default(),
        }
    }

    /// Returns the log as this process has last seen it.
    pub(crate) fn latest(&self) -> Arc<GroupLog> {
        Arc::clone(&lock(&self.latest))
    }

    /// Changes the log, together with other changes of this process.
    ///
    /// `change` may be called several times, for logs of different age, and must recognise what it has done already.
    ///
    /// # Cancel safety
    /// If the future is dropped, the change may or may not be made.
    pub(crate) async fn change<R: Send + 'static>(
        self: &Arc<Self>,
        change: impl FnMut(&mut GroupLog) -> R + Send + 'static,
    ) -> Result<R, Error> {
        self.run(false, change).await
    }

    /// Like [`change`](Self::change), but with a log that is read after this call.
    pub(crate) async fn ask<R: Send + 'static>(
        self: &Arc<Self>,
        change: impl FnMut(&mut GroupLog) -> R + Send + 'static,
    ) -> Result<R, Error> {
        self.run(true, change).await
    }

    async fn run<R: Send + 'static>(
        self: &Arc<Self>,
        fresh: bool,
        mut change: impl FnMut(&mut GroupLog) -> R + Send + 'static,
    ) -> Result<R, Error> {
        let result = Arc::new(Mutex::new(None));
        let slot = Arc::clone(&result);
        let change: Change = Box::new(move |log| *lock(&slot) = Some(change(log)));
        let (done, answer) = oneshot::channel();
        lock(&self.pending).push(Pending { change, fresh, done });
        let this = Arc::clone(self);
        // In a task of its own, because it also makes the changes of other callers.
        drop(self.blob.runtime().spawn(async move { this.work_off().await }));
        let text = "the group log of a key cannot be read or changed";
        let failed = |error: Arc<StoreError>| {
            let retryable = error.is_retryable() || error.is_ambiguous() || is_raced(error.kind());
            let kind = match error.kind() {
                Kind::Corrupt => ErrorKind::Undecodable,
                _ if error.is_ambiguous() => ErrorKind::Unknown,
                _ => ErrorKind::Storage,
            };
            Error::new(kind, text).with_retryable(retryable).with_source(error)
        };
        match answer.await {
            Ok(answer) => answer.map_err(failed)?,
            Err(_) => return Err(Error::new(ErrorKind::Unknown, text).with_retryable(true)),
        }
        let result = lock(&result).take();
        result.ok_or_else(|| Error::new(ErrorKind::Storage, text))
    }

    /// Makes all changes that wait.
    async fn work_off(&self) {
        let mut known = self.known.lock().await;
        let mut pending = std::mem::take(&mut *lock(&self.pending));
        if pending.is_empty() {
            return;
        }
        let start = match known.take() {
            Some(version) if changes_all(&version.value, &mut pending) => Known::Version(version),
            _ => Known::Nothing,
        };
        let changed = self.blob.change(start, |log| {
            let mut log = log.unwrap_or_default();
            log.take_changed();
            pending.iter_mut().for_each(|one| (one.change)(&mut log));
            if log.take_changed() { Edit::Write(log, ()) } else { Edit::Keep(()) }
        });
        let answer = match changed.await {
            Ok(changed) => {
                let log = changed.version.as_ref().map(|version| version.value.clone()).unwrap_or_default();
                *known = changed.version;
                self.publish(log);
                Ok(())
            }
            Err(error) => Err(Arc::new(error)),
        };
        drop(known);
        for Pending { done, .. } in pending {
            drop(done.send(answer.clone()));
        }
    }

    pub(crate) async fn look(&self) -> Result<(), StoreError> {
        let mut known = self.known.lock().await;
        let version = self.blob.read().await?;
        self.publish(version.as_ref().map(|version| version.value.clone()).unwrap_or_default());
        *known = version;
        Ok(())
    }

    fn publish(&self, log: GroupLog) {
        let log = Arc::new(log);
        *lock(&self.latest) = Arc::clone(&log);
        for ((key, job), notifier) in &*lock(&self.waiting) {
            if log.is_first(*key, *job) {
                notifier.notify_waiters();
            }
        }
    }

    /// Returns the notifier that fires when an entry has become the first of its group, as far as this process knows.
    pub(crate) fn notifier(&self, entry: &EntryRef) -> Arc<Notify> {
        let mut waiting = lock(&self.waiting);
        waiting.retain(|_, notifier| Arc::strong_count(notifier) > 1);
        Arc::clone(waiting.entry((entry.key, entry.job)).or_default())
    }
}

/// Returns whether every pending change does change a log that may be outdated. A change that finds nothing to do
/// there must be asked again on a newer log.
fn changes_all(log: &GroupLog, pending: &mut [Pending]) -> bool {
    let mut log = log.clone();
    pending.iter_mut().all(|one| {
        log.take_changed();
        !one.fresh && {
            (one.change)(&mut log);
            log.take_changed()
        }
    })
}

impl std::fmt::Debug for LogBlob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("LogBlob").field(self.blob.name()).finish()
    }
}
