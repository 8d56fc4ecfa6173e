//! The state: messages, letters, the ledger, processes, and the memory of the properties.

use super::Design;

/// The number of times that each fault may happen in one run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Faults {
    /// Processes that die.
    pub crashes: u8,
    /// Puts that are applied and not answered.
    pub lost_answers: u8,
    /// Leases, of messages or of the claim, that end while their holder works.
    pub lost_leases: u8,
    /// Children that fail for good.
    pub deaths: u8,
    /// Messages that claim to be children, and are none.
    pub strays: u8,
    /// Not a fault: the batch is sent and sealed at the beginning, so that more can happen afterwards.
    pub is_sent: bool,
}

impl Faults {
    /// Returns how many of `all` have happened that can cause another put of the continuation.
    pub(super) fn causes_until(&self, all: &Self) -> u8 {
        let left = self.crashes + self.lost_answers + self.lost_leases;
        all.crashes + all.lost_answers + all.lost_leases - left
    }
}

/// The kind of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Job {
    /// The child with this index.
    Child(usize),
    /// A message that claims to be a child, and is not in the plan.
    Stray,
    /// The job that follows when all children are done.
    Continuation,
}

/// A message in the queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Message {
    pub(super) job: Job,
    /// The number of the copy of a job.
    pub(super) copy: u8,
    pub(super) holder: Option<usize>,
    /// Set if the message has failed for good and must be moved.
    pub(super) dead: Option<u8>,
}

/// A message in the dead-letter queue. Only children fail.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Letter {
    pub(super) child: usize,
    /// The number of the child's dead-lettering.
    pub(super) occurrence: u8,
}

/// The ledger's entry of a child.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Marker {
    pub(super) done: bool,
    pub(super) dead: Option<u8>,
    /// The latest occurrence that a redrive has handled or is handling.
    pub(super) reopened: u8,
}

/// The progress of the fan-out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FanOut {
    /// The names must be written.
    Plan,
    /// This child must be sent.
    Send(usize),
    /// The continuation must be written into the plan.
    Seal,
    /// See [`Step`].
    Check,
    /// See [`Step`].
    Claim,
    /// See [`Step`].
    Put,
    /// See [`Step`].
    Sent,
    /// The process has died; the application starts it again with this child.
    Dead(usize),
    /// The fan-out has returned.
    Returned,
}

/// The next step of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Step {
    /// It reads the marker.
    Admit,
    /// The handler runs.
    Run,
    /// The marker must be written.
    Mark,
    /// It checks whether all are done.
    Check,
    /// The continuation must be claimed.
    Claim,
    /// The continuation must be put.
    Put,
    /// `sent` must be written.
    Sent,
    /// A copy must be put into the dead-letter queue.
    Copy,
    /// The marker of the dead letter must be written.
    MarkDead,
    /// The message must be deleted.
    Delete,
}

/// A worker with a message that it has leased.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Worker {
    pub(super) step: Step,
    pub(super) slot: usize,
    pub(super) job: Job,
    pub(super) copy: u8,
    pub(super) occurrence: u8,
}

/// The progress of a redrive of the letter in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Redriver {
    /// It has no letter.
    Idle,
    /// The marker must be reopened.
    Reopen(usize),
    /// The message must be put.
    Put(usize),
    /// The letter must be deleted.
    Delete(usize),
}

/// The process that claims the continuation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Claimant {
    /// The process that seals the batch.
    FanOut,
    /// A worker.
    Worker(usize),
}

/// A step of a process, of the storage or of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The fan-out takes its next step.
    FanOut,
    /// Like `FanOut`, but the answer is lost.
    FanOutUnheard,
    /// The fan-out dies.
    FanOutDies,
    /// A message is sent that claims to be a child.
    Stray,
    /// A claim expires.
    ClaimEnds,
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
    /// A redrive of the letter in a slot begins.
    Redrive(usize),
    /// The redrive takes its next step.
    Redriver,
    /// The redrive dies, and its letter becomes visible again.
    RedriverDies,
}

impl Action {
    /// Returns whether this happens in a run without further faults.
    pub(super) fn is_fair(self) -> bool {
        use Action as A;
        matches!(self, A::FanOut | A::Worker(_) | A::LeaseEnds(_) | A::Redrive(_) | A::Redriver)
    }
}

/// The state of the model.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub(super) queue: [Option<Message>; 8],
    pub(super) letters: [Option<Letter>; 3],
    pub(super) planned: bool,
    pub(super) sealed: bool,
    /// The last one is that of a stray child, which only [`Design::Counting`] writes.
    pub(super) markers: [Marker; 3],
    /// The elected copy of a child, if there is one.
    pub(super) elected: [Option<u8>; 2],
    pub(super) claim: Option<Claimant>,
    pub(super) sent: bool,
    pub(super) continued: bool,
    pub(super) fan_out: FanOut,
    pub(super) workers: [Option<Worker>; 2],
    pub(super) redriver: Redriver,
    pub(super) faults: Faults,
    /// The children whose handler has succeeded.
    pub(super) done: [bool; 2],
    /// The children that were put at least once.
    pub(super) was_put: [bool; 2],
    pub(super) deaths: [u8; 2],
    /// The number of times that the continuation was put.
    pub(super) puts: u8,
}

