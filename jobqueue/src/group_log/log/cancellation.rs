//! Cancellation of jobs whose messages no worker has received.

use super::{CANCELLATION_PERIOD, CancelBegun, GRACE, GroupLog, Millis};
use crate::group_log::entry::{Cancelling, EndState, EntryRef, EntryState};
use crate::undelivered::UndeliveredRef;

/// A cancellation whose initiator crashed.
#[derive(Debug, Clone)]
pub(crate) struct Abandoned {
    entry: EntryRef,
    nonce: u64,
    pub(crate) message: UndeliveredRef,
}

/// The result of deleting the message of a job that is being cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeletionOutcome {
    /// The message is deleted, and no worker had received it.
    Deleted,
    /// The message was received, or it is gone: the storage may not say which. A job that is gone becomes overdue.
    NotDeleted,
}

impl GroupLog {
    /// Marks the job as being cancelled: the caller is about to delete this message, which no worker has received.
    pub(crate) fn begin_cancel(
        &mut self,
        entry: &EntryRef,
        nonce: u64,
        message: &UndeliveredRef,
        now: Millis,
    ) -> CancelBegun {
        let Some(at) = self.find(entry) else {
            return match self.ended(entry) {
                Some(EndState::Cancelled) if message.may_be_deleted => CancelBegun::Cancelled,
                // The log no longer says how the job ended.
                None if message.may_be_deleted => CancelBegun::Marked { copies: true, may_be_deleted: true },
                _ => CancelBegun::TooLate,
            };
        };
        let found = &mut self.entries[at];
        if let Some(turn) = found.turn {
            return if turn.is_assumed() { CancelBegun::Unknown } else { CancelBegun::TooLate };
        }
        let copies = found.copies || found.state != EntryState::Stored;
        if let Some(own) = found.cancelling.as_ref().filter(|mark| mark.nonce == nonce) {
            return CancelBegun::Marked { copies, may_be_deleted: own.message.may_be_deleted };
        }
        // A mark that stands is that of a canceller which died, got no answer, or is still deleting.
        let may_be_deleted = message.may_be_deleted || found.cancelling.is_some();
        let message = message.clone().deleted_perhaps(may_be_deleted);
        found.cancelling = Some(Cancelling { nonce, until: now.after(CANCELLATION_PERIOD), message });
        self.changed = true;
        CancelBegun::Marked { copies, may_be_deleted }
    }

    /// Ends the cancellation `nonce`. Returns true if the job is cancelled, because no worker received it in the
    /// meantime.
    pub(crate) fn end_cancel(&mut self, entry: &EntryRef, nonce: u64, deleted: bool, now: Millis) -> bool {
        let Some(at) = self.find(entry) else {
            // Another process may have completed this cancellation.
            let ended = self.ended(entry);
            return ended == Some(EndState::Cancelled) || deleted && ended != Some(EndState::Done);
        };
        let found = &mut self.entries[at];
        let own = found.cancelling.as_ref().is_some_and(|own| own.nonce == nonce);
        // With a single message, its deletion proves that; with several, the mark does, which a received copy would
        // have removed.
        let single = !found.copies && found.turn.is_none();
        if deleted && (own || single) {
            self.remove(at, now);
            self.note_ended(entry, EndState::Cancelled);
            return true;
        }
        if own {
            (found.cancelling, self.changed) = (None, true);
        }
        false
    }

    /// Returns the cancellation of the job that `entry` waits for if its initiator crashed.
    pub(crate) fn abandoned(&self, entry: &EntryRef, now: Millis) -> Option<Abandoned> {
        let (head, _) = self.head_of(entry.key, self.place(entry).0);
        let first = self.entries.get(head)?;
        let Cancelling { nonce, message, .. } = first.cancelling.clone()?;
        let entry = EntryRef { job: first.job, page: None, ..*entry };
        self.is_abandoned(head, now).then_some(Abandoned { entry, nonce, message })
    }

    /// Completes an abandoned cancellation, given the outcome of the deletion of its message.
    pub(crate) fn finish_abandoned(&mut self, abandoned: &Abandoned, outcome: DeletionOutcome, now: Millis) {
        let own = |at: &usize| {
            self.entries[*at].cancelling.as_ref().is_some_and(|own| own.nonce == abandoned.nonce)
        };
        let Some(at) = self.find(&abandoned.entry).filter(own) else { return };
        self.changed = true;
        match outcome {
            DeletionOutcome::Deleted => {
                self.remove(at, now);
                self.note_ended(&abandoned.entry, EndState::Cancelled);
            }
            DeletionOutcome::NotDeleted => {
                let found = &mut self.entries[at];
                (found.cancelling, found.due) = (None, found.due.max(now.after(GRACE)));
            }
        }
    }
}
