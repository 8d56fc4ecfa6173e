//! Overdue messages: the deliveries behind them mark them, and skip them in the end.

#[cfg(test)]
mod tests;

use std::time::Duration;

use super::{GRACE, GroupLog, Millis};
use crate::group_log::entry::{Entry, EntryRef, EntryState, KeyHash, Overdue, Round, Turn};

/// The factor by which deliveries wait longer if the round of the queue does not end: the message that began
/// the round may be gone.
const LOST_ROUND_FACTOR: u32 = 20;

/// The times for which deliveries wait for an overdue message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OverdueWait {
    /// The time for which the message may be hidden after it was due: a worker that was killed has renewed
    /// its lease until then.
    pub(crate) hidden: Duration,
    /// An estimate of the time in which a visible message is delivered.
    pub(crate) queue: Duration,
}

impl OverdueWait {
    fn total(self) -> Duration {
        self.hidden + self.queue
    }
}

impl GroupLog {
    /// Marks the overdue messages that the delivery waits for: the messages of all entries before its own, or
    /// the copy that has the turn. Skips the entries that did not arrive while deliveries marked them for
    /// `wait`, and returns true if the first entry is among these. `wait` is an estimate, and a message that
    /// was put back is behind all others: so the queue must also have gone round once since the message can
    /// no longer be hidden, however long that takes.
    ///
    /// A message that waits behind others clears its mark with its next delivery; a message in a page notes
    /// that page. If many messages have vanished, for example after a queue was cleared in part, one wait
    /// therefore suffices for all.
    pub(crate) fn mark_overdue(
        &mut self,
        entry: &EntryRef,
        turn: Turn,
        wait: OverdueWait,
        now: Millis,
    ) -> bool {
        let at = self.place(entry).index;
        let head = self.head_of(entry.key, at);
        let Some(first) = self.entries.get(head) else { return false };
        let own = head == at && first.turn.is_none_or(|held| held.copy == turn.copy);
        if own || first.due >= now.0 {
            return false;
        }
        if head == at {
            let missing = self.is_given_up(at, turn, wait, now);
            if missing {
                let found = &mut self.entries[at];
                (found.turn, found.cancelled_first) = (None, None);
                (found.overdue, found.due) = (None, now.after(GRACE));
                self.changed = true;
            }
            return missing;
        }
        let key = entry.key;
        self.note_pages(entry, turn, wait, now);
        let mut alive = false;
        let mut skipped = false;
        for before in head..at {
            let other = &self.entries[before];
            if other.key != key || other.state == EntryState::Skipped {
                continue;
            }
            let missing = other.due < now.0 && self.is_given_up(before, turn, wait, now);
            alive |= !missing;
            if missing && !alive {
                self.skip(before);
                skipped = true;
            }
        }
        if skipped {
            self.trim_skipped();
            self.expect_first(key, now);
        }
        skipped
    }

    /// Marks an entry whose message is overdue. Returns true if deliveries have marked it for `wait`, and for
    /// a whole round of the queue.
    fn is_given_up(&mut self, at: usize, turn: Turn, wait: OverdueWait, now: Millis) -> bool {
        let found = &mut self.entries[at];
        let mark = Overdue::renewed(found.overdue, found.due, turn, wait, now);
        self.changed |= found.overdue != Some(mark);
        found.overdue = Some(mark);
        let all = wait.total();
        let needed = if mark.round == Round::Done { all } else { all.saturating_mul(LOST_ROUND_FACTOR) };
        now.since(mark.since) >= needed
    }

    /// Notes, for the pages up to an entry and behind overdue messages, the first page from which a message
    /// has come.
    fn note_pages(&mut self, entry: &EntryRef, turn: Turn, wait: OverdueWait, now: Millis) {
        let at = self.place(entry).index;
        for found in self.entries.iter_mut().take(at + 1).filter(|found| found.key == entry.key) {
            let Some(pages) = &found.pages else { continue };
            let page = entry.page.filter(|page| pages.contains(page)).unwrap_or(pages.end);
            // The mark counts for messages that were due when it began.
            let due = found.overdue.map_or(now.0, |mark| mark.since);
            let mut mark = Overdue::renewed(found.overdue, due, turn, wait, now);
            mark.page = Some(mark.page.map_or(page, |known| known.min(page)));
            self.changed |= found.overdue != Some(mark);
            found.overdue = Some(mark);
        }
    }

    /// Notes that a message has come from its page, if the page is marked: even when no message before it is
    /// overdue any more.
    pub(super) fn note_page(&mut self, entry: &EntryRef, at: usize) {
        let marker = self.entries.get_mut(at).filter(|found| found.state == EntryState::Paged);
        if let Some(mark) = marker.and_then(|marker| marker.overdue.as_mut())
            && !mark.has_seen(entry.page)
        {
            (mark.page, self.changed) = (entry.page, true);
        }
    }

    /// Clears the marks of the pages of a group: the overdue message before them has arrived, and the
    /// messages of the pages may follow it.
    pub(super) fn unmark_pages(&mut self, key: KeyHash) {
        let pages = |found: &&mut Entry| found.key == key && found.state == EntryState::Paged;
        self.entries.iter_mut().filter(pages).for_each(|found| found.overdue = None);
    }
}

impl Overdue {
    pub(super) fn new(now: Millis) -> Self {
        Self { since: now.0, last: now.0, page: None, round: Round::NotBegun }
    }

    /// Returns the mark after another delivery has found the message overdue, which was `due` by then. A
    /// pause counts as half of `wait` at most: all slots may have been taken, or all workers stopped. A
    /// round of the queue begins once the message can no longer be hidden.
    fn renewed(former: Option<Self>, due: u64, turn: Turn, wait: OverdueWait, now: Millis) -> Self {
        let mut mark = former.unwrap_or(Self::new(now));
        let (pause, all) = (now.since(mark.last), wait.total());
        if pause >= all / 8 {
            (mark.since, mark.last) = (Millis(mark.since).after(pause.saturating_sub(all / 2)), now.0);
        }
        let may_begin = mark.round != Round::NotBegun || now.0 >= Millis(due).after(wait.hidden);
        Self { round: if may_begin { mark.round.after(turn) } else { Round::NotBegun }, ..mark }
    }

    /// Returns, for a mark of pages, whether a message has come from `page`, or from a page before it, since
    /// the mark began.
    pub(super) fn has_seen(self, page: Option<u64>) -> bool {
        self.page.is_some_and(|seen| page.is_some_and(|page| seen <= page))
    }
}
