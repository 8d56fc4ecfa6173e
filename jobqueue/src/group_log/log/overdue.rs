//! Messages that do not arrive: deliveries behind them mark them, and skip them in the end.

#[cfg(test)]
mod tests;

use std::time::Duration;

use super::{GRACE, GroupLog, Millis};
use crate::group_log::entry::{EntryRef, EntryState, Overdue, Turn};

impl GroupLog {
    /// Marks the overdue messages that the delivery waits for: those of all entries before its own, or the copy that
    /// has the turn. Skips entries that did not arrive while deliveries marked them for `patience`, and returns true if
    /// the first of them is among these.
    ///
    /// A message that waits behind others refutes the mark with its next delivery; one in a page notes that page. If many messages have
    /// vanished, as after a queue was cleared in part, one wait therefore suffices for all.
    pub(crate) fn mark_overdue(
        &mut self,
        entry: &EntryRef,
        turn: Turn,
        patience: Duration,
        now: Millis,
    ) -> bool {
        let (at, _) = self.place(entry);
        let (head, _) = self.head_of(entry.key, at);
        let Some(first) = self.entries.get(head) else { return false };
        let own = head == at && first.turn.is_none_or(|held| held.copy == turn.copy);
        if own || first.due >= now.0 {
            return false;
        }
        if head == at {
            let missing = self.is_given_up(at, patience, now);
            if missing {
                let found = &mut self.entries[at];
                (found.turn, found.overdue, found.due) = (None, None, now.after(GRACE));
                self.changed = true;
            }
            return missing;
        }
        let key = entry.key;
        self.note_pages(entry, at, patience, now);
        let (mut alive, mut skipped) = (false, false);
        for before in head..at {
            let other = &self.entries[before];
            if other.key != key || other.state == EntryState::Skipped {
                continue;
            }
            let missing = other.due < now.0 && self.is_given_up(before, patience, now);
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

    /// Marks an entry whose message is overdue. Returns true if deliveries have marked it for `patience`.
    fn is_given_up(&mut self, at: usize, patience: Duration, now: Millis) -> bool {
        let found = &mut self.entries[at];
        match &mut found.overdue {
            Some(overdue) if now.since(overdue.last) <= patience => {
                if now.since(overdue.since) >= patience {
                    return true;
                }
                if now.since(overdue.last) < patience / 8 {
                    return false;
                }
                overdue.last = now.0;
            }
            // No delivery has marked it for long, so that the message had no chance to arrive: start again.
            overdue => *overdue = Some(Overdue { since: now.0, last: now.0, page: None }),
        }
        self.changed = true;
        false
    }

    /// Notes for the pages up to the entry at `at`, behind overdue messages, from which of them a message has come.
    fn note_pages(&mut self, entry: &EntryRef, at: usize, patience: Duration, now: Millis) {
        for found in self.entries.iter_mut().take(at + 1).filter(|found| found.key == entry.key) {
            let Some(pages) = &found.pages else { continue };
            let page = entry.page.filter(|page| pages.contains(page)).unwrap_or(pages.end);
            let former = found.overdue.filter(|overdue| now.since(overdue.last) <= patience);
            let mut mark = former.unwrap_or(Overdue { since: now.0, last: now.0, page: None });
            if now.since(mark.last) >= patience / 8 {
                mark.last = now.0;
            }
            mark.page = Some(mark.page.map_or(page, |known| known.min(page)));
            self.changed |= found.overdue != Some(mark);
            found.overdue = Some(mark);
        }
    }
}
