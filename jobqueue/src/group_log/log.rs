//! The log of a set of FIFO groups. Plain data, without I/O; the [module](super) describes the protocol.

mod cancellation;
mod forget;
mod overdue;
mod pages;
#[cfg(test)]
mod tests;
mod turn;

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::entry::{EndState, EndedJob, Entry, EntryRef, EntryState, KeyHash, MAX_NONCES, Turn};
use crate::clock::unix_millis;
use crate::storage::{LONGEST_PUT, PUT_LIST_PERIOD};
use crate::undelivered::SKEW;

pub(super) use cancellation::Abandoned;
pub(super) use forget::FormerEntries;
pub(crate) use overdue::OverdueWait;
pub(super) use pages::AnnounceRefusal;
use pages::PageState;

/// The maximum number of entries in a log. A key has few of them there.
pub(super) const MAX_ENTRIES: usize = 20_000;
/// The number of ended jobs that a log remembers.
const MAX_ENDED: usize = 256;
/// The number of skipped entries that a log keeps.
const MAX_SKIPPED: usize = 256;
/// The time after which an announcement counts as left by a dead sender, and is removed, whatever its key.
const DEAD_SENDER_AFTER: Duration = Duration::from_secs(3_600);
/// The time after which a send is reported as failed: no attempt begins later.
pub(crate) const SEND_BUDGET: Duration = Duration::from_secs(30);
/// The time that a sender has between announcing and confirming before the jobs behind it skip its entry. The
/// announcement ends and the last attempt for a list begins within the send budget, its last put at the end
/// of the period for a list, and that put is the longest; the rest is for the confirmation. A slower sender
/// loses its position and nothing else; a list with several jobs of the key is not acknowledged.
pub(super) const SEND_PERIOD: Duration =
    SEND_BUDGET.saturating_add(PUT_LIST_PERIOD).saturating_add(LONGEST_PUT).saturating_add(LOG_WRITES);
pub(super) const LOG_WRITES: Duration = Duration::from_secs(20);
/// The time that a cancellation may take before others complete it.
pub(super) const CANCELLATION_PERIOD: Duration = Duration::from_secs(45);
/// The time that a message may stay away beyond its delay before the jobs behind it call it overdue.
pub(crate) const GRACE: Duration = SKEW;

/// A point in time as logs store it: milliseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Millis(pub(super) u64);

impl From<SystemTime> for Millis {
    fn from(time: SystemTime) -> Self {
        Self(unix_millis(time))
    }
}

impl Millis {
    pub(crate) fn after(self, wait: Duration) -> u64 {
        self.0.saturating_add(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX))
    }

    pub(super) fn since(self, earlier: u64) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier))
    }
}

/// The result of announcing a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Announced {
    /// The job has a position; its message must be stored now.
    Entered,
    /// The job was completed already: a message of it would be a duplicate.
    AlreadyDone,
    Full,
}

/// The result of confirming that the message of an announced job is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Confirmed {
    /// The job has its position, or has ended since.
    Acknowledged,
    /// The log no longer knows the message: the queue was cleared, or the end of the job is forgotten.
    Gone,
}

/// The position of a delivery in its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Position {
    /// The job is the first of its group: the handler may run.
    First,
    /// The job is behind this number of other jobs. `overdue`: the message of the first of them is overdue.
    Behind { ahead: usize, overdue: bool },
    /// The job is the first of its group, but another message of it has the turn.
    OtherCopy { overdue: bool },
    /// The job was completed or cancelled: this message does not run.
    Ended(EndState),
    /// A newer delivery of the message has the turn.
    Superseded,
    /// The message has no position, because this number of other jobs of its group have one.
    Crowded { ahead: usize },
    /// The message has no position, and the log is full.
    Full,
}

/// The result of beginning to cancel a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CancelBegun {
    /// The entry is marked, if there is one. `copies`: several messages of the job may exist.
    /// `may_be_deleted`: an earlier canceller may have deleted the message.
    Marked { copies: bool, may_be_deleted: bool },
    /// An earlier canceller, or a process that completed its cancellation, has cancelled the job.
    Cancelled,
    /// The message was received, or the job has ended.
    TooLate,
    /// The job was sent again, and it is not known whether a worker has received the first message.
    Unknown,
}

