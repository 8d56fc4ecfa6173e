//! One document of a group log, its head or a page, in a blob.
//!
//! The changes that a process makes to a document share writes: while a write is under way, the next changes
//! gather. The process caches the document that it has last read or written. A change starts from the cached
//! document and costs one write, unless another process was faster. A question is answered from a document
//! that was read after it was asked.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, OwnedMutexGuard, oneshot};
use tokio::time::{Instant, sleep_until};

use super::entry::{EntryRef, KeyHash};
use super::log::GroupLog;
use crate::error::{Error, ErrorKind};
use crate::json_blob::{Edit, JsonBlob, Known, Version, is_raced};
use crate::storage::{BlobName, StoreError, StoreErrorKind as Kind};
use crate::sync::lock;

/// The shortest interval between two reads of a log that another process may have changed. The interval grows
/// while the log stays the same, so that a change is found within half of the time that the log stood still.
const MIN_LOG_POLL: Duration = Duration::from_millis(50);
const MAX_LOG_POLL: Duration = Duration::from_secs(60);
const LOG_POLL_GROWTH: f64 = 1.5;
/// A change of a log. It stores its result where the caller finds it.
type LogChange = Box<dyn FnMut(&mut GroupLog) + Send>;

/// A change that waits for a write.
struct PendingChange {
    change: LogChange,
    /// True if the log must be read after this change was requested.
    fresh: bool,
    done: oneshot::Sender<Result<(), Arc<StoreError>>>,
}

/// A log, with the version that this process knows.
pub(crate) struct LogBlob {
    blob: JsonBlob<GroupLog>,
    /// Locked while the log is read or written.
    known: tokio::sync::Mutex<Option<Version<GroupLog>>>,
    pending: Mutex<Vec<PendingChange>>,
    latest: Mutex<Arc<GroupLog>>,
    /// The deliveries of this process that wait to become the first of their group.
    waiting: Mutex<BTreeMap<(KeyHash, KeyHash), Arc<Notify>>>,
    /// Locked by the one waiting delivery that reads the log at intervals.
    reading: Arc<tokio::sync::Mutex<()>>,
    next_read: Mutex<NextRead>,
    reads_sooner: Notify,
    /// Locked by the one delivery that takes over pages.
    pub(super) refilling: tokio::sync::Mutex<()>,
}

/// The time of the next read, and the interval before it.
#[derive(Debug, Clone, Copy)]
struct NextRead {
    at: Instant,
    interval: Duration,
}

impl LogBlob {
    pub(super) fn new(blob: JsonBlob<GroupLog>) -> Self {
        Self {
            blob,
            known: tokio::sync::Mutex::default(),
            pending: Mutex::default(),
            latest: Mutex::default(),
            waiting: Mutex::default(),
            reading: Arc::default(),
            next_read: Mutex::new(NextRead { at: Instant::now(), interval: MIN_LOG_POLL }),
            reads_sooner: Notify::new(),
            refilling: tokio::sync::Mutex::default(),
        }
    }

    pub(super) fn name(&self) -> &BlobName {
        self.blob.name()
    }

    /// Returns the log as this process has last seen it.
    pub(crate) fn latest(&self) -> Arc<GroupLog> {
        Arc::clone(&lock(&self.latest))
    }

