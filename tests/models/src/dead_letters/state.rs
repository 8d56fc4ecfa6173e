//! The state: messages, letters, payloads, processes, and the memory of the properties.

use super::Design;

/// The number of times that each fault may happen in one run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Faults {
    /// Processes that die.
    pub crashes: u8,
    /// Puts that are applied and not answered.
    pub lost_answers: u8,
    /// Leases that end while their holder works.
    pub lost_leases: u8,
    /// Jobs that fail for good.
    pub deaths: u8,
    /// Letters that an operator purges.
    pub purges: u8,
}

/// A message in the queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Message {
    pub(super) job: usize,
    pub(super) holder: Option<usize>,
    /// The occurrence, once the job has failed for good.
    pub(super) dead: Option<u8>,
}

/// A process that leases letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operator {
    /// It redrives letters.
    Redrive,
    /// It deletes them.
    Purge,
}

/// A message in the dead-letter queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Letter {
    pub(super) job: usize,
    pub(super) occurrence: u8,
    pub(super) holder: Option<Operator>,
}

/// The next step of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Step {
    /// The handler runs.
    Run,
    /// The letter must be put.
    Copy,
    /// The message must be deleted.
    Delete,
    /// The payload must be deleted.
    DeletePayload,
}

/// A worker with a message that it has leased.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Worker {
    pub(super) step: Step,
    pub(super) slot: usize,
    pub(super) job: usize,
    /// The occurrence; `None` unless the job has failed for good.
    pub(super) dead: Option<u8>,
}

/// The next step of a redrive with the letter in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Redriver {
    /// It has no letter.
    Idle,
    /// The message must be put.
    Put { slot: usize, job: usize, occurrence: u8 },
    /// The letter must be deleted.
    Delete { slot: usize, job: usize, occurrence: u8 },
}

/// The next step of a purge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Purger {
    /// It has no letter.
    Idle,
    /// The letter in a slot must be deleted.
    Delete(usize),
    /// The payload of a job must be deleted ([`Design::PurgeDeletesPayload`]).
    DeletePayload(usize),
}

/// A step of a process, of the storage or of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A worker leases the message in a slot.
    Lease(usize, usize),
    /// A worker takes its next step.
    Worker(usize),
    /// Like `Worker`, but the answer is lost.
    WorkerUnheard(usize),
    /// A handler fails for good.
    Fail(usize),
    /// A worker dies.
    WorkerDies(usize),
    /// The lease of the message in a slot ends.
    LeaseEnds(usize),
    /// The redrive leases the letter in a slot.
    Redrive(usize),
    /// The redrive takes its next step.
    Redriver,
    /// Like `Redriver`, but the answer is lost.
    RedriverUnheard,
    /// The redrive dies; another one begins.
    RedriverDies,
    /// The purge leases the letter in a slot.
    Purge(usize),
    /// The purge takes its next step.
    Purger,
    /// The lease of the letter in a slot ends.
    LetterLeaseEnds(usize),
}

impl Action {
    /// Returns whether this happens in a run without further faults.
    pub(super) fn is_fair(self) -> bool {
        use Action as A;
        let faults = matches!(
            self,
            A::WorkerUnheard(_)
                | A::Fail(_)
                | A::WorkerDies(_)
                | A::RedriverUnheard
                | A::RedriverDies
                | A::Purge(_)
        );
        !faults
    }
}

/// The state of the model.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub(super) queue: [Option<Message>; 5],
    pub(super) letters: [Option<Letter>; 5],
    pub(super) payloads: [bool; 2],
    pub(super) workers: [Option<Worker>; 2],
    pub(super) redriver: Redriver,
    /// The jobs and occurrences that this redrive has put back.
    pub(super) put_back: Vec<(usize, u8)>,
    pub(super) purger: Purger,
    pub(super) faults: Faults,
    /// The number of times that a job was dead-lettered.
    pub(super) deaths: [u8; 2],
    /// The jobs whose completion was acknowledged.
    pub(super) done: [bool; 2],
    pub(super) purged: [bool; 2],
    pub(super) deleted_unproven: bool,
}

impl State {
    pub(super) fn new(faults: Faults) -> Self {
        let message = |job| Some(Message { job, holder: None, dead: None });
        Self {
            queue: [message(0), message(1), None, None, None],
            letters: [const { None }; 5],
            payloads: [true; 2],
            workers: [None; 2],
            redriver: Redriver::Idle,
            put_back: Vec::new(),
            purger: Purger::Idle,
            faults,
            deaths: [0; 2],
            done: [false; 2],
            purged: [false; 2],
            deleted_unproven: false,
        }
    }

    pub(super) fn apply(&mut self, action: Action, design: Design) {
        use Action as A;
        match action {
            A::Redrive(_) | A::Redriver | A::RedriverUnheard | A::RedriverDies => {
                self.redrive(action, design);
            }
            A::Purge(_) | A::Purger | A::LetterLeaseEnds(_) => self.purge(action, design),
            _ => self.work(action, design),
        }
    }

    /// Makes states equal that differ only in the order of messages and letters, or in the numbers of workers.
    pub(super) fn normalise(&mut self) {
        let order = sort(&mut self.queue);
        for worker in self.workers.iter_mut().flatten() {
            worker.slot = order[worker.slot];
        }
        let order = sort(&mut self.letters);
        if let Redriver::Put { slot, .. } | Redriver::Delete { slot, .. } = &mut self.redriver {
            *slot = order[*slot];
        }
        if let Purger::Delete(slot) = &mut self.purger {
            *slot = order[*slot];
        }
        self.put_back.sort_unstable();
        self.put_back.dedup();
        if self.workers[0] > self.workers[1] {
            self.workers.swap(0, 1);
            let holders = self.queue.iter_mut().flatten().filter_map(|message| message.holder.as_mut());
            holders.for_each(|worker| *worker = 1 - *worker);
        }
    }

    pub(super) fn is_kept(&self, job: usize) -> bool {
        self.done[job]
            || self.purged[job]
            || self.queue.iter().flatten().any(|message| message.job == job)
            || self.letters.iter().flatten().any(|letter| letter.job == job)
    }

    pub(super) fn has_payload(&self, job: usize) -> bool {
        let needed = self.queue.iter().flatten().any(|message| message.job == job)
            || self.letters.iter().flatten().any(|letter| letter.job == job);
        self.payloads[job] || self.done[job] || !needed
    }
}

/// Sorts the slots, free ones last, and returns the new place of each.
fn sort<T: Clone + Ord>(slots: &mut [Option<T>; 5]) -> [usize; 5] {
    let mut order = [0, 1, 2, 3, 4];
    order.sort_by_key(|slot| (slots[*slot].is_none(), slots[*slot].clone(), *slot));
    let before = slots.clone();
    *slots = order.map(|slot| before[slot].clone());
    let mut places = [0; 5];
    order.iter().enumerate().for_each(|(place, slot)| places[*slot] = place);
    places
}
