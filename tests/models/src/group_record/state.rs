//! The state: messages, letters, processes, and the memory of the properties.

use super::Design;
use super::record::{EntryState, Job, Nonce, Record};

/// The number of times that each fault may happen in one run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Faults {
    /// Not a fault: the number of jobs that are sent, 1 or 2.
    pub jobs: u8,
    /// Processes that die.
    pub crashes: u8,
    /// Changes that are applied and not answered.
    pub lost_answers: u8,
    /// Puts that are not answered, and whose message arrives at any later time.
    pub late_puts: u8,
    /// Puts that are certainly refused.
    pub refusals: u8,
    /// Leases that end while their holder works.
    pub lost_leases: u8,
    /// Jobs that fail for good.
    pub deaths: u8,
    /// Redrives of a letter.
    pub redrives: u8,
    /// Cancellations.
    pub cancels: u8,
    /// Sends that are repeated under the same id.
    pub resends: u8,
}

/// A message in the queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Message {
    pub(super) job: Job,
    /// The number of the copy of a job, in the message itself.
    pub(super) copy: u8,
    /// The number of deliveries: 0, 1, or 2 for more than one.
    pub(super) deliveries: u8,
    pub(super) holder: Option<usize>,
    /// True if the job has failed for good and its message must be moved.
    pub(super) dead: bool,
}

/// A message in the dead-letter queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Letter {
    pub(super) job: Job,
    pub(super) held: bool,
}

/// The progress of a sender. Sender `n` sends job `n`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sender {
    /// Nothing under way.
    Idle,
    /// The record must be written.
    Announce(Nonce),
    /// The message must be put.
    Put { nonce: Nonce, ambiguous: bool },
    /// The entry must be confirmed.
    Confirm { nonce: Nonce, copy: u8, single: bool },
    /// The entry of a refused put must be removed.
    Revoke(Nonce),
    /// The entry must be marked.
    Mark { nonce: Nonce, copy: u8 },
    /// The message of a marked entry must be deleted.
    Delete { nonce: Nonce, copy: u8, ambiguous: bool },
    /// The mark must be removed, with its entry or alone.
    Unmark { nonce: Nonce, deleted: Option<bool> },
}

/// The next step of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Step {
    /// It reads the record.
    Stand,
    /// The handler runs; then the entry must be removed as done.
    Run,
    /// A copy must be put into the dead-letter queue.
    Copy,
    /// The entry must be removed as dead.
    Leave,
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
}

/// The progress of a redrive of the letter in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Redriver {
    /// It has no letter.
    Idle,
    /// The record must be written.
    Announce(usize),
    /// The message must be put.
    Put(usize, Nonce),
    /// The entry must be confirmed.
    Confirm(usize, Nonce),
    /// The letter must be deleted.
    Delete(usize),
}

/// A step of a process, of the storage or of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A sender begins a send.
    Send(usize),
    /// A sender takes its next step.
    Sender(usize),
    /// Like `Sender`, but the answer is lost.
    SenderUnheard(usize),
    /// A put takes longer than its sender waits.
    PutLate(usize),
    /// A put is refused.
    PutRefused(usize),
    /// A sender gives up after a put without an answer.
    GiveUp(usize),
    /// A sender that was acknowledged begins to cancel.
    Cancel(usize),
    /// A sender dies.
    SenderDies(usize),
    /// A late message arrives.
    Arrive,
    /// The time of the first entry is over.
    TimeOut,
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
    /// Like `Redriver`, but the answer is lost.
    RedriverUnheard,
    /// The redrive dies, and its letter becomes visible again.
    RedriverDies,
}

impl Action {
    /// Returns whether this happens in a run without further faults.
    pub(super) fn is_fair(self) -> bool {
        use Action as A;
        matches!(
            self,
            A::Sender(_)
                | A::Arrive
                | A::TimeOut
                | A::Lease(..)
                | A::Worker(_)
                | A::LeaseEnds(_)
                | A::Redriver
        )
    }
}

/// The state of the model.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub(super) queue: [Option<Message>; 4],
    pub(super) in_flight: [Option<Message>; 1],
    pub(super) letters: [Option<Letter>; 3],
    pub(super) record: Record,
    pub(super) senders: [Sender; 2],
    pub(super) workers: [Option<Worker>; 2],
    pub(super) redriver: Redriver,
    pub(super) next_nonce: Nonce,
    pub(super) faults: Faults,
    /// The number of begun sends of each job.
    pub(super) sends: [u8; 2],
    /// The number of refused sends of each job.
    pub(super) refused: [u8; 2],
    pub(super) acknowledged: [bool; 2],
    /// The storage's name of the message that the entry is bound to ([`Design::MatchedByMessageId`]).
    pub(super) bound: [Option<u8>; 2],
    /// The jobs that were acknowledged before the first send of this job began.
    pub(super) before: [[bool; 2]; 2],
    /// The jobs without a position to keep: dead-lettered once, or with a cancellation that has begun.
    pub(super) moved: [bool; 2],
    pub(super) cancel_begun: [bool; 2],
    /// True if a cancellation succeeded and the job was not sent since.
    pub(super) cancelled: [bool; 2],
    pub(super) disorder: bool,
    pub(super) refused_ran: bool,
}

