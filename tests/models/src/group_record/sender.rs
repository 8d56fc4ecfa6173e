//! The steps of sends, cancellations and redrives.

use super::Design;
use super::record::{Announced, Job, Nonce};
use super::state::{Action, Letter, Message, Redriver, Sender, State};

impl State {
    pub(super) fn sender_actions(&self, design: Design, actions: &mut Vec<Action>) {
        for s in 0..usize::from(self.faults.jobs) {
            let sender = self.senders[s];
            match sender {
                Sender::Idle => {
                    let again = self.sends[s] > 0 && !self.acknowledged[s] && self.faults.resends > 0;
                    if self.sends[s] == 0 || again {
                        actions.push(Action::Send(s));
                    }
                    continue;
                }
                Sender::Put { ambiguous, .. } => {
                    if self.faults.late_puts > 0 && self.in_flight[0].is_none() {
                        actions.push(Action::PutLate(s));
                    }
                    if self.faults.refusals > 0 {
                        actions.push(Action::PutRefused(s));
                    }
                    if ambiguous {
                        actions.push(Action::GiveUp(s));
                    }
                }
                Sender::Mark { .. } if self.faults.cancels > 0 => actions.push(Action::Cancel(s)),
                _ => {}
            }
            if !matches!(sender, Sender::Mark { .. }) {
                actions.push(Action::Sender(s));
                if self.faults.lost_answers > 0 && design != Design::MessageBeforeRecord {
                    actions.push(Action::SenderUnheard(s));
                }
                if self.faults.crashes > 0 {
                    actions.push(Action::SenderDies(s));
                }
            }
        }
    }

    pub(super) fn send(&mut self, action: Action, design: Design) {
        match action {
            Action::Send(s) => self.begin_send(s, design),
            Action::Sender(s) => self.senders[s] = self.sender_step(s, design),
            Action::SenderUnheard(s) => {
                self.faults.lost_answers -= 1;
                let at = self.senders[s];
                self.sender_step(s, design);
                self.acknowledged[s] &= !matches!(at, Sender::Confirm { .. } | Sender::Announce(_));
                self.senders[s] = match at {
                    Sender::Put { nonce, .. } => Sender::Put { nonce, ambiguous: true },
                    Sender::Delete { nonce, copy, .. } => Sender::Delete { nonce, copy, ambiguous: true },
                    other => other,
                };
            }
            Action::PutLate(s) => {
                let Sender::Put { nonce, .. } = self.senders[s] else { return };
                self.faults.late_puts -= 1;
                let copy = self.new_copy();
                self.in_flight[0] = Some(Message { job: s, copy, deliveries: 0, holder: None, dead: false });
                self.senders[s] = Sender::Put { nonce, ambiguous: true };
            }
            Action::PutRefused(s) => {
                let Sender::Put { nonce, ambiguous } = self.senders[s] else { return };
                self.faults.refusals -= 1;
                self.refused[s] += u8::from(!ambiguous);
                self.senders[s] = if ambiguous { Sender::Idle } else { Sender::Revoke(nonce) };
            }
            Action::Cancel(s) => {
                let Sender::Mark { nonce, copy } = self.senders[s] else { return };
                self.faults.cancels -= 1;
                self.cancel_begun[s] = true;
                let marked = self.record.mark(s, nonce);
                self.senders[s] =
                    if marked { Sender::Delete { nonce, copy, ambiguous: false } } else { Sender::Idle };
            }
            Action::SenderDies(s) => {
                self.faults.crashes -= 1;
                self.senders[s] = Sender::Idle;
            }
            Action::GiveUp(s) => self.senders[s] = Sender::Idle,
            _ => {}
        }
    }

    fn begin_send(&mut self, s: usize, design: Design) {
        if self.sends[s] == 0 {
            self.before[s] = self.acknowledged;
        } else {
            self.faults.resends -= 1;
        }
        self.sends[s] += 1;
        self.cancelled[s] = false;
        let nonce = self.take_nonce();
        self.senders[s] = match design {
            Design::MessageBeforeRecord => Sender::Put { nonce, ambiguous: false },
            _ => Sender::Announce(nonce),
        };
    }

    fn take_nonce(&mut self) -> Nonce {
        self.next_nonce += 1;
        self.next_nonce
    }

    fn acknowledge(&mut self, s: usize, nonce: Nonce, message: Option<u8>) -> Sender {
        self.acknowledged[s] = true;
        match message {
            Some(copy) if self.faults.cancels > 0 => Sender::Mark { nonce, copy },
            _ => Sender::Idle,
        }
    }

