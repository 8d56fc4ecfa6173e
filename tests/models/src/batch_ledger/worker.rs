//! The steps of workers.

use super::Design;
use super::state::{Action, Claimant, Job, Letter, Message, State, Step, Worker};

impl State {
    pub(super) fn worker_actions(&self, actions: &mut Vec<Action>) {
        for (w, worker) in self.workers.iter().enumerate() {
            let Some(worker) = worker else {
                let free = |slot: &usize| self.queue[*slot].as_ref().is_some_and(|m| m.holder.is_none());
                actions.extend((0..self.queue.len()).filter(free).map(|slot| Action::Lease(w, slot)));
                continue;
            };
            actions.push(Action::Worker(w));
            let fails = matches!(worker.job, Job::Child(_)) && worker.step == Step::Run;
            if self.faults.deaths > 0 && fails {
                actions.push(Action::Fail(w));
            }
            if self.faults.lost_answers > 0 && matches!(worker.step, Step::Put | Step::Copy) {
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
                let (job, copy) = (message.job, message.copy);
                self.workers[w] = Some(Worker { step: Step::Admit, slot, job, copy, occurrence: 0 });
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
        let worker = self.workers[w]?;
        let Job::Child(child) = worker.job else { return None };
        let occurrence = self.deaths[child] + 1;
        self.held(w)?.dead = Some(occurrence);
        self.deaths[child] = occurrence;
        Some(Worker { step: Step::Copy, occurrence, ..worker })
    }

    /// Takes a step. Returns the next state of the worker. A request that was sent during the lease may be applied
    /// afterwards; only the queue itself refuses a worker that has lost its lease.
    fn worker_step(&mut self, w: usize, design: Design) -> Option<Worker> {
        let worker = self.workers[w]?;
        let next = |step| Some(Worker { step, ..worker });
        match worker.step {
            Step::Admit => self.admit(w, design),
            Step::Run => next(self.handler_ends(worker.job, design)),
            Step::Mark => next(self.mark(worker.job, design)),
            Step::Check => next(self.check(worker.job, design)),
            Step::Claim => self.claim(w, design).and_then(next),
            Step::Put => {
                self.puts += 1;
                self.put(Job::Continuation);
                next(Step::Sent)
            }
            Step::Sent => {
                self.sent = true;
                next(if design == Design::ContinuationBeforeMarker { Step::Mark } else { Step::Delete })
            }
            Step::Copy => {
                self.put_letter(worker);
                next(Step::MarkDead)
            }
            Step::MarkDead => {
                self.mark_dead(worker);
                next(Step::Delete)
            }
            Step::Delete => {
                if self.held(w).is_some() {
                    self.queue[worker.slot] = None;
                }
                None
            }
        }
    }

    fn admit(&mut self, w: usize, design: Design) -> Option<Worker> {
        let worker = self.workers[w]?;
        let dead = self.held(w)?.dead;
        let step = match worker.job {
            Job::Child(child) if self.markers[child].done => Step::Check,
            Job::Child(_) if dead.is_some() => Step::Copy,
            Job::Child(child) => match (design, self.elected[child]) {
                (Design::DuplicateMarks, Some(copy)) if copy != worker.copy => Step::Mark,
                (Design::DuplicateAbsorbed, Some(copy)) if copy != worker.copy => Step::Delete,
                (Design::DuplicateMarks | Design::DuplicateAbsorbed, _) => {
                    self.elected[child] = Some(worker.copy);
                    Step::Run
                }
                _ => Step::Run,
            },
            Job::Continuation if self.continued => Step::Delete,
            Job::Continuation | Job::Stray => Step::Run,
        };
        Some(Worker { step, occurrence: dead.unwrap_or(0), ..worker })
    }

    fn handler_ends(&mut self, job: Job, design: Design) -> Step {
        match job {
            Job::Child(child) => {
                self.done[child] = true;
                if !self.planned {
                    // No plan names it: it is like a stray message.
                    return Step::Delete;
                }
                if design == Design::ContinuationBeforeMarker { Step::Check } else { Step::Mark }
            }
            // It is in no plan, and marks nothing.
            Job::Stray if design != Design::Counting => Step::Delete,
            Job::Stray | Job::Continuation => Step::Mark,
        }
    }

    fn mark(&mut self, job: Job, design: Design) -> Step {
        match job {
            Job::Continuation => {
                self.continued = true;
                return Step::Delete;
            }
            Job::Child(child) => {
                self.markers[child].done = true;
                self.markers[child].dead = None;
            }
            Job::Stray => self.markers[2].done = true,
        }
        if design == Design::ContinuationBeforeMarker { Step::Delete } else { Step::Check }
    }

    fn check(&mut self, job: Job, design: Design) -> Step {
        let complete = match (design, job) {
            // The others: the own marker is not written yet.
            (Design::ContinuationBeforeMarker, Job::Child(child)) => {
                self.sealed && self.markers[1 - child].done
            }
            _ => self.is_complete(design),
        };
        match design {
            _ if complete => Step::Claim,
            Design::ContinuationBeforeMarker => Step::Mark,
            _ => Step::Delete,
        }
    }

    fn claim(&mut self, w: usize, design: Design) -> Option<Step> {
        if self.sent || self.continued {
            return Some(if design == Design::ContinuationBeforeMarker { Step::Mark } else { Step::Delete });
        }
        match self.claim {
            Some(other) if other != Claimant::Worker(w) => match design {
                Design::NoClaim => Some(Step::Put),
                Design::TrustsClaim => Some(Step::Delete),
                _ => {
                    // Its message is delivered again.
                    if let Some(message) = self.held(w) {
                        message.holder = None;
                    }
                    None
                }
            },
            _ => {
                self.claim = Some(Claimant::Worker(w));
                Some(Step::Put)
            }
        }
    }

    fn put_letter(&mut self, worker: Worker) {
        let Job::Child(child) = worker.job else { return };
        let letter = Letter { child, occurrence: worker.occurrence };
        let same = self.letters.iter().flatten().filter(|other| **other == letter).count();
        // A third letter of the same occurrence shows nothing new.
        if same < 2
            && let Some(free) = self.letters.iter_mut().find(|slot| slot.is_none())
        {
            *free = Some(letter);
        }
    }

    fn mark_dead(&mut self, worker: Worker) {
        let Job::Child(child) = worker.job else { return };
        if self.elected[child] == Some(worker.copy) {
            self.elected[child] = None;
        }
        let marker = &mut self.markers[child];
        if !marker.done && worker.occurrence > marker.reopened {
            marker.dead = Some(worker.occurrence);
        }
    }
}