impl State {
    pub(super) fn new(faults: Faults) -> Self {
        Self {
            queue: [const { None }; 4],
            in_flight: [const { None }; 1],
            letters: [const { None }; 3],
            record: Record::default(),
            senders: [Sender::Idle; 2],
            workers: [None; 2],
            redriver: Redriver::Idle,
            next_nonce: 0,
            faults,
            sends: [0; 2],
            refused: [0; 2],
            acknowledged: [false; 2],
            bound: [None; 2],
            before: [[false; 2]; 2],
            moved: [false; 2],
            cancel_begun: [false; 2],
            cancelled: [false; 2],
            disorder: false,
            refused_ran: false,
        }
    }

    pub(super) fn apply(&mut self, action: Action, design: Design) {
        use Action as A;
        match action {
            A::Send(_)
            | A::Sender(_)
            | A::SenderUnheard(_)
            | A::PutLate(_)
            | A::PutRefused(_)
            | A::GiveUp(_)
            | A::Cancel(_)
            | A::SenderDies(_) => self.send(action, design),
            A::Arrive => {
                if let Some(message) = self.in_flight[0].take() {
                    self.put(message.job, message.copy);
                }
            }
            A::TimeOut => {
                if let Some(at) = self.record.overdue() {
                    self.record.time_out(at, design);
                }
            }
            A::Lease(..)
            | A::Worker(_)
            | A::WorkerUnheard(_)
            | A::Fail(_)
            | A::WorkerDies(_)
            | A::LeaseEnds(_) => self.work(action, design),
            A::Redrive(_) | A::Redriver | A::RedriverUnheard | A::RedriverDies => {
                self.redrive(action, design);
            }
        }
    }

    /// Makes states equal that differ only in the order of messages, or in the numbers of workers.
    pub(super) fn normalise(&mut self, design: Design) {
        let mut order = [0, 1, 2, 3];
        order.sort_by_key(|slot| (self.queue[*slot].is_none(), self.queue[*slot].clone(), *slot));
        let queue = self.queue.clone();
        self.queue = order.map(|slot| queue[slot].clone());
        for worker in self.workers.iter_mut().flatten() {
            worker.slot = order.iter().position(|slot| *slot == worker.slot).unwrap_or(worker.slot);
        }
        if self.workers[0] > self.workers[1] && design != Design::MatchedByMessageId {
            self.workers.swap(0, 1);
            let holders = self.queue.iter_mut().flatten().filter_map(|message| message.holder.as_mut());
            let turns = self.record.entries.iter_mut().filter_map(|entry| entry.turn.as_mut());
            holders.chain(turns.map(|(_, worker)| worker)).for_each(|worker| *worker = 1 - *worker);
        }
    }

    /// Returns a copy number that no message and no entry has.
    pub(super) fn new_copy(&self) -> u8 {
        let messages = self.queue.iter().chain(&self.in_flight).flatten().map(|message| message.copy);
        let entries = self.record.entries.iter();
        let turns =
            entries.flat_map(|entry| entry.turn.map(|(copy, _)| copy).into_iter().chain(entry.confirmed));
        let bound = self.bound.iter().flatten().copied();
        let senders = self.senders.iter().filter_map(|sender| match sender {
            Sender::Confirm { copy, .. } | Sender::Mark { copy, .. } | Sender::Delete { copy, .. } => {
                Some(*copy)
            }
            _ => None,
        });
        let workers = self.workers.iter().flatten().map(|worker| worker.copy);
        let used: Vec<u8> = messages.chain(workers).chain(turns).chain(bound).chain(senders).collect();
        (0..).find(|copy| !used.contains(copy)).unwrap_or_default()
    }

    pub(super) fn put(&mut self, job: Job, copy: u8) {
        let free = self.queue.iter_mut().find(|slot| slot.is_none()).expect("a slot for every message");
        *free = Some(Message { job, copy, deliveries: 0, holder: None, dead: false });
    }

    pub(super) fn is_accounted_for(&self, job: Job) -> bool {
        let messages = self.queue.iter().chain(&self.in_flight).flatten();
        !self.acknowledged[job]
            || self.record.done[job]
            || self.cancel_begun[job]
            || messages.into_iter().any(|message| message.job == job)
            || self.letters.iter().flatten().any(|letter| letter.job == job)
    }

    pub(super) fn is_not_stored_if_refused(&self, job: Job) -> bool {
        let all_refused = self.sends[job] > 0 && self.sends[job] == self.refused[job];
        !all_refused || !self.queue.iter().chain(&self.in_flight).flatten().any(|message| message.job == job)
    }

    pub(super) fn is_settled(&self) -> bool {
        // A stored entry without a message holds up the jobs behind it.
        self.queue.iter().chain(&self.in_flight).all(Option::is_none)
            && !self.record.entries.iter().any(|entry| entry.state == EntryState::Stored)
            && (0..2).all(|job| self.is_accounted_for(job))
    }
}
