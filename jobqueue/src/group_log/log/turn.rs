//! Gives deliveries their turn, and ends turns.

use std::time::Duration;

use super::{GRACE, GroupLog, MAX_ENTRIES, Millis, Position};
use crate::group_log::entry::{EndState, Entry, EntryRef, EntryState, KeyHash, PAGE, Turn};

/// The place of a job in a log.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    /// The index of the job's own entry, of the entry that stands for its page, or of the end.
    pub(super) index: usize,
    /// The number of jobs before it in the pages for which that entry stands.
    pub(super) ahead_in_pages: usize,
}

impl GroupLog {
    /// Returns the position of a delivery if this version of the log determines it; `None` if a change or a
    /// newer version is needed.
    pub(crate) fn position(&self, entry: &EntryRef, turn: Turn, now: Millis) -> Option<Position> {
        let Place { index: at, ahead_in_pages } = self.place(entry);
        let (head, ahead) = (self.head_of(entry.key, at), self.jobs_before(entry.key, at));
        let Some(found) = self.entries.get(at) else {
            let waits = !matches!(self.ended(entry), Some(EndState::Done | EndState::Cancelled))
                && self.is_crowded(entry.key)
                && self.entries[head].due >= now.0
                && !self.is_abandoned(head, now);
            return waits.then_some(Position::Crowded { ahead });
        };
        if found.state == EntryState::Skipped
            || self.is_sender_dead(head, now)
            || self.is_abandoned(head, now)
        {
            return None;
        }
        if head != at || found.state == EntryState::Paged {
            let (ahead, overdue) = (ahead + ahead_in_pages, self.entries[head].due < now.0);
            let is_noted = match found.state {
                EntryState::Paged => found.overdue.is_none_or(|mark| mark.has_seen(entry.page)),
                _ => found.overdue.is_none() && !found.needs_record(turn),
            };
            return is_noted.then_some(Position::Behind { ahead, overdue });
        }
        let alone = found.state == EntryState::Stored && found.is_alone(turn) && !found.needs_record(turn);
        let needs_no_change =
            alone && found.cancelling.is_none() && found.overdue.is_none() && found.due >= now.0;
        // An outdated log does not show whether a delivery with the same number has ended the job.
        let has_turn = found.turn.map_or(turn.lock == 0, |held| held == turn);
        (needs_no_change && has_turn).then_some(Position::First)
    }

    /// Returns the position of a delivery. Adds an entry if there is none, and gives the delivery the turn if
    /// it is the first.
    pub(crate) fn claim_position(&mut self, entry: &EntryRef, turn: Turn, now: Millis) -> Position {
        match self.find(entry) {
            Some(at) if self.entries[at].state == EntryState::Skipped => {
                self.move_to_tail(at, EntryState::Stored)
            }
            Some(at) => self.skip_dead_senders(entry.key, at, now),
            // The page decides, even about a job that is done: the entry there must end too.
            None if self.paged(entry).is_some() => self.skip_dead_senders(entry.key, self.entries.len(), now),
            None => match self.ended(entry) {
                Some(end @ (EndState::Done | EndState::Cancelled)) => return Position::Ended(end),
                Some(EndState::DeadLettered) | None if self.is_crowded(entry.key) => {
                    self.skip_dead_senders(entry.key, self.entries.len(), now);
                }
                _ if self.entries.len() >= MAX_ENTRIES => return Position::Full,
                _ => self.join(entry, now),
            },
        }
        let Place { index: at, ahead_in_pages } = self.place(entry);
        let (head, ahead) = (self.head_of(entry.key, at), self.jobs_before(entry.key, at));
        if let Some(found) = self.entries.get_mut(at).filter(|found| found.is_of(entry)) {
            if head == at {
                return self.give_turn(at, turn, now);
            }
            // The message has arrived, so it is not overdue.
            if found.overdue.is_some() {
                let held = found.turn.unwrap_or(turn);
                self.extend(entry, held, now.after(GRACE));
            } else if found.needs_record(turn) {
                (found.turn, self.changed) = (Some(turn), true);
            }
        }
        self.note_page(entry, at);
        let overdue = self.entries.get(head).is_some_and(|first| first.due < now.0);
        if at == self.entries.len() && !overdue {
            return Position::Crowded { ahead };
        }
        Position::Behind { ahead: ahead + ahead_in_pages, overdue }
    }

    /// Returns the place of a job: its own entry, the entry that stands for its page, or the end of the log.
    pub(super) fn place(&self, entry: &EntryRef) -> Place {
        let own = self.find(entry).map(|index| Place { index, ahead_in_pages: 0 });
        let end = Place { index: self.entries.len(), ahead_in_pages: 0 };
        own.or_else(|| self.paged(entry)).unwrap_or(end)
    }

    /// Returns whether a message without a position must wait until its group has fewer entries in the head.
    fn is_crowded(&self, key: KeyHash) -> bool {
        self.group(key).nth(2 * PAGE - 1).is_some()
    }

