//! The steps of redrives, purges and sweeps.

use super::Design;
use super::state::{Action, Blob, Letter, Message, Operator, Sender, State, references};

impl State {
    pub(super) fn operator_actions(&self, design: Design, actions: &mut Vec<Action>) {
        if self.operator == Operator::Idle {
            for slot in (0..self.letters.len()).filter(|slot| self.letters[*slot].is_some()) {
                actions.push(Action::Redrive(slot));
                if self.faults.purges > 0 {
                    actions.push(Action::Purge(slot));
                }
            }
        } else {
            actions.push(Action::Operator);
            if self.faults.crashes > 0 {
                actions.push(Action::OperatorDies);
            }
        }
        // Nobody is about to refer to a blob that is so old.
        let referring = self.in_flight.is_some()
            || self.sender != Sender::Over
            || self.workers.iter().any(Option::is_some);
        // A sweep uses the age that it has read before it looks at the queues.
        if !referring && self.looks.is_none() && self.blobs.contains(&Blob::New) {
            actions.push(Action::Age);
        }
        let may_begin = self.blobs.contains(&Blob::Old) && (self.faults.sweeps > 0 || self.is_over());
        if design != Design::NeverSwept && (self.looks.is_some() || may_begin) {
            actions.push(Action::Sweep);
        }
    }

    pub(super) fn operate(&mut self, action: Action, design: Design) {
        match action {
            Action::Redrive(slot) => self.operator = Operator::CopyBlobs(slot),
            Action::Purge(slot) => {
                self.faults.purges -= 1;
                self.operator = Operator::Delete { slot, purged: true };
            }
            Action::Operator => self.operator = self.operator_step(design),
            Action::OperatorDies => {
                self.faults.crashes -= 1;
                self.operator = Operator::Idle;
            }
            Action::Age => {
                self.blobs.iter_mut().filter(|blob| **blob == Blob::New).for_each(|blob| *blob = Blob::Old);
            }
            Action::Sweep => self.sweep(design),
            _ => {}
        }
    }

    fn operator_step(&mut self, design: Design) -> Operator {
        match self.operator {
            Operator::CopyBlobs(slot) => {
                let Some(Letter { payload, checkpoint }) = self.letters[slot].clone() else {
                    return Operator::Idle;
                };
                let (payload, checkpoint) = match design {
                    Design::RedriveSharesBlobs => (payload, checkpoint),
                    _ => self.copy_blobs(payload, checkpoint),
                };
                Operator::PutBack { slot, payload, checkpoint }
            }
            Operator::PutBack { slot, payload, checkpoint } => {
                let message = Message { payload, checkpoint, holder: None, dead: false };
                if self.queue.iter().any(Option::is_none) {
                    self.put(message);
                }
                Operator::Delete { slot, purged: false }
            }
            Operator::Delete { slot, purged } => match self.letters[slot].take() {
                // The redriven message has the blobs of its letter, if it has none of its own.
                Some(_) if design == Design::RedriveSharesBlobs && !purged => Operator::Idle,
                Some(letter) => Operator::DeleteBlobs(references(letter.payload, letter.checkpoint)),
                None => Operator::Idle,
            },
            Operator::DeleteBlobs(blobs) => {
                self.delete_blobs(blobs);
                Operator::Idle
            }
            Operator::Idle => Operator::Idle,
        }
    }

    /// Checks the home queue, the dead-letter queue, and both again: then old blobs are deleted.
    fn sweep(&mut self, design: Design) {
        let needed = if design == Design::SweptByAge { 0 } else { 4 };
        let Some(looks) = self.looks else {
            self.faults.sweeps = self.faults.sweeps.saturating_sub(1);
            self.looks = Some(0);
            return;
        };
        if looks == needed {
            self.blobs.iter_mut().filter(|blob| **blob == Blob::Old).for_each(|blob| *blob = Blob::Missing);
            self.looks = None;
            return;
        }
        let empty = if looks % 2 == 0 {
            self.queue.iter().all(Option::is_none)
        } else {
            self.letters.iter().all(Option::is_none)
        };
        self.looks = empty.then_some(looks + 1);
    }
}