/// The end of a cancellation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CancelEnd {
    /// No message of the job runs while the log remembers the cancellation, except those that were sent since
    /// it began.
    Cancelled,
    /// A worker has received the message, or the job has ended.
    TooLate,
    /// Another process has taken the cancellation over, or the cancellation is over and the job was sent
    /// again.
    Unknown,
}

/// The entries of some groups, in the order of their announcements: the head of a log, or a page of one
/// group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GroupLog {
    entries: Vec<Entry>,
    /// The jobs that have ended, the latest last.
    #[serde(default)]
    ended: Vec<EndedJob>,
    /// Present only in a page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    page: Option<PageState>,
    /// True if the log was changed since it was read.
    #[serde(skip)]
    changed: bool,
}

impl GroupLog {
    /// Returns all entries in their order.
    pub(super) fn into_entries(self) -> Vec<Entry> {
        self.entries
    }

    /// Returns whether the log was changed since it was read, and resets the flag.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Gives a job a position at the tail of its group, unless it has one or was completed.
    pub(super) fn announce(&mut self, entry: &EntryRef, nonce: u64, now: Millis) -> Announced {
        match self.ended(entry) {
            Some(EndState::Done) => return Announced::AlreadyDone,
            // The job is sent again after its cancellation.
            Some(EndState::Cancelled) => self.forget_ended(entry),
            Some(EndState::DeadLettered) | None => {}
        }
        let due = now.after(SEND_PERIOD);
        if let Some(at) = self.find(entry) {
            let found = &mut self.entries[at];
            if found.nonces.contains(&nonce) {
                return Announced::Entered;
            }
            found.send_again(&[nonce], due);
            self.changed = true;
            if self.entries[at].state == EntryState::Skipped {
                self.move_to_tail(at, EntryState::Announced);
            }
            return Announced::Entered;
        }
        // Removes the announcements of dead senders. If such a message arrives after all, it joins at the
        // tail.
        let keep_for = if self.entries.len() < MAX_ENTRIES { DEAD_SENDER_AFTER } else { Duration::ZERO };
        self.entries.retain(|entry| entry.state != EntryState::Announced || now.since(entry.due) <= keep_for);
        if self.entries.len() >= MAX_ENTRIES {
            return Announced::Full;
        }
        let mut new = Entry::new(*entry, EntryState::Announced, due);
        new.nonces.push(nonce);
        self.push(new);
        Announced::Entered
    }

    /// Records that the message announced by `nonce` is certainly stored and becomes visible at `visible`.
    /// `single`: one request stored it, so that there is no second copy.
    pub(super) fn confirm(
        &mut self,
        entry: &EntryRef,
        nonce: u64,
        single: bool,
        visible: Millis,
    ) -> Confirmed {
        // After many sends of a job its entry has forgotten the first nonces: their messages are copies of a
        // stored message.
        let is_own = |at: &usize| {
            let found = &self.entries[*at];
            let forgets = found.nonces.len() == MAX_NONCES && found.state == EntryState::Stored;
            found.nonces.contains(&nonce) || forgets
        };
        let own = self.find(entry).filter(is_own);
        let Some(at) = own else {
            return if self.ended(entry).is_some() { Confirmed::Acknowledged } else { Confirmed::Gone };
        };
        let found = &mut self.entries[at];
        let visible = visible.after(GRACE);
        let due = found.due.max(visible);
        self.changed |= found.state != EntryState::Stored || !(single || found.copies) || due != found.due;
        (found.copies, found.due) = (found.copies || !single, due);
        if let Some(first) = &mut found.cancelled_first {
            (first.due, first.stored, self.changed) = (first.due.max(visible), true, true);
        }
        match found.state {
            EntryState::Skipped => self.move_to_tail(at, EntryState::Stored),
            _ => found.state = EntryState::Stored,
        }
        Confirmed::Acknowledged
    }