    /// Takes a step. Returns the next state of the sender.
    fn sender_step(&mut self, s: usize, design: Design) -> Sender {
        match self.senders[s] {
            Sender::Announce(nonce) => match self.record.announce(s, nonce) {
                Announced::Put => Sender::Put { nonce, ambiguous: false },
                Announced::Stored | Announced::Done => self.acknowledge(s, nonce, None),
            },
            Sender::Put { nonce, ambiguous } => {
                let copy = self.new_copy();
                self.put(s, copy);
                Sender::Confirm { nonce, copy, single: !ambiguous }
            }
            Sender::Confirm { nonce, copy, single } => {
                let confirmed = self.confirm(s, (nonce, copy, single), design);
                if confirmed { self.acknowledge(s, nonce, Some(copy)) } else { Sender::Idle }
            }
            Sender::Revoke(nonce) => {
                self.record.revoke(s, nonce);
                Sender::Idle
            }
            Sender::Delete { nonce, copy, ambiguous } => {
                let unreceived =
                    |message: &Message| message.job == s && message.copy == copy && message.deliveries == 0;
                let found = self.queue.iter_mut().find(|slot| slot.as_ref().is_some_and(unreceived));
                let deleted = found.is_some_and(|slot| slot.take().is_some());
                // "Not found" after a deletion without an answer does not tell whether a worker has the message.
                Sender::Unmark { nonce, deleted: (deleted || !ambiguous).then_some(deleted) }
            }
            Sender::Unmark { nonce, deleted } => {
                let cancelled = self.record.unmark(s, nonce, deleted);
                let by_deletion = design == Design::CancelByDeletion && deleted == Some(true);
                if cancelled || by_deletion {
                    self.cancelled[s] = true;
                    self.refused_ran |= self.runs(s);
                }
                Sender::Idle
            }
            other @ (Sender::Idle | Sender::Mark { .. }) => other,
        }
    }

    /// Confirms the entry of a message that was put, as the design has it. Returns whether the sender may acknowledge.
    fn confirm(&mut self, s: usize, (nonce, copy, single): (Nonce, u8, bool), design: Design) -> bool {
        match design {
            Design::MessageBeforeRecord => {
                self.record.join(s);
                true
            }
            Design::MatchedByMessageId => {
                self.bound[s] = Some(copy);
                self.record.confirm(s, nonce, single.then_some(copy), design)
            }
            Design::RemovedByTime => {
                self.record.confirm(s, nonce, single.then_some(copy), design);
                true
            }
            _ => self.record.confirm(s, nonce, single.then_some(copy), design),
        }
    }

    pub(super) fn redrive_actions(&self, actions: &mut Vec<Action>) {
        if self.redriver != Redriver::Idle {
            actions.push(Action::Redriver);
            if self.faults.lost_answers > 0 {
                actions.push(Action::RedriverUnheard);
            }
            if self.faults.crashes > 0 {
                actions.push(Action::RedriverDies);
            }
        } else if self.faults.redrives > 0 {
            let letters = (0..self.letters.len()).filter(|slot| self.letters[*slot].is_some());
            actions.extend(letters.map(Action::Redrive));
        }
    }

    pub(super) fn redrive(&mut self, action: Action, design: Design) {
        match action {
            Action::Redrive(slot) => {
                self.faults.redrives -= 1;
                self.redriver = match design {
                    Design::MessageBeforeRecord => Redriver::Put(slot, 0),
                    _ => Redriver::Announce(slot),
                };
                self.hold(slot, true);
            }
            Action::Redriver => self.redriver = self.redriver_step(design),
            Action::RedriverUnheard => {
                self.faults.lost_answers -= 1;
                self.redriver_step(design);
            }
            Action::RedriverDies => {
                self.faults.crashes -= 1;
                if let Redriver::Announce(slot)
                | Redriver::Put(slot, _)
                | Redriver::Confirm(slot, _)
                | Redriver::Delete(slot) = self.redriver
                {
                    self.hold(slot, false);
                }
                self.redriver = Redriver::Idle;
            }
            _ => {}
        }
    }

    fn hold(&mut self, slot: usize, held: bool) {
        if let Some(letter) = &mut self.letters[slot] {
            letter.held = held;
        }
    }

    fn redriver_step(&mut self, design: Design) -> Redriver {
        let job = |slot: usize| self.letters[slot].as_ref().map(|letter: &Letter| letter.job);
        match self.redriver {
            Redriver::Announce(slot) => {
                let Some(job) = job(slot) else { return Redriver::Idle };
                let nonce = self.take_nonce();
                match self.announce_redriven(job, nonce) {
                    Announced::Done => Redriver::Delete(slot),
                    _ => Redriver::Put(slot, nonce),
                }
            }
            Redriver::Put(slot, nonce) => {
                let Some(job) = job(slot) else { return Redriver::Idle };
                let copy = self.new_copy();
                self.put(job, copy);
                if design == Design::MessageBeforeRecord {
                    Redriver::Delete(slot)
                } else {
                    Redriver::Confirm(slot, nonce)
                }
            }
            // Only the put decides whether the letter is deleted: the confirmation is for the order.
            Redriver::Confirm(slot, nonce) => {
                let Some(job) = job(slot) else { return Redriver::Idle };
                self.record.confirm(job, nonce, None, design);
                Redriver::Delete(slot)
            }
            Redriver::Delete(slot) => {
                self.letters[slot] = None;
                Redriver::Idle
            }
            Redriver::Idle => Redriver::Idle,
        }
    }

    fn announce_redriven(&mut self, job: Job, nonce: Nonce) -> Announced {
        self.cancelled[job] = false;
        self.record.announce(job, nonce)
    }
}
