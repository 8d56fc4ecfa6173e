//! One document of a group log, its head or a page, in a blob.
//!
//! The changes that one process makes to a document share writes: while one write is under way, the next changes gather.
//! The process caches the documents that it has read or written last. A change starts from the cached document and costs one
//! write, unless another process was faster. A question is answered from a document that was read after it was asked.

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

/// The interval between two reads of a log that another process may have changed. It grows from the first value to the second while the
/// log stays the same, so that a change is found within half of the time that the log stood still.
const LOG_POLL: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(60));
const LOG_POLL_GROWTH: f64 = 1.5;
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
    reading: Arc<tokio::sync::Mutex<()>>,
    /// The time of the next read, and the interval before it.
    next_read: Mutex<(Instant, Duration)>,
    reads_sooner: Notify,
    /// Locked by the one delivery that takes over pages.
    pub(super) refilling: tokio::sync::Mutex<()>,
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
            next_read: Mutex::new((Instant::now(), LOG_POLL.0)),
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

    /// Like [`change`](Self::change), but with a log that is read after this call: costs a read.
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

    async fn look(&self) -> Result<(), StoreError> {
        let mut known = self.known.lock().await;
        let version = self.blob.read().await?;
        self.publish(version.as_ref().map(|version| version.value.clone()).unwrap_or_default());
        *known = version;
        Ok(())
    }

    /// Reads the log when its time has come. One waiting delivery of this process does it for all.
    pub(crate) async fn watch(self: &Arc<Self>) {
        let reading = Arc::clone(&self.reading).lock_owned().await;
        loop {
            let (next, _) = *lock(&self.next_read);
            tokio::select! {
                biased;
                () = sleep_until(next) => break,
                () = self.reads_sooner.notified() => {}
            }
        }
        self.read(reading).await;
    }

    /// Reads the log if its time has come and no waiting delivery of this process does it. Returns whether it was read.
    pub(crate) async fn read_if_due(self: &Arc<Self>) -> bool {
        let is_due = lock(&self.next_read).0 <= Instant::now();
        match Arc::clone(&self.reading).try_lock_owned() {
            Ok(reading) if is_due => self.read(reading).await,
            _ => return false,
        }
        true
    }

    async fn read(self: &Arc<Self>, reading: OwnedMutexGuard<()>) {
        let this = Arc::clone(self);
        // In a task of its own, which goes on when the delivery does not wait for it.
        let read = self.blob.runtime().spawn(async move {
            let _reading = reading;
            let before = this.latest();
            if let Err(error) = this.look().await {
                crate::log::debug!(log = ?this, %error, "reading a group log failed");
            }
            let mut next_read = lock(&this.next_read);
            if before == this.latest() {
                next_read.1 = next_read.1.mul_f64(LOG_POLL_GROWTH).min(LOG_POLL.1);
            }
            next_read.0 = Instant::now() + next_read.1;
        });
        drop(read.await);
    }

    fn publish(&self, log: GroupLog) {
        let log = Arc::new(log);
        let before = std::mem::replace(&mut *lock(&self.latest), Arc::clone(&log));
        let mut goes_on_here = false;
        for ((key, job), notifier) in &*lock(&self.waiting) {
            let is_first = log.is_first(*key, *job);
            goes_on_here |= is_first && Arc::strong_count(notifier) > 1;
            if is_first || log.has(*key, *job) && !before.has(*key, *job) {
                notifier.notify_waiters();
            }
        }
        if before != log && !goes_on_here {
            // The next job is elsewhere: its end is found by reading.
            *lock(&self.next_read) = (Instant::now() + LOG_POLL.0, LOG_POLL.0);
            self.reads_sooner.notify_one();
        }
    }

    /// Returns the notifier that fires when an entry has come into the head, or become the first of its group, as far as this process knows.
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

jobqueue_storage::debug_fields! {
    LogBlob(blob.name())
}
