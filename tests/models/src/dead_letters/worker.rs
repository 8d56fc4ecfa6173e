//! The steps of workers.

use super::Design;
use super::state::{Action, Letter, Message, State, Step, Worker};

impl State {
    pub(super) fn worker_actions(&self, actions: &mut Vec<Action>) {
        for (w, worker) in self.workers.iter().enumerate() {
            let Some(worker) = worker else {
                let free = |slot: &usize| self.queue[*slot].as_ref().is_some_and(|m| m.holder.is_none());
                actions.extend((0..self.queue.len()).filter(free).map(|slot| Action::Lease(w, slot)));
                continue;
            };
            actions.push(Action::Worker(w));
            if self.faults.deaths > 0 && worker.step == Step::Run {
                actions.push(Action::Fail(w));
            }
            if self.faults.lost_answers > 0 && worker.step == Step::Copy {
                actions.push(Action::WorkerUnheard(w));
            }
            if self.faults.crashes > 0 {
                actions.push(Action::WorkerDies(w));
            }
        }
        for (slot, message) in self.queue.iter().enumerate() {
            let Some(w) = message.as_ref().and_then(|message| message.holder) else { continue };
            if !self.works_at(w, slot) || self.faults.lost_leases > 0 {
                actions.push(Action::LeaseEnds(slot));
            }
        }
    }

    fn works_at(&self, w: usize, slot: usize) -> bool {
        self.workers[w].is_some_and(|worker| worker.slot == slot)
    }

    pub(super) fn work(&mut self, action: Action, design: Design) {
        match action {
            Action::Lease(w, slot) => {
                let Some(message) = &mut self.queue[slot] else { return };
                message.holder = Some(w);
                let (job, dead) = (message.job, message.dead);
                let step = match dead {
                    // The job is done, and this message is a duplicate.
                    _ if self.done[job] => Step::Delete,
                    Some(_) => Step::Copy,
                    None => Step::Run,
                };
                self.workers[w] = Some(Worker { step, slot, job, dead });
            }
            Action::Worker(w) => self.workers[w] = self.worker_step(w, design),
            Action::WorkerUnheard(w) => {
                self.faults.lost_answers -= 1;
                self.worker_step(w, design);
            }
            Action::Fail(w) => {
                self.faults.deaths -= 1;
                self.workers[w] = self.fail(w, design);
            }
            Action::WorkerDies(w) => {
                self.faults.crashes -= 1;
                self.workers[w] = None;
            }
            Action::LeaseEnds(slot) => {
                let holder = self.queue[slot].as_mut().and_then(|message| message.holder.take());
                let works = holder.is_some_and(|w| self.works_at(w, slot));
                self.faults.lost_leases -= u8::from(works);
            }
            _ => {}
        }
    }

    /// Returns the message of a worker if it still has the lease.
    fn held(&mut self, w: usize) -> Option<&mut Message> {
        let worker = self.workers[w]?;
        self.queue[worker.slot].as_mut().filter(|message| message.holder == Some(w))
    }

    /// The attempt and the occurrence are recorded before the letter is copied.
    fn fail(&mut self, w: usize, design: Design) -> Option<Worker> {
        let worker = self.workers[w]?;
        let occurrence = self.deaths[worker.job] + 1;
        self.held(w)?.dead = Some(occurrence);
        self.deaths[worker.job] = occurrence;
        let step = if design == Design::DeleteBeforeCopy { Step::Delete } else { Step::Copy };
        Some(Worker { step, dead: Some(occurrence), ..worker })
    }

    /// Takes a step. Returns the next state of the worker. Only its lease keeps a stale worker from deleting.
    fn worker_step(&mut self, w: usize, design: Design) -> Option<Worker> {
        let worker = self.workers[w]?;
        let next = |step| Some(Worker { step, ..worker });
        match worker.step {
            Step::Run => next(Step::Delete),
            Step::Copy => {
                self.put_letter(worker.job, worker.dead.unwrap_or_default());
                if design == Design::DeleteBeforeCopy { None } else { next(Step::Delete) }
            }
            Step::Delete => {
                self.held(w)?;
                self.queue[worker.slot] = None;
                if worker.dead.is_none() {
                    self.done[worker.job] = true;
                }
                match (worker.dead, design) {
                    (None, _) => next(Step::DeletePayload),
                    (Some(_), Design::DeleteBeforeCopy) => next(Step::Copy),
                    (Some(_), _) => None,
                }
            }
            // The message is gone, and the job is done: this is the only proof that a payload may be deleted.
            Step::DeletePayload => {
                self.payloads[worker.job] = false;
                None
            }
        }
    }

    fn put_letter(&mut self, job: usize, occurrence: u8) {
        let letter = Letter { job, occurrence, holder: None };
        let same = |other: &&Letter| (other.job, other.occurrence) == (job, occurrence);
        // A third letter of the same occurrence shows nothing new.
        if self.letters.iter().flatten().filter(same).count() < 2
            && let Some(free) = self.letters.iter_mut().find(|slot| slot.is_none())
        {
            *free = Some(letter);
        }
    }
}
