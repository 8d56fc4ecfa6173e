//! The log of some FIFO groups. Plain data, without I/O; the [module](super) describes the protocol.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::entry::{Cancelling, Ended, Entry, EntryRef, How, Overdue, Short, State, Turn};
use crate::queue::Unreceived;

/// The maximum number of entries in a log.
pub(super) const MAX_ENTRIES: usize = 20_000;
/// The number of ended jobs that a log remembers.
const MAX_ENDED: usize = 256;
/// The number of skipped entries that a log keeps.
const MAX_SKIPPED: usize = 256;
/// The time that a sender has between announcing and confirming before the jobs behind it pass it by. It is longer
/// than a send is retried. A slower sender loses its position and nothing else.
pub(super) const SEND_PERIOD: Duration = Duration::from_secs(90);
/// The time that a cancellation may take before others complete it.
const CANCELLATION_PERIOD: Duration = Duration::from_secs(45);
/// The time that a message may stay away beyond its delay before the jobs behind it call it overdue.
pub(super) const GRACE: Duration = Duration::from_secs(300);

/// A point in time as logs store it: milliseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Millis(pub(super) u64);

impl From<SystemTime> for Millis {
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}

impl Millis {
    pub(super) fn after(self, wait: Duration) -> u64 {
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
    /// The log is full.
    Full,
}

/// The result of confirming that the message of an announced job is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Confirmed {
    /// The job has its position, or has ended in the meantime.
    Acknowledged,
    /// The log was cleared in the meantime.
    Gone,
}

/// The position of a delivery in its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Position {
    /// The first of its group: the handler may run.
    First,
    /// Behind this number of other jobs. `overdue`: the message of the first of them is overdue.
    Behind { ahead: usize, overdue: bool },
    /// The job is the first of its group, but another message of it has the turn.
    OtherCopy { overdue: bool },
    /// The job was completed or cancelled: this message is a duplicate.
    Ended,
    /// A newer delivery of the message has the turn.
    Superseded,
    /// The message has no position, and the log is full.
    Full,
}

/// The result of beginning to cancel a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CancelBegun {
    /// The entry is marked. `copies`: several messages of the job may exist.
    Marked { copies: bool },
    /// Somebody has received the message, or the job has ended.
    TooLate,
}

/// A cancellation whose initiator crashed.
#[derive(Debug, Clone)]
pub(super) struct Abandoned {
    entry: EntryRef,
    nonce: u64,
    pub(super) message: Unreceived,
}

/// The result of deleting the message of a job that is being cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// The message is deleted, and nobody had received it.
    Deleted,
    /// Somebody has received the message.
    Received,
    /// The message is gone or leased; the storage does not say which.
    Unknown,
}

/// The entries of some groups, in the order of their announcements.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GroupLog {
    entries: Vec<Entry>,
    /// The jobs that have ended, the latest last.
    #[serde(default)]
    ended: Vec<Ended>,
    /// True if the log was changed since it was read.
    #[serde(skip)]
    changed: bool,
}

impl GroupLog {
    /// Returns whether the log was changed since it was read, and resets the flag.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Gives a job a position at the tail of its group, unless it has one or was completed.
    pub(super) fn announce(&mut self, entry: &EntryRef, nonce: u64, now: Millis) -> Announced {
        match self.ended(entry) {
            Some(How::Done) => return Announced::AlreadyDone,
            // The job is sent again after its cancellation.
            Some(How::Cancelled) => self.forget_ended(entry),
            Some(How::DeadLettered) | None => {}
        }
        let due = now.after(SEND_PERIOD);
        if let Some(at) = self.find(entry) {
            let found = &mut self.entries[at];
            if found.nonces.contains(&nonce) {
                return Announced::Entered;
            }
            // The job is sent again: there may be a second message of it.
            found.nonces.push(nonce);
            (found.copies, found.cancelling, found.due) = (true, None, found.due.max(due));
            self.changed = true;
            if self.entries[at].state == State::Skipped {
                self.move_to_tail(at, State::Announced);
            }
            return Announced::Entered;
        }
        if self.entries.len() >= MAX_ENTRIES {
            return Announced::Full;
        }
        let mut new = Entry::new(*entry, State::Announced, due);
        new.nonces.push(nonce);
        self.push(new);
        Announced::Entered
    }

