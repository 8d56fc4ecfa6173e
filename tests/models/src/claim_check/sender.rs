//! The steps of the sender.

use super::Design;
use super::state::{Action, Blob, Message, Sender, State};

fn message(payload: usize) -> Message {
    Message { payload, checkpoint: None, holder: None, dead: false }
}

impl State {
    pub(super) fn sender_actions(&self, actions: &mut Vec<Action>) {
        if self.in_flight.is_some() {
            actions.push(Action::Arrive);
        }
        if self.sender == Sender::Over {
            return;
        }
        actions.push(Action::Sender);
        if let Sender::Put { ambiguous, .. } = self.sender {
            if self.faults.lost_answers > 0 {
                actions.push(Action::SenderUnheard);
            }
            if self.faults.late_puts > 0 && self.in_flight.is_none() {
                actions.push(Action::PutLate);
            }
            if self.faults.refusals > 0 {
                actions.push(Action::PutRefused);
            }
            if ambiguous {
                actions.push(Action::GiveUp);
            }
        }
        if self.faults.crashes > 0 {
            actions.push(Action::SenderDies);
        }
    }

    pub(super) fn send(&mut self, action: Action, design: Design) {
        match (action, self.sender) {
            (Action::Sender, _) => self.sender = self.sender_step(design),
            (Action::SenderUnheard, Sender::Put { blob, .. }) => {
                self.faults.lost_answers -= 1;
                self.put(message(blob));
                self.sender = resend(blob, design);
            }
            (Action::PutLate, Sender::Put { blob, .. }) => {
                self.faults.late_puts -= 1;
                self.in_flight = Some(message(blob));
                self.sender = resend(blob, design);
            }
            (Action::PutRefused, Sender::Put { blob, .. }) => {
                self.faults.refusals -= 1;
                // This put was refused, and only this put refers to the blob, unless a former one does.
                self.sender = Sender::DeleteBlob(blob);
            }
            (Action::GiveUp, _) => self.sender = Sender::Over,
            (Action::SenderDies, _) => {
                self.faults.crashes -= 1;
                self.sender = Sender::Over;
            }
            (Action::Arrive, _) => {
                if let Some(message) = self.in_flight.take() {
                    self.put(message);
                }
            }
            _ => {}
        }
    }

    /// Takes a step. Returns the next state of the sender.
    fn sender_step(&mut self, design: Design) -> Sender {
        match self.sender {
            Sender::Blob { ambiguous } if design == Design::MessageBeforeBlob => {
                Sender::Put { blob: self.name_blob(), ambiguous }
            }
            Sender::Blob { ambiguous } => Sender::Put { blob: self.write_blob(), ambiguous },
            Sender::Put { blob, .. } => {
                self.put(message(blob));
                if design == Design::MessageBeforeBlob { Sender::LateBlob(blob) } else { Sender::Over }
            }
            Sender::LateBlob(blob) => {
                self.blobs[blob] = Blob::New;
                Sender::Over
            }
            Sender::DeleteBlob(blob) => {
                self.delete_blobs(1 << blob);
                Sender::Over
            }
            Sender::Over => Sender::Over,
        }
    }
}

/// A put without an answer is sent again.
fn resend(blob: usize, design: Design) -> Sender {
    match design {
        Design::LastErrorDecides | Design::DuplicateDeletesBlob => Sender::Put { blob, ambiguous: true },
        _ => Sender::Blob { ambiguous: true },
    }
}
