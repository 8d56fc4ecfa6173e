//! The group logs of a queue in blobs: finds, lists and clears them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use super::entry::{EndState, EntryRef, LOGS};
use super::log::{GroupLog, Millis};
use super::log_blob::LogBlob;
use super::message::InOrder;
use crate::error::{Error, ErrorKind};
use crate::json_blob::{Edit, JsonBlob, Known};
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
