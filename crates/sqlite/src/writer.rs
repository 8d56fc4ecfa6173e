//! The only thread that writes. It takes all waiting and newly arriving operations, runs them in one
//! transaction, and answers after COMMIT.

use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, ffi};

use super::batch::{Batch, Finished};
use super::clock::StoreClock;
use super::error::{Cause, from_sql};
use super::health::Health;
use super::inbox::{Inbox, Tasks};
use super::known::Known;
use super::notifiers::Notifiers;
use super::open::log::LeftLog;
use super::open::open_files::OpenFiles;
use super::open::{keep_log_on_close, lock_is_held};
use super::process_guard::ProcessGuard;
use super::space::Reserve;
use super::task::Work;
use super::upkeep::Upkeep;
use jobqueue_storage::StoreErrorKind;

/// The time that a transaction in which messages become visible waits for the get of a subscription that it
/// woke, if nothing else is requested: less than the sync of another transaction takes.
const GET_WAIT: Duration = Duration::from_micros(100);

/// The first and the longest pause between attempts to get the write lock.
const FIRST_PAUSE: Duration = Duration::from_micros(100);
const MAX_PAUSE: Duration = Duration::from_millis(4);

pub(super) struct Writer {
    pub(super) connection: Connection,
    pub(super) left_log: LeftLog,
    pub(super) inbox: Inbox,
    pub(super) clock: Arc<StoreClock>,
    pub(super) notifiers: Arc<Notifiers>,
    pub(super) health: Arc<Health>,
    pub(super) upkeep: Upkeep,
    /// True if the last commit found no room on the volume, as opposed to the limit of the file.
    pub(super) lacks_room: bool,
    pub(super) known: Known,
    pub(super) files: OpenFiles,
    /// The time that an operation waits for the write lock before it fails.
    pub(super) busy_timeout: Duration,
    /// Released after the connection is closed, because it is declared after the connection.
    pub(super) _guard: Arc<ProcessGuard>,
}

/// Decides whether operations that arrive while a transaction runs may join it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Joining {
    Allowed,
    Exclusive,
    /// No operation may join, and the operation avoids taking pages where it can, because the file is full.
    Saving,
}

/// The reason why a transaction was not committed.
enum Abort {
    /// Another process or transaction holds the lock.
    Busy,
    /// Something failed; the cause says whether the commit may have happened nevertheless.
    Failed(Cause),
}

impl From<Cause> for Abort {
    fn from(cause: Cause) -> Self {
        if cause.kind == StoreErrorKind::Timeout { Self::Busy } else { Self::Failed(cause) }
    }
}