    /// Changes the log, together with other changes of this process.
    ///
    /// `change` may run several times, on logs of different versions; it must be idempotent.
    ///
    /// # Cancel safety
    /// If the future is dropped, the change may or may not be made.
    pub(crate) async fn change<R: Send + 'static>(
        self: &Arc<Self>,
        change: impl FnMut(&mut GroupLog) -> R + Send + 'static,
    ) -> Result<R, Error> {
        self.run(false, change).await
    }

    /// Like [`change`](Self::change), but on a log that is read after this call: costs a read.
    pub(crate) async fn read_and_change<R: Send + 'static>(
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
        let change: LogChange = Box::new(move |log| *lock(&slot) = Some(change(log)));
        let (done, answer) = oneshot::channel();
        lock(&self.pending).push(PendingChange { change, fresh, done });
        let this = Arc::clone(self);
        // In its own task, because it also makes the changes of other callers.
        drop(self.blob.runtime().spawn(async move { this.apply_pending().await }));
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

    /// Makes all pending changes.
    async fn apply_pending(&self) {
        let mut known = self.known.lock().await;
        let mut pending = std::mem::take(&mut *lock(&self.pending));
        if pending.is_empty() {
            return;
        }
        let start = match known.take() {
            Some(version) if all_modify(&version.value, &mut pending) => Known::Version(version),
            _ => Known::Nothing,
        };
        let changed = self.blob.change(start, |log| {
            let mut log = log.unwrap_or_default();
            log.take_changed();
            pending.iter_mut().for_each(|pending| (pending.change)(&mut log));
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
        for PendingChange { done, .. } in pending {
            drop(done.send(answer.clone()));
        }
    }

    async fn refresh(&self) -> Result<(), StoreError> {
        let mut known = self.known.lock().await;
        let version = self.blob.read().await?;
        self.publish(version.as_ref().map(|version| version.value.clone()).unwrap_or_default());
        *known = version;
        Ok(())
    }

    /// Waits for the next read of the log, and reads it. One waiting delivery of this process reads for all
    /// of them.
    pub(crate) async fn watch(self: &Arc<Self>) {
        let reading = Arc::clone(&self.reading).lock_owned().await;
        loop {
            let next_read = lock(&self.next_read).at;
            tokio::select! {
                biased;
                () = sleep_until(next_read) => break,
                () = self.reads_sooner.notified() => {}
            }
        }
        self.read(reading).await;
    }

    /// Reads the log if a read is due and no waiting delivery of this process is about to do it. Returns
    /// whether it was read.
    pub(crate) async fn read_if_due(self: &Arc<Self>) -> bool {
        let is_due = lock(&self.next_read).at <= Instant::now();
        match Arc::clone(&self.reading).try_lock_owned() {
            Ok(reading) if is_due => self.read(reading).await,
            _ => return false,
        }
        true
    }

    async fn read(self: &Arc<Self>, reading: OwnedMutexGuard<()>) {
        let this = Arc::clone(self);
        // In its own task, which continues if the delivery is dropped.
        let read = self.blob.runtime().spawn(async move {
            let _reading = reading;
            let before = this.latest();
            if let Err(error) = this.refresh().await {
                crate::log::debug!(log = ?this, %error, "reading a group log failed");
            }
            let mut next_read = lock(&this.next_read);
            if before == this.latest() {
                next_read.interval = next_read.interval.mul_f64(LOG_POLL_GROWTH).min(MAX_LOG_POLL);
            }
            next_read.at = Instant::now() + next_read.interval;
        });
        drop(read.await);
    }

    fn publish(&self, log: GroupLog) {
        let log = Arc::new(log);
        let before = std::mem::replace(&mut *lock(&self.latest), Arc::clone(&log));
        let mut next_job_waits_here = false;
        for ((key, job), notifier) in &*lock(&self.waiting) {
            let is_first = log.is_first(*key, *job);
            next_job_waits_here |= is_first && Arc::strong_count(notifier) > 1;
            if is_first || log.has(*key, *job) && !before.has(*key, *job) {
                notifier.notify_waiters();
            }
        }
        if before != log && !next_job_waits_here {
            // The next job is on another worker: its end is found by reading.
            *lock(&self.next_read) = NextRead { at: Instant::now() + MIN_LOG_POLL, interval: MIN_LOG_POLL };
            self.reads_sooner.notify_one();
        }
    }

    /// Returns the notifier that fires when this process sees that the entry has come into the head, or has
    /// become the first of its group.
    pub(crate) fn notifier(&self, entry: &EntryRef) -> Arc<Notify> {
        let mut waiting = lock(&self.waiting);
        waiting.retain(|_, notifier| Arc::strong_count(notifier) > 1);
        Arc::clone(waiting.entry((entry.key, entry.job)).or_default())
    }
}

/// Returns whether every pending change modifies a log that may be outdated. A change that modifies nothing
/// there must be tried again on a newer log.
fn all_modify(log: &GroupLog, pending: &mut [PendingChange]) -> bool {
    let mut log = log.clone();
    pending.iter_mut().all(|pending| {
        log.take_changed();
        !pending.fresh && {
            (pending.change)(&mut log);
            log.take_changed()
        }
    })
}

jobqueue_storage::debug_fields! {
    LogBlob(blob.name())
}