    /// Records that a delivery has the message, and that the message may stay away until `due`. The job can
    /// no longer be cancelled. Returns false if the delivery has lost its turn to the jobs behind it, to
    /// another copy or to a newer delivery.
    pub(crate) fn extend(&mut self, entry: &EntryRef, turn: Turn, due: u64) -> bool {
        let Some(at) = self.find(entry) else { return true };
        let found = &mut self.entries[at];
        let replaces = |held: Turn| held.copy != turn.copy || held.is_after(turn);
        if found.state == EntryState::Skipped || found.turn.is_some_and(replaces) {
            return false;
        }
        if found.due < due || found.overdue.is_some() || found.mark().is_some() {
            (found.due, found.overdue) = (found.due.max(due), None);
            found.forget_mark();
            found.turn.get_or_insert(turn);
            self.changed = true;
        }
        true
    }

    /// Returns how long the message may stay away before it counts as overdue; `None` if it has no entry.
    pub(crate) fn time_left(&self, entry: &EntryRef, now: Millis) -> Option<Duration> {
        self.find(entry).map(|at| Millis(self.entries[at].due).since(now.0))
    }

    /// Returns whether no other message of the job and no newer delivery has the turn, or may run without a
    /// record of it.
    pub(crate) fn may_end(&self, entry: &EntryRef, turn: Turn) -> bool {
        let found = self.find(entry).map(|at| &self.entries[at]);
        let Some(found) = found.filter(|found| found.state != EntryState::Skipped) else { return true };
        match (found.turn, found.nonces.as_slice()) {
            (Some(held), _) => held.copy == turn.copy && !held.is_after(turn),
            (None, [single]) if found.state == EntryState::Stored && !found.copies => *single == turn.copy,
            (None, _) => true,
        }
    }

    /// Records that the job has ended. Returns false if another delivery has the job's turn.
    pub(crate) fn end(&mut self, entry: &EntryRef, turn: Turn, how: EndState, now: Millis) -> bool {
        if let Some(at) = self.find(entry) {
            match self.entries[at].turn {
                // A copy without the turn does not end the job, but the copy itself may still be
                // dead-lettered.
                Some(held) if held.copy != turn.copy => return how == EndState::DeadLettered,
                Some(held) if held.is_after(turn) => return false,
                // Nor does a copy of a message that runs without a record of its turn.
                None if !self.may_end(entry, turn) => return how == EndState::DeadLettered,
                _ => self.remove(at, now),
            }
        } else if self.ended(entry) == Some(EndState::Cancelled) {
            // A copy of a cancelled job is discarded.
            return true;
        }
        self.note_ended(entry, how);
        true
    }

    /// Returns whether a job is the first of its group, or has no position there.
    pub(crate) fn is_first(&self, key: KeyHash, job: KeyHash) -> bool {
        self.first(key).is_none_or(|first| first == job)
    }

    pub(crate) fn first(&self, key: KeyHash) -> Option<KeyHash> {
        self.group(key).next().map(|(_, first)| first.job)
    }

    fn join(&mut self, entry: &EntryRef, now: Millis) {
        let mut new = Entry::new(*entry, EntryState::Stored, now.after(GRACE));
        new.copies = true;
        self.push(new);
    }

    fn give_turn(&mut self, at: usize, turn: Turn, now: Millis) -> Position {
        let found = &mut self.entries[at];
        // This message belongs to a send that the log does not remember. The message that the log knows may
        // run without a record of its turn.
        if let (None, false, EntryState::Stored, [copy]) =
            (found.turn, found.copies, found.state, found.nonces.as_slice())
            && *copy != turn.copy
        {
            (found.turn, found.copies) = (Some(Turn::assumed(*copy)), true);
            self.changed = true;
        }
        match found.turn {
            Some(held) if held.copy != turn.copy => {
                return Position::OtherCopy { overdue: found.due < now.0 };
            }
            Some(held) if held.is_after(turn) => return Position::Superseded,
            _ => {}
        }
        // A single message has only one first delivery if all are counted: then the log need not record its
        // turn. But a canceller that loses its mark must find the turn.
        let disputed = !found.is_alone(turn)
            || found.state != EntryState::Stored
            || turn.delivery > 1
            || turn.lock > 0
            || found.mark().is_some();
        if disputed && found.turn != Some(turn) {
            (found.turn, found.due, self.changed) = (Some(turn), found.due.max(now.after(GRACE)), true);
        }
        // The message has arrived: it is not overdue, and its job can no longer be cancelled.
        let noticed = found.mark().is_some() || found.overdue.is_some() || found.due < now.0;
        if found.state != EntryState::Stored || noticed {
            found.forget_mark();
            (found.state, found.overdue) = (EntryState::Stored, None);
            (found.due, self.changed) = (found.due.max(now.after(GRACE)), true);
            let key = found.key;
            self.unmark_pages(key);
        }
        Position::First
    }

    /// Returns whether the jobs behind an entry may skip it, because its sender has died.
    fn is_sender_dead(&self, at: usize, now: Millis) -> bool {
        let entry = &self.entries[at];
        entry.state == EntryState::Announced && entry.due < now.0
    }

    /// Returns whether the process that was cancelling an entry has died.
    pub(super) fn is_abandoned(&self, at: usize, now: Millis) -> bool {
        self.entries[at].mark().is_some_and(|mark| mark.until <= now.0)
    }

    /// Skips the entries before `at` whose senders have died, up to the first entry that must be waited for.
    fn skip_dead_senders(&mut self, key: KeyHash, at: usize, now: Millis) {
        let mut skipped = false;
        for before in 0..at {
            if self.entries[before].key != key || self.entries[before].state == EntryState::Skipped {
                continue;
            }
            if !self.is_sender_dead(before, now) {
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
}