    /// Records that the message that `nonce` announced is certainly stored and becomes visible at `visible`.
    /// `single`: one request stored it, so that there is no second copy.
    pub(super) fn confirm(
        &mut self,
        entry: &EntryRef,
        nonce: u64,
        single: bool,
        visible: Millis,
    ) -> Confirmed {
        let own = self.find(entry).filter(|at| self.entries[*at].nonces.contains(&nonce));
        let Some(at) = own else {
            return if self.ended(entry).is_some() { Confirmed::Acknowledged } else { Confirmed::Gone };
        };
        let found = &mut self.entries[at];
        let due = found.due.max(visible.after(GRACE));
        self.changed |= found.state != State::Stored || !(single || found.copies) || due != found.due;
        (found.copies, found.due) = (found.copies || !single, due);
        match found.state {
            State::Skipped => self.move_to_tail(at, State::Stored),
            State::Announced | State::Stored => found.state = State::Stored,
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
        if found.nonces.is_empty() && before > 0 && found.state != State::Stored {
            self.entries.remove(at);
        }
    }

    /// Returns the position of a delivery if the log tells it as it is; `None` if a change or a newer log is needed.
    pub(super) fn position(&self, entry: &EntryRef, turn: Turn, now: Millis) -> Option<Position> {
        let at = self.find(entry)?;
        let found = &self.entries[at];
        let (head, ahead) = self.head_of(at);
        if found.state == State::Skipped || self.is_passable(head, now) || self.is_abandoned(head, now) {
            return None;
        }
        if head != at {
            return Some(Position::Behind { ahead, overdue: self.entries[head].due < now.0 });
        }
        let alone = found.state == State::Stored && found.is_alone(turn) && found.turn.is_none();
        let undisputed = alone && found.cancelling.is_none() && found.overdue.is_none() && found.due >= now.0;
        (undisputed && turn.delivery <= 1).then_some(Position::First)
    }

    /// Returns the position of a delivery. Adds an entry if there is none, and gives the delivery the turn if it is
    /// the first.
    pub(super) fn stand(&mut self, entry: &EntryRef, turn: Turn, now: Millis) -> Position {
        match self.find(entry) {
            Some(at) if self.entries[at].state == State::Skipped => self.move_to_tail(at, State::Stored),
            Some(at) => self.skip_passable(at, now),
            None if matches!(self.ended(entry), Some(How::Done | How::Cancelled)) => return Position::Ended,
            None if self.entries.len() >= MAX_ENTRIES => return Position::Full,
            None => self.join(entry, now),
        }
        let Some(at) = self.find(entry) else { return Position::Full };
        let (head, ahead) = self.head_of(at);
        if head == at {
            return self.give_turn(at, turn, now);
        }
        Position::Behind { ahead, overdue: self.entries[head].due < now.0 }
    }

    /// Presses an overdue message that the delivery waits for: the message of the head, or the copy that has the
    /// turn. Skips it if deliveries have pressed for `patience`, and returns true if so.
    pub(super) fn press(&mut self, entry: &EntryRef, turn: Turn, patience: Duration, now: Millis) -> bool {
        let Some(at) = self.find(entry) else { return false };
        let (head, _) = self.head_of(at);
        let found = &mut self.entries[head];
        let own = head == at && found.turn.is_none_or(|held| held.copy == turn.copy);
        if own || found.due >= now.0 {
            return false;
        }
        match &mut found.overdue {
            // No delivery has pressed for long, so that the message had no chance to arrive: start again.
            Some(overdue) if now.since(overdue.last) > patience => {
                *overdue = Overdue { since: now.0, last: now.0 };
            }
            Some(overdue) if now.since(overdue.since) >= patience && head == at => {
                (found.turn, found.overdue, found.due) = (None, None, now.after(GRACE));
                self.changed = true;
                return true;
            }
            Some(overdue) if now.since(overdue.since) >= patience => {
                let key = found.key;
                self.skip(head);
                self.trim_skipped();
                self.expect_first(key, now);
                return true;
            }
            Some(overdue) if now.since(overdue.last) < patience / 8 => return false,
            Some(overdue) => overdue.last = now.0,
            None => found.overdue = Some(Overdue { since: now.0, last: now.0 }),
        }
        self.changed = true;
        false
    }

    /// Records that the message exists and may stay away until `due`.
    pub(super) fn extend(&mut self, entry: &EntryRef, due: u64) {
        let Some(at) = self.find(entry) else { return };
        let found = &mut self.entries[at];
        if found.due < due || found.overdue.is_some() {
            (found.due, found.overdue, self.changed) = (found.due.max(due), None, true);
        }
    }

    /// Records that the job has ended. Returns false if another delivery has its turn.
    pub(super) fn end(&mut self, entry: &EntryRef, turn: Turn, how: How, now: Millis) -> bool {
        if let Some(at) = self.find(entry) {
            match self.entries[at].turn {
                // A copy without the turn does not end the job, but it may still be dead-lettered.
                Some(held) if held.copy != turn.copy => return how == How::DeadLettered,
                Some(held) if held.delivery > turn.delivery => return false,
                _ => self.remove(at, now),
            }
        }
        self.note_ended(entry, how);
        true
    }

    /// Marks the job as being cancelled: the caller is about to delete this message, which nobody has received.
    pub(super) fn begin_cancel(
        &mut self,
        entry: &EntryRef,
        nonce: u64,
        message: &Unreceived,
        now: Millis,
    ) -> CancelBegun {
        let Some(at) = self.find(entry) else { return CancelBegun::TooLate };
        let found = &mut self.entries[at];
        if found.turn.is_some() {
            return CancelBegun::TooLate;
        }
        let until = now.after(CANCELLATION_PERIOD);
        if found.cancelling.as_ref().is_none_or(|other| other.nonce != nonce) {
            found.cancelling = Some(Cancelling { nonce, until, message: message.clone() });
            self.changed = true;
        }
        CancelBegun::Marked { copies: found.copies || found.state != State::Stored }
    }

    /// Ends the cancellation `nonce`. Returns true if the job is cancelled, because nobody received it in the
    /// meantime.
    pub(super) fn end_cancel(&mut self, entry: &EntryRef, nonce: u64, deleted: bool, now: Millis) -> bool {
        let Some(at) = self.find(entry) else { return deleted && self.ended(entry) != Some(How::Done) };
        let found = &mut self.entries[at];
        let own = found.cancelling.as_ref().is_some_and(|own| own.nonce == nonce);
        // With a single message, its deletion proves that; with several, the mark does, which a received copy would
        // have removed.
        let single = !found.copies && found.turn.is_none();
        if deleted && (own || single) {
            self.remove(at, now);
            self.note_ended(entry, How::Cancelled);
            return true;
        }
        if own {
            (found.cancelling, self.changed) = (None, true);
        }
        false
    }

    /// Returns the cancellation of the job that `entry` waits for if its initiator crashed.
    pub(super) fn abandoned(&self, entry: &EntryRef, now: Millis) -> Option<Abandoned> {
        let (head, _) = self.head_of(self.find(entry)?);
        let first = &self.entries[head];
        let Cancelling { nonce, message, .. } = first.cancelling.clone()?;
        let entry = EntryRef { job: first.job, ..*entry };
        self.is_abandoned(head, now).then_some(Abandoned { entry, nonce, message })
    }

    /// Completes an abandoned cancellation, now that the fate of its message is known.
    pub(super) fn finish_abandoned(&mut self, abandoned: &Abandoned, fate: Fate, now: Millis) {
        let own = |at: &usize| {
            self.entries[*at].cancelling.as_ref().is_some_and(|own| own.nonce == abandoned.nonce)
        };
        let Some(at) = self.find(&abandoned.entry).filter(own) else { return };
        self.changed = true;
        match fate {
            Fate::Deleted => {
                self.remove(at, now);
                self.note_ended(&abandoned.entry, How::Cancelled);
            }
            Fate::Received => {
                let found = &mut self.entries[at];
                (found.cancelling, found.due) = (None, found.due.max(now.after(GRACE)));
            }
            Fate::Unknown => {
                self.skip(at);
                self.trim_skipped();
                self.expect_first(abandoned.entry.key, now);
            }
        }
    }

    /// Returns whether a job is the first of its group, or has no position there.
    pub(super) fn is_first(&self, key: Short, job: Short) -> bool {
        let mut group = self.entries.iter().filter(|other| other.key == key && other.state != State::Skipped);
        group.next().is_none_or(|first| first.job == job)
    }

    fn join(&mut self, entry: &EntryRef, now: Millis) {
        let mut new = Entry::new(*entry, State::Stored, now.after(GRACE));
        new.copies = true;
        self.push(new);
    }

    fn give_turn(&mut self, at: usize, turn: Turn, now: Millis) -> Position {
        let found = &mut self.entries[at];
        match found.turn {
            Some(held) if held.copy != turn.copy => {
                return Position::OtherCopy { overdue: found.due < now.0 };
            }
            Some(held) if held.delivery > turn.delivery => return Position::Superseded,
            _ => {}
        }
        // A single message has only one first delivery: the log need not record its turn.
        let disputed = !found.is_alone(turn) || found.state != State::Stored || turn.delivery > 1;
        if disputed && found.turn != Some(turn) {
            (found.turn, found.due, self.changed) = (Some(turn), found.due.max(now.after(GRACE)), true);
        }
        // The message is here: it can neither be cancelled nor be overdue any more.
        let noticed = found.cancelling.is_some() || found.overdue.is_some() || found.due < now.0;
        if found.state != State::Stored || noticed {
            (found.state, found.cancelling, found.overdue) = (State::Stored, None, None);
            (found.due, self.changed) = (found.due.max(now.after(GRACE)), true);
        }
        Position::First
    }

    /// Returns whether the jobs behind an entry may pass it by, because its sender has died.
    fn is_passable(&self, at: usize, now: Millis) -> bool {
        let entry = &self.entries[at];
        entry.state == State::Announced && entry.due < now.0
    }

    /// Returns whether the process that was cancelling an entry has died.
    fn is_abandoned(&self, at: usize, now: Millis) -> bool {
        self.entries[at].cancelling.as_ref().is_some_and(|cancelling| cancelling.until <= now.0)
    }

    /// Skips the entries before `at` whose senders have died, up to the first that is alive.
    fn skip_passable(&mut self, at: usize, now: Millis) {
        let (key, mut skipped) = (self.entries[at].key, false);
        for before in 0..at {
            if self.entries[before].key != key || self.entries[before].state == State::Skipped {
                continue;
            }
            if !self.is_passable(before, now) {
                break;
            }
            self.skip(before);
            skipped = true;
        }
        if skipped {
            self.trim_skipped();
            self.expect_first(key, now);
        }
    }

    fn skip(&mut self, at: usize) {
        let entry = &mut self.entries[at];
        (entry.state, entry.cancelling, entry.overdue, self.changed) = (State::Skipped, None, None, true);
    }

    /// Removes the oldest skipped entries beyond the limit. If their messages arrive, they join at the tail.
    fn trim_skipped(&mut self) {
        let is_skipped = |entry: &Entry| entry.state == State::Skipped;
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

    /// Removes an entry.
    fn remove(&mut self, at: usize, now: Millis) {
        let Entry { key, .. } = self.entries.remove(at);
        self.changed = true;
        self.expect_first(key, now);
    }

    /// Gives the message of the first entry of a group its full time to arrive, from now on.
    fn expect_first(&mut self, key: Short, now: Millis) {
        let mut group = self.entries.iter_mut();
        let first = group.find(|other| other.key == key && other.state != State::Skipped);
        if let Some(first) = first.filter(|first| first.state == State::Stored) {
            first.due = first.due.max(now.after(GRACE));
        }
    }

    fn move_to_tail(&mut self, at: usize, state: State) {
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

    /// Returns the first entry of the group of `at`, and the number of entries of that group before `at`.
    fn head_of(&self, at: usize) -> (usize, usize) {
        let key = self.entries[at].key;
        let before = self.entries[..at].iter().enumerate();
        let mut before = before.filter(|(_, other)| other.key == key && other.state != State::Skipped);
        before.next().map_or((at, 0), |(head, _)| (head, 1 + before.count()))
    }

    fn ended(&self, entry: &EntryRef) -> Option<How> {
        self.ended.iter().rev().find(|ended| ended.0 == entry.job).map(|ended| ended.1)
    }

    fn forget_ended(&mut self, entry: &EntryRef) {
        self.ended.retain(|ended| ended.0 != entry.job);
        self.changed = true;
    }

    fn note_ended(&mut self, entry: &EntryRef, how: How) {
        if self.ended(entry) == Some(how) {
            return;
        }
        self.forget_ended(entry);
        self.ended.push(Ended(entry.job, how));
        let excess = self.ended.len().saturating_sub(MAX_ENDED);
        self.ended.drain(..excess);
    }
}

#[cfg(test)]
mod tests;
