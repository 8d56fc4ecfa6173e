//! Cancellation of jobs whose messages no worker has received.

#[cfg(test)]
mod tests;

use super::{CANCELLATION_PERIOD, CancelBegun, CancelEnd, GRACE, GroupLog, Millis};
use crate::group_log::entry::{Cancelling, EndState, EntryRef, EntryState};
use crate::undelivered::UndeliveredRef;

/// A cancellation whose canceller crashed, or takes too long.
#[derive(Debug, Clone)]
pub(crate) struct Abandoned {
    pub(crate) entry: EntryRef,
    nonce: u64,
    pub(crate) message: UndeliveredRef,
}

impl GroupLog {
    /// Marks the job as being cancelled: the caller is about to delete this message, which no worker has
    /// received.
    pub(crate) fn begin_cancel(
        &mut self,
        entry: &EntryRef,
        nonce: u64,
        message: &UndeliveredRef,
        now: Millis,
    ) -> CancelBegun {
        let Some(at) = self.find(entry) else {
            return match self.ended(entry) {
                Some(EndState::Cancelled) => CancelBegun::Cancelled,
                // The log no longer says how the job ended.
                None if message.may_be_deleted => CancelBegun::Marked { copies: false, may_be_deleted: true },
                _ => CancelBegun::TooLate,
            };
        };
        let found = &mut self.entries[at];
        if found.turn.is_some_and(|turn| !turn.is_assumed()) {
            return CancelBegun::TooLate;
        }
        let copies = found.copies || found.state != EntryState::Stored;
        if let Some(own) = found.mark().filter(|mark| mark.nonce == nonce) {
            return CancelBegun::Marked { copies, may_be_deleted: own.message.may_be_deleted };
        }
        if found.turn.is_some() {
            return CancelBegun::Unknown;
        }
        // An existing mark belongs to a canceller that died, got no answer, or is still deleting.
        let may_be_deleted = message.may_be_deleted || found.cancelling.is_some();
        let message = message.clone().deleted_perhaps(may_be_deleted);
        found.cancelling = Some(Cancelling { nonce, until: now.after(CANCELLATION_PERIOD), message });
        self.changed = true;
        CancelBegun::Marked { copies, may_be_deleted }
    }

    /// Ends the cancellation `nonce`, after its message was `deleted` or was missing. A job whose message is
    /// missing, but was deleted by no canceller, has its full time to arrive.
    pub(crate) fn end_cancel(
        &mut self,
        entry: &EntryRef,
        nonce: u64,
        deleted: bool,
        now: Millis,
    ) -> CancelEnd {
        let Some(at) = self.find(entry) else {
            return match self.ended(entry) {
                // Another process may have completed this cancellation.
                Some(EndState::Cancelled) => CancelEnd::Cancelled,
                Some(EndState::DeadLettered) | None if deleted => CancelEnd::Cancelled,
                _ => CancelEnd::TooLate,
            };
        };
        let found = &mut self.entries[at];
        if deleted && let Some(first) = found.cancelled_first.take_if(|first| first.mark.nonce == nonce) {
            // The turn was assumed for this message. The messages of later sends run.
            if let Some(assumed) = found.turn.take() {
                found.nonces.retain(|nonce| *nonce != assumed.copy);
            }
            (found.state, found.due) = if first.stored {
                (EntryState::Stored, first.due.max(now.after(GRACE)))
            } else {
                (EntryState::Announced, first.due)
            };
            (found.overdue, self.changed) = (None, true);
            return CancelEnd::Cancelled;
        }
        let is_own = found.mark().is_some_and(|own| own.nonce == nonce);
        // With a single message, its deletion proves that no worker received it. With several, the mark
        // proves it: a received copy would have removed the mark.
        let is_single = !found.copies && found.turn.is_none();
        if deleted && (is_own || is_single) {
            self.remove(at, now);
            self.note_ended(entry, EndState::Cancelled);
            return CancelEnd::Cancelled;
        }
        if is_own {
            found.forget_mark();
            (found.due, self.changed) = (found.due.max(now.after(GRACE)), true);
            return CancelEnd::TooLate;
        }
        // Without a delivery, another canceller has the mark or has ended, or a repeated send of a job with
        // copies has removed the mark.
        match found.turn {
            Some(turn) if !turn.is_assumed() => CancelEnd::TooLate,
            _ => CancelEnd::Unknown,
        }
    }

    /// Returns the cancellation of the job that `entry` waits for, if its canceller crashed, or takes too
    /// long.
    pub(crate) fn abandoned(&self, entry: &EntryRef, now: Millis) -> Option<Abandoned> {
        let head = self.head_of(entry.key, self.place(entry).index);
        let first = self.entries.get(head)?;
        let Cancelling { nonce, message, .. } = first.mark().cloned()?;
        let entry = EntryRef { job: first.job, page: None, ..*entry };
        self.is_abandoned(head, now).then_some(Abandoned { entry, nonce, message })
    }

    /// Takes over an abandoned cancellation under `nonce`, before the message is deleted: the process that
    /// deletes it must own the mark. Returns false if the mark no longer belongs to the abandoned
    /// cancellation.
    pub(crate) fn take_over_cancel(&mut self, abandoned: &Abandoned, nonce: u64, now: Millis) -> bool {
        let Some(at) = self.find(&abandoned.entry) else { return false };
        let Some(mark) = self.entries[at].mark_mut() else { return false };
        if mark.nonce == abandoned.nonce {
            (mark.nonce, mark.until, mark.message.may_be_deleted) =
                (nonce, now.after(CANCELLATION_PERIOD), true);
            self.changed = true;
        }
        mark.nonce == nonce
    }
}
