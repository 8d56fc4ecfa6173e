//! Jobs that are cancelled before anybody has received their messages.

use super::{CANCELLATION_PERIOD, CancelBegun, GRACE, GroupLog, Millis};
use crate::fifo::entry::{Cancelling, EntryRef, How, State};
use crate::queue::Unreceived;

/// A cancellation whose initiator crashed.
#[derive(Debug, Clone)]
pub(in crate::fifo) struct Abandoned {
    entry: EntryRef,
    nonce: u64,
    pub(in crate::fifo) message: Unreceived,
}

/// The result of deleting the message of a job that is being cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::fifo) enum Fate {
    /// The message is deleted, and nobody had received it.
    Deleted,
    /// Somebody has received the message.
    Received,
    /// The message is gone or leased; the storage does not say which.
    Unknown,
}

impl GroupLog {
    /// Marks the job as being cancelled: the caller is about to delete this message, which nobody has received.
    pub(in crate::fifo) fn begin_cancel(
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
    pub(in crate::fifo) fn end_cancel(
        &mut self,
        entry: &EntryRef,
        nonce: u64,
        deleted: bool,
        now: Millis,
    ) -> bool {
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
    pub(in crate::fifo) fn abandoned(&self, entry: &EntryRef, now: Millis) -> Option<Abandoned> {
        let (head, _) = self.head_of(self.find(entry)?);
        let first = &self.entries[head];
        let Cancelling { nonce, message, .. } = first.cancelling.clone()?;
        let entry = EntryRef { job: first.job, ..*entry };
        self.is_abandoned(head, now).then_some(Abandoned { entry, nonce, message })
    }

    /// Completes an abandoned cancellation, now that the fate of its message is known.
    pub(in crate::fifo) fn finish_abandoned(&mut self, abandoned: &Abandoned, fate: Fate, now: Millis) {
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
}
