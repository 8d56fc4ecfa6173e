//! The steps of a redrive and of a purge.

use super::Design;
use super::state::{Action, Letter, Message, Operator, Purger, Redriver, State};

impl State {
    fn free_letters(&self) -> impl Iterator<Item = usize> {
        (0..self.letters.len())
            .filter(|slot| self.letters[*slot].as_ref().is_some_and(|l| l.holder.is_none()))
    }

    pub(super) fn redrive_actions(&self, actions: &mut Vec<Action>) {
        if self.redriver == Redriver::Idle {
            actions.extend(self.free_letters().map(Action::Redrive));
            return;
        }
        actions.push(Action::Redriver);
        if self.faults.lost_answers > 0 && matches!(self.redriver, Redriver::Put { .. }) {
            actions.push(Action::RedriverUnheard);
        }
        if self.faults.crashes > 0 {
            actions.push(Action::RedriverDies);
        }
    }

    pub(super) fn redrive(&mut self, action: Action, design: Design) {
        match action {
            Action::Redrive(slot) => self.redriver = self.begin(slot, design),
            Action::Redriver => self.redriver = self.redriver_step(design),
            Action::RedriverUnheard => {
                self.faults.lost_answers -= 1;
                self.put_job();
            }
            Action::RedriverDies => {
                self.faults.crashes -= 1;
                self.redriver = Redriver::Idle;
                self.put_back.clear();
            }
            _ => {}
        }
    }

    /// Leases a letter and decides whether it is a duplicate.
    fn begin(&mut self, slot: usize, design: Design) -> Redriver {
        let Some(letter) = &mut self.letters[slot] else { return Redriver::Idle };
        letter.holder = Some(Operator::Redrive);
        let (job, occurrence) = (letter.job, letter.occurrence);
        let proven = self.put_back.contains(&(job, occurrence));
        let duplicate = match design {
            // Both jobs have the same id.
            Design::DuplicatesById => !self.put_back.is_empty(),
            _ => proven,
        };
        match design {
            _ if duplicate => {
                self.deleted_unproven |= !proven;
                Redriver::Delete { slot, job, occurrence }
            }
            Design::DeleteBeforePutBack => Redriver::Delete { slot, job, occurrence },
            _ => Redriver::Put { slot, job, occurrence },
        }
    }

    fn put_job(&mut self) {
        let Redriver::Put { job, .. } = self.redriver else { return };
        let message = Message { job, holder: None, dead: None };
        let same = self.queue.iter().flatten().filter(|other| **other == message).count();
        // A third copy of the same job shows nothing new.
        if same < 2
            && let Some(free) = self.queue.iter_mut().find(|slot| slot.is_none())
        {
            *free = Some(message);
        }
    }

    fn redriver_step(&mut self, design: Design) -> Redriver {
        match self.redriver {
            Redriver::Put { slot, job, occurrence } => {
                self.put_job();
                if design == Design::DeleteBeforePutBack {
                    return Redriver::Idle;
                }
                self.put_back.push((job, occurrence));
                Redriver::Delete { slot, job, occurrence }
            }
            Redriver::Delete { slot, job, occurrence } => {
                let held = self.held_letter(slot, Operator::Redrive).is_some();
                if held {
                    self.letters[slot] = None;
                }
                match design {
                    Design::DeleteBeforePutBack if held => Redriver::Put { slot, job, occurrence },
                    _ => Redriver::Idle,
                }
            }
            Redriver::Idle => Redriver::Idle,
        }
    }

    fn held_letter(&self, slot: usize, operator: Operator) -> Option<&Letter> {
        self.letters[slot].as_ref().filter(|letter| letter.holder == Some(operator))
    }

    fn operator_works_at(&self, operator: Operator, slot: usize) -> bool {
        match (operator, self.redriver) {
            (Operator::Redrive, Redriver::Put { slot: at, .. } | Redriver::Delete { slot: at, .. }) => {
                at == slot
            }
            (Operator::Redrive, Redriver::Idle) => false,
            (Operator::Purge, _) => self.purger == Purger::Delete(slot),
        }
    }

    pub(super) fn purge_actions(&self, actions: &mut Vec<Action>) {
        if self.purger != Purger::Idle {
            actions.push(Action::Purger);
        } else if self.faults.purges > 0 {
            actions.extend(self.free_letters().map(Action::Purge));
        }
        for (slot, letter) in self.letters.iter().enumerate() {
            let Some(operator) = letter.as_ref().and_then(|letter| letter.holder) else { continue };
            if !self.operator_works_at(operator, slot) || self.faults.lost_leases > 0 {
                actions.push(Action::LetterLeaseEnds(slot));
            }
        }
    }

    pub(super) fn purge(&mut self, action: Action, design: Design) {
        match (action, self.purger) {
            (Action::Purge(slot), _) => {
                self.faults.purges -= 1;
                self.purger = Purger::Delete(slot);
                if let Some(letter) = &mut self.letters[slot] {
                    letter.holder = Some(Operator::Purge);
                }
            }
            (Action::Purger, Purger::Delete(slot)) => {
                self.purger = Purger::Idle;
                let Some(job) = self.held_letter(slot, Operator::Purge).map(|letter| letter.job) else {
                    return;
                };
                self.letters[slot] = None;
                self.purged[job] = true;
                if design == Design::PurgeDeletesPayload {
                    self.purger = Purger::DeletePayload(job);
                }
            }
            (Action::Purger, Purger::DeletePayload(job)) => {
                self.payloads[job] = false;
                self.purger = Purger::Idle;
            }
            (Action::LetterLeaseEnds(slot), _) => {
                let holder = self.letters[slot].as_mut().and_then(|letter| letter.holder.take());
                let works = holder.is_some_and(|operator| self.operator_works_at(operator, slot));
                self.faults.lost_leases -= u8::from(works);
            }
            _ => {}
        }
    }
}
