//! The steps of workers.

use super::Design;
use super::state::{Action, Letter, Message, State, Step, Worker, references};

impl State {
    pub(super) fn worker_actions(&self, actions: &mut Vec<Action>) {
        for (w, worker) in self.workers.iter().enumerate() {
            let Some(worker) = worker else {
                let free = |slot: &usize| self.queue[*slot].as_ref().is_some_and(|m| m.holder.is_none());
                actions.extend((0..self.queue.len()).filter(free).map(|slot| Action::Lease(w, slot)));
                continue;
            };
            actions.push(Action::Worker(w));
            if worker.step == Step::Run {
                if self.faults.deaths > 0 {
                    actions.push(Action::Fail(w));
                }
                if self.faults.checkpoints > 0 {
                    actions.push(Action::Checkpoint(w));
                }
            }
            if let Step::Update { ambiguous, .. } = worker.step {
                if self.faults.lost_answers > 0 && !ambiguous {
                    actions.push(Action::WorkerUnheard(w));
                }
                if self.faults.refusals > 0 {
                    actions.push(Action::UpdateRefused(w));
                }
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
        let done = |worker: &Worker| matches!(worker.step, Step::DeleteBlobs(_));
        self.workers[w].is_some_and(|worker| worker.slot == slot && !done(&worker))
    }

    pub(super) fn work(&mut self, action: Action, design: Design) {
        match action {
            Action::Lease(w, slot) => self.workers[w] = self.lease(w, slot, design),
            Action::Worker(w) => self.workers[w] = self.worker_step(w, design),
            Action::WorkerUnheard(w) => {
                self.faults.lost_answers -= 1;
                self.workers[w] = self.update_unheard(w);
            }
            Action::Checkpoint(w) => {
                self.faults.checkpoints -= 1;
                let blob = self.write_blob();
                self.set_step(w, Step::Update { blob, ambiguous: false });
            }
            Action::UpdateRefused(w) => {
                self.faults.refusals -= 1;
                self.update_refused(w, design);
            }
            Action::Fail(w) => {
                self.faults.deaths -= 1;
                let recorded = self.held(w).map(|message| message.dead = true).is_some();
                self.set_step(w, Step::CopyBlobs);
                self.workers[w] = self.workers[w].filter(|_| recorded);
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

    fn set_step(&mut self, w: usize, step: Step) {
        if let Some(worker) = &mut self.workers[w] {
            worker.step = step;
        }
    }

    fn lease(&mut self, w: usize, slot: usize, design: Design) -> Option<Worker> {
        let other_runs = self.queue.iter().flatten().any(|message| message.holder.is_some());
        let message = self.queue[slot].as_mut()?;
        message.holder = Some(w);
        let step = match message.dead {
            // The job is done, and this message is a duplicate.
            _ if self.done => Step::Delete { done: true },
            // Another copy was elected.
            _ if design == Design::DuplicateDeletesBlob && other_runs => Step::Delete { done: true },
            true => Step::CopyBlobs,
            false => Step::Run,
        };
        Some(Worker { step, slot })
    }

    /// Returns the message of a worker if it still has the lease.
    fn held(&mut self, w: usize) -> Option<&mut Message> {
        let worker = self.workers[w]?;
        self.queue[worker.slot].as_mut().filter(|message| message.holder == Some(w))
    }

    /// The update is applied, its answer is lost, and with it the receipt.
    fn update_unheard(&mut self, w: usize) -> Option<Worker> {
        let worker = self.workers[w]?;
        let Step::Update { blob, .. } = worker.step else { return None };
        self.held(w)?.checkpoint = Some(blob);
        Some(Worker { step: Step::Update { blob, ambiguous: true }, ..worker })
    }

    fn update_refused(&mut self, w: usize, design: Design) {
        let Some(Worker { step: Step::Update { blob, ambiguous }, .. }) = self.workers[w] else { return };
        if ambiguous && design != Design::LastErrorDecides {
            // Uncertain: the worker saves no more checkpoints, cannot delete the message, and leaves the blobs alone.
            self.workers[w] = None;
        } else {
            self.set_step(w, Step::DeleteBlob(blob));
        }
    }

    /// Takes a step. Returns the next state of the worker.
    fn worker_step(&mut self, w: usize, design: Design) -> Option<Worker> {
        let worker = self.workers[w]?;
        let next = |step| Some(Worker { step, ..worker });
        match worker.step {
            Step::Run => next(Step::Delete { done: true }),
            // The receipt is lost: "not found".
            Step::Update { ambiguous: true, .. } => None,
            Step::Update { blob, ambiguous: false } => {
                let replaced = self.held(w)?.checkpoint.replace(blob);
                next(replaced.map_or(Step::Run, Step::DeleteBlob))
            }
            Step::DeleteBlob(blob) => {
                self.delete_blobs(1 << blob);
                next(Step::Run)
            }
            Step::CopyBlobs => {
                let message = self.queue[worker.slot].as_ref().filter(|message| message.dead)?;
                let (payload, checkpoint) = (message.payload, message.checkpoint);
                let (payload, checkpoint) = match design {
                    Design::LetterSharesBlobs => (payload, checkpoint),
                    _ => self.copy_blobs(payload, checkpoint),
                };
                next(Step::Copy { payload, checkpoint })
            }
            Step::Copy { payload, checkpoint } => {
                self.put_letter(Letter { payload, checkpoint });
                next(Step::Delete { done: false })
            }
            Step::Delete { done } => {
                let message = self.held(w)?.clone();
                self.queue[worker.slot] = None;
                // A duplicate that another copy was elected for has not run.
                let ran = design != Design::DuplicateDeletesBlob
                    || !self.queue.iter().flatten().any(|m| m.holder.is_some());
                self.done |= done && ran;
                let blobs = references(message.payload, message.checkpoint);
                // The letter has the blobs of its message, if it has none of its own.
                let shared = !done && design == Design::LetterSharesBlobs;
                if shared { None } else { next(Step::DeleteBlobs(blobs)) }
            }
            Step::DeleteBlobs(blobs) => {
                self.delete_blobs(blobs);
                None
            }
        }
    }

    fn put_letter(&mut self, letter: Letter) {
        if let Some(free) = self.letters.iter_mut().find(|slot| slot.is_none()) {
            *free = Some(letter);
        }
    }
}
