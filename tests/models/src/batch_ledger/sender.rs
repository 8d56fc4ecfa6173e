//! The steps of the fan-out and of redrives.

use super::Design;
use super::state::{Action, Claimant, FanOut, Job, Redriver, State};

impl State {
    pub(super) fn fan_out_actions(&self, actions: &mut Vec<Action>) {
        if self.fan_out != FanOut::Returned {
            actions.push(Action::FanOut);
            if self.faults.lost_answers > 0 && matches!(self.fan_out, FanOut::Send(_) | FanOut::Put) {
                actions.push(Action::FanOutUnheard);
            }
            if self.faults.crashes > 0 && !matches!(self.fan_out, FanOut::Dead(_)) {
                actions.push(Action::FanOutDies);
            }
        }
        if self.faults.strays > 0 {
            actions.push(Action::Stray);
        }
        if self.claim.is_some() && (!self.claimant_works() || self.faults.lost_leases > 0) {
            actions.push(Action::ClaimEnds);
        }
    }

    pub(super) fn send(&mut self, action: Action, design: Design) {
        match action {
            Action::FanOut => self.fan_out = self.fan_out_step(design),
            Action::FanOutUnheard => {
                self.faults.lost_answers -= 1;
                self.fan_out_step(design);
            }
            Action::FanOutDies => {
                self.faults.crashes -= 1;
                // A cursor holds how many children were certainly sent, and is behind by one.
                self.fan_out = match self.fan_out {
                    FanOut::Plan | FanOut::Send(_) => FanOut::Dead(0),
                    _ => FanOut::Dead(1),
                };
            }
            Action::Stray => {
                self.faults.strays -= 1;
                self.put(Job::Stray);
            }
            _ => {}
        }
    }

    /// Takes a step. Returns the next state of the fan-out.
    fn fan_out_step(&mut self, design: Design) -> FanOut {
        match self.fan_out {
            FanOut::Plan => {
                self.planned = design != Design::ChildrenBeforePlan;
                FanOut::Send(0)
            }
            FanOut::Dead(child) => {
                self.planned = design != Design::ChildrenBeforePlan;
                FanOut::Send(child)
            }
            FanOut::Send(child) => {
                self.was_put[child] = true;
                self.put(Job::Child(child));
                if child == 0 { FanOut::Send(1) } else { FanOut::Seal }
            }
            FanOut::Seal => {
                self.planned = true;
                self.sealed = true;
                FanOut::Check
            }
            FanOut::Check if self.is_complete(design) => FanOut::Claim,
            FanOut::Claim if self.sent || self.continued => FanOut::Returned,
            FanOut::Claim => match self.claim {
                None | Some(Claimant::FanOut) => {
                    self.claim = Some(Claimant::FanOut);
                    FanOut::Put
                }
                Some(_) if design == Design::NoClaim => FanOut::Put,
                // It waits.
                Some(_) => FanOut::Claim,
            },
            FanOut::Put => {
                self.puts += 1;
                self.put(Job::Continuation);
                FanOut::Sent
            }
            FanOut::Sent => {
                self.sent = true;
                FanOut::Returned
            }
            FanOut::Check | FanOut::Returned => FanOut::Returned,
        }
    }

    pub(super) fn redrive_actions(&self, actions: &mut Vec<Action>) {
        if self.redriver == Redriver::Idle {
            let letters = (0..self.letters.len()).filter(|slot| self.letters[*slot].is_some());
            actions.extend(letters.map(Action::Redrive));
            return;
        }
        actions.push(Action::Redriver);
        if self.faults.crashes > 0 {
            actions.push(Action::RedriverDies);
        }
    }

    pub(super) fn redrive(&mut self, action: Action) {
        match action {
            Action::Redrive(slot) => self.redriver = Redriver::Reopen(slot),
            Action::Redriver => self.redriver = self.redriver_step(),
            Action::RedriverDies => {
                self.faults.crashes -= 1;
                self.redriver = Redriver::Idle;
            }
            _ => {}
        }
    }

    fn redriver_step(&mut self) -> Redriver {
        match self.redriver {
            Redriver::Reopen(slot) => {
                let Some(letter) = &self.letters[slot] else { return Redriver::Idle };
                let marker = &mut self.markers[letter.child];
                if marker.done {
                    return Redriver::Delete(slot);
                }
                marker.reopened = marker.reopened.max(letter.occurrence);
                marker.dead = marker.dead.filter(|dead| *dead > marker.reopened);
                Redriver::Put(slot)
            }
            Redriver::Put(slot) => {
                let Some(letter) = &self.letters[slot] else { return Redriver::Idle };
                let child = letter.child;
                self.put(Job::Child(child));
                Redriver::Delete(slot)
            }
            Redriver::Delete(slot) => {
                self.letters[slot] = None;
                Redriver::Idle
            }
            Redriver::Idle => Redriver::Idle,
        }
    }
}
