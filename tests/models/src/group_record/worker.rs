//! The steps of workers.

use super::Design;
use super::record::{Delivered, Job, Stand};
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
            if self.faults.lost_answers > 0 && matches!(worker.step, Step::Run | Step::Leave) {
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
                message.deliveries = (message.deliveries + 1).min(2);
                let (job, copy) = (message.job, message.copy);
                self.workers[w] = Some(Worker { step: Step::Stand, slot, job, copy });
            }
            Action::Worker(w) => self.workers[w] = self.worker_step(w, design),
            Action::WorkerUnheard(w) => {
                self.faults.lost_answers -= 1;
                self.worker_step(w, design);
            }
            Action::Fail(w) => {
                self.faults.deaths -= 1;
                self.workers[w] = self.fail(w);
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

    /// The attempt is recorded in the message before the letter is copied.
    fn fail(&mut self, w: usize) -> Option<Worker> {
        self.held(w)?.dead = true;
        self.workers[w].map(|worker| Worker { step: Step::Copy, ..worker })
    }

    /// Takes a step. Returns the next state of the worker. A request that was sent during the lease may be applied
    /// afterwards; only the queue itself refuses a worker that has lost its lease.
    fn worker_step(&mut self, w: usize, design: Design) -> Option<Worker> {
        let worker = self.workers[w]?;
        let (job, copy) = (worker.job, worker.copy);
        let next = |step| Some(Worker { step, ..worker });
        match worker.step {
            Step::Stand => self.admit(w, design).and_then(next),
            Step::Run if self.record.end(job, copy, w, true) => next(Step::Delete),
            Step::Copy => {
                self.put_letter(job);
                next(Step::Leave)
            }
            Step::Leave if self.record.end(job, copy, w, false) => {
                self.moved[job] = true;
                next(Step::Delete)
            }
            Step::Delete => {
                if self.held(w).is_some() {
                    self.queue[worker.slot] = None;
                }
                None
            }
            Step::Run | Step::Leave => None,
        }
    }

    fn admit(&mut self, w: usize, design: Design) -> Option<Step> {
        let worker = self.workers[w]?;
        let message = self.held(w)?.clone();
        if message.dead {
            // The attempts are used up; if another copy was done, this one is a duplicate.
            self.record.take_over(message.job, message.copy, w);
            return Some(if self.record.done[message.job] { Step::Delete } else { Step::Copy });
        }
        let delivery = Delivered { copy: worker.copy, first: message.deliveries == 1 };
        match self.stand(worker.job, delivery, w, design) {
            Stand::Run => {
                self.note_run(worker.job);
                Some(Step::Run)
            }
            Stand::Absorb => Some(Step::Delete),
            Stand::Wait => {
                self.held(w)?.holder = None;
                None
            }
        }
    }

    fn stand(&mut self, job: Job, delivery: Delivered, w: usize, design: Design) -> Stand {
        // Worker 1 has a sharded handle, by which every message has another name.
        if design == Design::MatchedByMessageId
            && self.bound[job].is_some_and(|bound| bound != delivery.copy || w == 1)
        {
            return Stand::Absorb;
        }
        self.record.stand(job, delivery, w, design)
    }

    fn put_letter(&mut self, job: Job) {
        let same = self.letters.iter().flatten().filter(|letter| letter.job == job).count();
        // A third letter of the same job shows nothing new.
        if same < 2
            && let Some(free) = self.letters.iter_mut().find(|slot| slot.is_none())
        {
            *free = Some(Letter { job, held: false });
        }
    }

    pub(super) fn runs(&self, job: Job) -> bool {
        self.workers.iter().flatten().any(|worker| worker.job == job && worker.step == Step::Run)
    }

    /// Compares the start of a run with the promises.
    fn note_run(&mut self, job: Job) {
        let other = 1 - job;
        let released = self.record.done[other] || self.moved[other] || self.cancel_begun[other];
        self.disorder |= self.before[job][other] && !released;
        self.refused_ran |= self.cancelled[job];
    }
}