    /// Removes an announcement whose message is certainly not stored.
    pub(super) fn retract(&mut self, entry: &EntryRef, nonce: u64) {
        let Some(at) = self.find(entry) else { return };
        let found = &mut self.entries[at];
        let before = found.nonces.len();
        found.nonces.retain(|other| *other != nonce);
        self.changed |= found.nonces.len() != before;
        // The first message is the only one again, as before `send_again`.
        if let [first] = found.nonces.as_slice()
            && found.state == EntryState::Stored
            && found.turn == Some(Turn::assumed(*first))
        {
            (found.turn, found.copies) = (None, false);
            found.cancelling =
                found.cancelled_first.take().map(|first| first.mark).or(found.cancelling.take());
        }
        if found.nonces.is_empty() && before > 0 && found.state != EntryState::Stored {
            self.entries.remove(at);
        }
    }

    fn skip(&mut self, at: usize) {
        let entry = &mut self.entries[at];
        entry.forget_mark();
        (entry.state, entry.overdue, self.changed) = (EntryState::Skipped, None, true);
    }

    /// Removes the oldest skipped entries beyond the limit. If their messages arrive, they join at the tail.
    fn trim_skipped(&mut self) {
        let is_skipped = |entry: &Entry| entry.state == EntryState::Skipped;
        let mut excess =
            self.entries.iter().filter(|entry| is_skipped(entry)).count().saturating_sub(MAX_SKIPPED);
        if excess > 0 {
            self.entries.retain(|entry| {
                let forget = excess > 0 && is_skipped(entry);
                excess -= usize::from(forget);
                !forget
            });
        }
    }

    fn remove(&mut self, at: usize, now: Millis) {
        let Entry { key, .. } = self.entries.remove(at);
        self.changed = true;
        self.expect_first(key, now);
    }

    /// Gives the message of the first entry of a group its full time to arrive, from now on. A message that
    /// is marked as overdue already had its time.
    fn expect_first(&mut self, key: KeyHash, now: Millis) {
        let mut group = self.entries.iter_mut();
        let first = group.find(|other| other.key == key && other.state != EntryState::Skipped);
        if let Some(first) =
            first.filter(|first| first.state == EntryState::Stored && first.overdue.is_none())
        {
            first.due = first.due.max(now.after(GRACE));
        }
    }

    fn move_to_tail(&mut self, at: usize, state: EntryState) {
        let mut entry = self.entries.remove(at);
        (entry.state, entry.turn) = (state, None);
        self.push(entry);
    }

    fn push(&mut self, entry: Entry) {
        self.entries.push(entry);
        self.changed = true;
    }

    fn find(&self, entry: &EntryRef) -> Option<usize> {
        self.entries.iter().position(|other| other.is_of(entry))
    }

    pub(super) fn has(&self, key: KeyHash, job: KeyHash) -> bool {
        self.entries.iter().any(|other| other.job == job && other.key == key)
    }

    /// Returns the entries of a group that block it.
    fn group(&self, key: KeyHash) -> impl Iterator<Item = (usize, &Entry)> {
        let entries = self.entries.iter().enumerate();
        entries.filter(move |(_, other)| other.key == key && other.state != EntryState::Skipped)
    }

    /// Returns the first entry of a group before `at`, or `at` if there is none.
    fn head_of(&self, key: KeyHash, at: usize) -> usize {
        self.group(key).next().map_or(at, |(head, _)| head.min(at))
    }

    /// Returns the number of jobs of a group before `at`.
    fn jobs_before(&self, key: KeyHash, at: usize) -> usize {
        self.group(key).take_while(|(other, _)| *other < at).map(|(_, other)| other.jobs()).sum()
    }

    /// Returns whether the log remembers that a job is done.
    pub(super) fn is_done(&self, entry: &EntryRef) -> bool {
        self.ended(entry) == Some(EndState::Done)
    }

    fn ended(&self, entry: &EntryRef) -> Option<EndState> {
        self.ended.iter().rev().find(|ended| ended.0 == entry.job).map(|ended| ended.1)
    }

    fn forget_ended(&mut self, entry: &EntryRef) {
        self.ended.retain(|ended| ended.0 != entry.job);
        self.changed = true;
    }

    fn note_ended(&mut self, entry: &EntryRef, how: EndState) {
        // A done job stays done, whatever ends its other messages.
        if self.is_done(entry) || self.ended(entry) == Some(how) {
            return;
        }
        self.forget_ended(entry);
        self.ended.push(EndedJob(entry.job, how));
        let excess = self.ended.len().saturating_sub(MAX_ENDED);
        self.ended.drain(..excess);
    }
}