impl State {
    pub(super) fn new(faults: Faults) -> Self {
        let mut state = Self::before_the_plan(faults);
        if faults.is_sent {
            state.planned = true;
            state.sealed = true;
            state.fan_out = FanOut::Returned;
            state.was_put = [true; 2];
            state.put(Job::Child(0));
            state.put(Job::Child(1));
        }
        state
    }

    fn before_the_plan(faults: Faults) -> Self {
        Self {
            queue: [const { None }; 8],
            letters: [const { None }; 3],
            planned: false,
            sealed: false,
            markers: [Marker::default(); 3],
            elected: [None; 2],
            claim: None,
            sent: false,
            continued: false,
            fan_out: FanOut::Plan,
            workers: [None; 2],
            redriver: Redriver::Idle,
            faults,
            done: [false; 2],
            was_put: [false; 2],
            deaths: [0; 2],
            puts: 0,
        }
    }

    pub(super) fn apply(&mut self, action: Action, design: Design) {
        use Action as A;
        match action {
            A::FanOut | A::FanOutUnheard | A::FanOutDies | A::Stray => self.send(action, design),
            A::ClaimEnds => {
                self.faults.lost_leases -= u8::from(self.claimant_works());
                self.claim = None;
            }
            A::Redrive(_) | A::Redriver | A::RedriverDies => self.redrive(action),
            _ => self.work(action, design),
        }
    }

    /// Returns whether the claimant of the continuation is about to put it.
    pub(super) fn claimant_works(&self) -> bool {
        match self.claim {
            Some(Claimant::FanOut) => matches!(self.fan_out, FanOut::Put | FanOut::Sent),
            Some(Claimant::Worker(w)) => {
                self.workers[w].is_some_and(|worker| matches!(worker.step, Step::Put | Step::Sent))
            }
            None => false,
        }
    }

    /// Makes states equal that differ only in the order of messages, or in the numbers of workers.
    pub(super) fn normalise(&mut self) {
        let mut order = [0, 1, 2, 3, 4, 5, 6, 7];
        order.sort_by_key(|slot| (self.queue[*slot].is_none(), self.queue[*slot].clone(), *slot));
        let queue = self.queue.clone();
        self.queue = order.map(|slot| queue[slot].clone());
        for worker in self.workers.iter_mut().flatten() {
            worker.slot = order.iter().position(|slot| *slot == worker.slot).unwrap_or(worker.slot);
        }
        if self.workers[0] > self.workers[1] {
            self.workers.swap(0, 1);
            let holders = self.queue.iter_mut().flatten().filter_map(|message| message.holder.as_mut());
            holders.for_each(|worker| *worker = 1 - *worker);
            if let Some(Claimant::Worker(worker)) = &mut self.claim {
                *worker = 1 - *worker;
            }
        }
    }

    pub(super) fn put(&mut self, job: Job) {
        let used: Vec<u8> = self
            .queue
            .iter()
            .flatten()
            .map(|message| message.copy)
            .chain(self.workers.iter().flatten().map(|worker| worker.copy))
            .chain(self.elected.iter().flatten().copied())
            .collect();
        let copy = (0..).find(|copy| !used.contains(copy)).unwrap_or_default();
        let free = self.queue.iter_mut().find(|slot| slot.is_none()).expect("a slot for every message");
        *free = Some(Message { job, copy, holder: None, dead: None });
    }

    /// Returns whether all sent members of the batch have ended, according to the ledger.
    pub(super) fn is_complete(&self, design: Design) -> bool {
        let done = self.markers.iter().filter(|marker| marker.done).count();
        match design {
            Design::Counting => self.sealed && done >= 2,
            _ => self.sealed && self.markers[..2].iter().all(|marker| marker.done),
        }
    }

    pub(super) fn is_nothing_lost(&self) -> bool {
        let stored = |job: Job| self.queue.iter().flatten().any(|message| message.job == job);
        let dead = |child: usize| self.letters.iter().flatten().any(|letter| letter.child == child);
        let child_kept = |child: usize| {
            !self.was_put[child] || self.done[child] || stored(Job::Child(child)) || dead(child)
        };
        (0..2).all(child_kept) && (self.puts == 0 || self.continued || stored(Job::Continuation))
    }

    pub(super) fn is_settled(&self) -> bool {
        let empty = self.queue.iter().all(Option::is_none) && self.letters.iter().all(Option::is_none);
        empty && self.continued
    }
}