impl Writer {
    /// Works until no operation can be requested any more, then closes the file.
    pub(super) fn run(mut self) {
        loop {
            let mut tasks = Tasks::new();
            let waited = self.inbox.wait(self.upkeep.pause(), &mut tasks);
            match waited {
                Ok(()) => {
                    self.serve(tasks, Joining::Allowed);
                    let heavy = self.inbox.heavy();
                    self.serve(heavy, Joining::Allowed);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if self.may_write() {
                self.upkeep.run(waited.is_err(), &mut self.connection, &self.clock, &mut self.known);
            }
        }
        if self.may_write() {
            self.upkeep.before_close(&self.connection);
        }
        let may_write = self.may_write();
        keep_log_on_close(&self.connection, !may_write);
    }

    /// Returns whether the upkeep may write to the file: the disk has not failed, and the log that earlier
    /// processes have left is secured.
    fn may_write(&mut self) -> bool {
        if self.health.poisoned().is_err() {
            return false;
        }
        let secured = self.left_log.secure(&self.connection);
        secured.inspect_err(|cause| self.health.note(cause)).is_ok()
    }

    /// Runs all tasks in one transaction. If `joining` allows it, operations that arrive before COMMIT join
    /// it. If the transaction fails for a reason that may lie with one task (a full disk), each task runs in
    /// a separate transaction, so that a small delete does not fail because of a large put. A task for which
    /// the file is full runs once more, and saves pages.
    fn serve(&mut self, mut tasks: Tasks, joining: Joining) {
        if let Err(cause) = self.health.poisoned() {
            return fail_all(tasks, &cause);
        }
        self.upkeep.before_transaction(&self.connection);
        match self.try_until_deadline(&mut tasks, joining) {
            Ok(()) => tasks.into_iter().for_each(|task| task.answer()),
            Err(cause) => {
                self.health.note(&cause);
                let can_save = joining != Joining::Saving && tasks.iter().any(|task| !task.adds());
                if cause.is_fatal() || cause.ambiguous {
                    fail_all(tasks, &cause);
                } else if tasks.len() > 1 {
                    tasks.into_iter().for_each(|task| self.serve(vec![task], Joining::Exclusive));
                } else if cause.kind == StoreErrorKind::Full && can_save {
                    if std::mem::take(&mut self.lacks_room) {
                        self.upkeep.make_room(&self.connection);
                    }
                    self.serve(tasks, Joining::Saving);
                } else {
                    fail_all(tasks, &cause);
                }
            }
        }
    }

    /// Tries to get the write lock; fails and removes tasks that have waited for it too long. An attempt
    /// serves only callers that still wait, since a renewal made after its caller has given up would leave a
    /// receipt that no lease has.
    fn try_until_deadline(&mut self, tasks: &mut Tasks, joining: Joining) -> Result<(), Cause> {
        let mut pause = FIRST_PAUSE;
        loop {
            tasks.retain(|task| !task.is_abandoned());
            if tasks.is_empty() {
                return Ok(());
            }
            match self.transact(tasks, joining) {
                Ok(Finished { arrived, known, moved, .. }) => {
                    self.inbox.lock_was_free();
                    self.known = known;
                    self.clock.leases_were_moved(moved);
                    self.notifiers.notify(&arrived);
                    return Ok(());
                }
                Err(Abort::Failed(cause)) => return Err(cause),
                Err(Abort::Busy) => {}
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(MAX_PAUSE);
            self.expire(tasks, joining);
        }
    }

    fn expire(&self, tasks: &mut Tasks, joining: Joining) {
        let now = Instant::now();
        let expired = |task: &mut Box<dyn Work>| task.kept_waiting(now) >= self.busy_timeout;
        let mut failed: Tasks = tasks.extract_if(.., expired).collect();
        // Heavy tasks run after light ones, which may keep arriving, so they expire here too.
        failed.extend(self.inbox.take_heavy(expired));
        if !failed.is_empty() {
            let detail = format!(
                "the file's write lock was not free for {:?}, and the operation was not applied: {}",
                self.busy_timeout,
                lock_is_held(self.files.database())
            );
            fail_all(failed, &Cause::new(StoreErrorKind::Timeout, detail));
        }
        // Tasks that arrive now have separate deadlines.
        if joining == Joining::Allowed {
            self.inbox.gather(tasks);
        }
    }

    /// Runs the tasks in one transaction. After a failed transaction nothing is known of the file: its commit
    /// may have happened.
    fn transact(&mut self, tasks: &mut Tasks, joining: Joining) -> Result<Finished, Abort> {
        self.left_log.secure(&self.connection).map_err(Abort::from)?;
        match self.connection.prepare_cached("BEGIN IMMEDIATE").and_then(|mut begin| begin.execute([])) {
            Ok(_) => {}
            Err(error) if is_busy(&error) => return Err(Abort::Busy),
            Err(error) => return Err(Abort::Failed(from_sql(error))),
        }
        let known = std::mem::take(&mut self.known);
        let free = self.upkeep.space.free_pages(&self.connection);
        let begun = Batch::begin(&self.connection, &self.clock, known);
        let applied = match begun.and_then(|batch| free.map(|free| (batch, free)).map_err(from_sql)) {
            Ok((batch, free)) => self.apply(batch, tasks, joining).map(|finished| (finished, free)),
            Err(cause) => {
                self.roll_back();
                return Err(Abort::Failed(cause));
            }
        };
        match applied {
            Ok((finished, free)) if finished.changed => {
                self.require_reserve(&finished, free)?;
                self.commit().map(|()| finished)
            }
            Ok((finished, _)) => {
                self.roll_back();
                Ok(finished)
            }
            Err(error) => {
                self.roll_back();
                Err(if is_busy(&error) { Abort::Busy } else { Abort::Failed(from_sql(error)) })
            }
        }
    }

    /// Rolls back a transaction that would take pages reserved for work on existing messages.
    fn require_reserve(&self, finished: &Finished, free: i64) -> Result<(), Abort> {
        let has_reserve = match finished.reserve {
            Reserve::Nothing => Ok(true),
            part => self.upkeep.space.has_reserve(&self.connection, part, free),
        };
        let full = || rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_FULL), None);
        let kept = has_reserve.and_then(|has_reserve| if has_reserve { Ok(()) } else { Err(full()) });
        kept.map_err(|error| {
            self.roll_back();
            Abort::Failed(from_sql(error))
        })
    }

    fn apply(&self, mut batch: Batch<'_>, tasks: &mut Tasks, joining: Joining) -> rusqlite::Result<Finished> {
        let mut applied = 0;
        if joining == Joining::Saving {
            batch.save_pages();
        }
        loop {
            for task in &mut tasks[applied..] {
                task.apply(&mut batch)?;
            }
            batch.insert_pending()?;
            applied = tasks.len();
            // Operations that arrived during the transaction need no separate sync. Many of them were
            // requested after the last answer.
            let is_served = batch.has_visible() && try_again(tasks, &mut batch)?;
            if joining != Joining::Allowed {
                return batch.finish();
            }
            // A get requested now leases messages in the transaction that makes them visible.
            let is_awaited = batch.wake(|queue| !is_served && self.notifiers.wake(queue));
            let is_joined =
                self.inbox.gather(tasks) || is_awaited && self.inbox.wait(GET_WAIT, tasks).is_ok();
            if !is_joined {
                return batch.finish();
            }
            batch.refresh_time(&self.clock)?;
        }
    }

    fn commit(&mut self) -> Result<(), Abort> {
        self.lacks_room = false;
        let error = match self.connection.prepare_cached("COMMIT").and_then(|mut commit| commit.execute([])) {
            Ok(_) => return self.files.check().map_err(Abort::Failed),
            Err(error) => error,
        };
        self.roll_back();
        if is_busy(&error) {
            return Err(Abort::Busy);
        }
        // A transaction that found no room was not committed. After any other failure the outcome is unknown:
        // the frames of the commit may be in the file, and a recovery may find them.
        let full = error.sqlite_error_code() == Some(ErrorCode::DiskFull);
        self.lacks_room = full;
        Err(Abort::Failed(from_sql(error).ambiguous(!full)))
    }

    fn roll_back(&self) {
        if !self.connection.is_autocommit()
            && let Err(error) = self.connection.execute_batch("ROLLBACK")
        {
            self.health.note(&from_sql(error));
        }
    }
}

/// Applies tasks again that found nothing before messages arrived in their transaction. Returns whether any
/// of them has found messages.
fn try_again(tasks: &mut [Box<dyn Work>], batch: &mut Batch<'_>) -> rusqlite::Result<bool> {
    let mut is_served = false;
    for task in tasks.iter_mut().filter(|task| task.is_unmet() && !task.is_abandoned()) {
        task.apply(batch)?;
        is_served |= !task.is_unmet();
    }
    Ok(is_served)
}

fn fail_all(tasks: Tasks, cause: &Cause) {
    tasks.into_iter().for_each(|task| task.fail(cause));
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

#[cfg(test)]
mod tests;
