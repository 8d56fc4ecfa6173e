//! The record of a group, a blob with conditional writes. Every method is one change.

use super::Design;

/// The number of a job: its source, id and payload digest.
pub type Job = usize;
/// The number of a send or redrive that announced a job.
pub type Nonce = u8;

/// The state of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EntryState {
    /// The message is about to be put.
    Announced,
    /// The message is in the queue: the sender has the storage's answer, or a worker has the message.
    Stored,
    /// Nobody waits for it. Its message, or its sender, moves it to the tail.
    Skipped,
    /// The sender is deleting the message.
    Cancelling,
}

/// A position in the group.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The job to run.
    pub job: Job,
    /// The announcement of the job; `None` if a message without an entry arrived.
    pub nonce: Option<Nonce>,
    /// The progress of the job.
    pub state: EntryState,
    /// The copy whose put was answered at once: its first delivery need not record its turn.
    pub confirmed: Option<u8>,
    /// The running copy and its worker, if that was recorded.
    pub turn: Option<(u8, usize)>,
}

/// The entries of one key in order, and the memory of those that ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Record {
    /// Waiting and running jobs.
    pub entries: Vec<Entry>,
    /// Jobs that are done.
    pub done: [bool; 2],
    /// Jobs that were cancelled.
    pub cancelled: [bool; 2],
    /// Sends whose jobs were dead-lettered.
    pub dead: Vec<Nonce>,
}

/// The copy that a worker has leased, and whether it is the copy's first delivery.
#[derive(Debug, Clone, Copy)]
pub struct Delivered {
    /// The number of the copy.
    pub copy: u8,
    /// True at the copy's first delivery.
    pub first: bool,
}

/// The answer to a worker about a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stand {
    /// The message runs now.
    Run,
    /// Another job is first, or another copy has the turn.
    Wait,
    /// The job is done or cancelled: delete the message.
    Absorb,
}

/// The answer to a sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Announced {
    /// It must put its message.
    Put,
    /// The job is stored already.
    Stored,
    /// The job is done already.
    Done,
}

impl Record {
    fn find(&self, job: Job) -> Option<usize> {
        self.entries.iter().position(|entry| entry.job == job)
    }

    fn own(&self, job: Job, nonce: Nonce) -> Option<usize> {
        self.entries.iter().position(|entry| entry.job == job && entry.nonce == Some(nonce))
    }

    fn push(&mut self, job: Job, nonce: Option<Nonce>, state: EntryState) {
        self.entries.push(Entry { job, nonce, state, confirmed: None, turn: None });
    }

    fn move_to_tail(&mut self, at: usize, state: EntryState) {
        let mut entry = self.entries.remove(at);
        entry.state = state;
        self.entries.push(entry);
    }

    /// Announces the message that a sender is about to put.
    pub fn announce(&mut self, job: Job, nonce: Nonce) -> Announced {
        if self.done[job] {
            return Announced::Done;
        }
        self.cancelled[job] = false;
        match self.find(job) {
            None => self.push(job, Some(nonce), EntryState::Announced),
            Some(at) => match self.entries[at].state {
                EntryState::Stored => return Announced::Stored,
                EntryState::Announced => self.entries[at].nonce = Some(nonce),
                EntryState::Skipped | EntryState::Cancelling => {
                    self.entries[at].nonce = Some(nonce);
                    self.entries[at].confirmed = None;
                    self.move_to_tail(at, EntryState::Announced);
                }
            },
        }
        Announced::Put
    }

    /// Confirms that the message was put. Returns whether the send may be acknowledged.
    pub fn confirm(&mut self, job: Job, nonce: Nonce, copy: Option<u8>, design: Design) -> bool {
        let own = match design {
            Design::ConfirmByIdentity => self.find(job),
            _ => self.own(job, nonce),
        };
        let Some(at) = own else {
            return self.done[job] || self.dead.contains(&nonce);
        };
        match self.entries[at].state {
            EntryState::Announced => {
                self.entries[at].state = EntryState::Stored;
                self.entries[at].confirmed = copy;
            }
            EntryState::Skipped => self.move_to_tail(at, EntryState::Stored),
            EntryState::Stored | EntryState::Cancelling => {}
        }
        true
    }

    /// Revokes an announcement whose message was certainly not put.
    pub fn revoke(&mut self, job: Job, nonce: Nonce) {
        if let Some(at) = self.own(job, nonce)
            && matches!(self.entries[at].state, EntryState::Announced | EntryState::Skipped)
        {
            self.entries.remove(at);
        }
    }

    /// Gives a message a position, for the sender of [`Design::MessageBeforeRecord`].
    pub fn join(&mut self, job: Job) {
        if !self.done[job] && self.find(job).is_none() {
            self.push(job, None, EntryState::Stored);
        }
    }

    /// Returns whether the copy that a worker has leased may run.
    pub fn stand(&mut self, job: Job, delivery: Delivered, worker: usize, design: Design) -> Stand {
        let Delivered { copy, first: first_delivery } = delivery;
        if self.done[job] || self.cancelled[job] {
            return Stand::Absorb;
        }
        match self.find(job) {
            None => self.push(job, None, EntryState::Stored),
            Some(at) if self.entries[at].state == EntryState::Skipped => {
                self.move_to_tail(at, EntryState::Stored);
            }
            Some(at) if self.entries[at].state == EntryState::Cancelling => {
                self.entries[at].state = EntryState::Stored;
            }
            Some(_) => {}
        }
        let Some(at) = self.find(job) else { return Stand::Wait };
        if self.entries[..at].iter().any(|entry| entry.state != EntryState::Skipped) {
            return Stand::Wait;
        }
        let entry = &mut self.entries[at];
        match entry.turn {
            None if entry.confirmed == Some(copy) && first_delivery => return Stand::Run,
            Some((other, _)) if other != copy => {
                let absorbs = design == Design::OtherCopyAbsorbs;
                return if absorbs { Stand::Absorb } else { Stand::Wait };
            }
            _ => {}
        }
        entry.state = EntryState::Stored;
        entry.turn = Some((copy, worker));
        Stand::Run
    }

    /// Records a later delivery of the copy that has the turn: an earlier one can change nothing any more. Where
    /// deliveries are numbered, the higher number says so.
    pub fn take_over(&mut self, job: Job, copy: u8, worker: usize) {
        let turns =
            self.entries.iter_mut().filter(|entry| entry.job == job).filter_map(|entry| entry.turn.as_mut());
        turns.filter(|turn| turn.0 == copy).for_each(|turn| turn.1 = worker);
    }

    /// Returns the position of the first entry if no process may be working on it.
    pub fn overdue(&self) -> Option<usize> {
        let first = self.entries.iter().position(|entry| entry.state != EntryState::Skipped)?;
        let waits = matches!(self.entries[first].state, EntryState::Announced | EntryState::Cancelling);
        waits.then_some(first)
    }

    /// Ends the time of an announcement or cancellation.
    pub fn time_out(&mut self, at: usize, design: Design) {
        if design == Design::RemovedByTime {
            self.entries.remove(at);
        } else {
            self.entries[at].state = EntryState::Skipped;
        }
    }

    /// Ends copy `copy`: it is done, or is in the dead-letter queue. Returns false if another delivery has the turn.
    pub fn end(&mut self, job: Job, copy: u8, worker: usize, done: bool) -> bool {
        if let Some(at) = self.find(job) {
            match self.entries[at].turn {
                // The entry belongs to another copy, which exists; this copy has its letter.
                Some((other, _)) if other != copy && !done => return true,
                Some(turn) if turn != (copy, worker) => return false,
                _ => {}
            }
            let entry = self.entries.remove(at);
            if !done && let Some(nonce) = entry.nonce {
                self.dead.push(nonce);
            }
        }
        self.done[job] |= done;
        true
    }

    /// Begins a cancellation. Returns false if the job is running or over.
    pub fn mark(&mut self, job: Job, nonce: Nonce) -> bool {
        let Some(at) = self.own(job, nonce) else { return false };
        let entry = &mut self.entries[at];
        let free = entry.state == EntryState::Stored && entry.turn.is_none();
        if free {
            entry.state = EntryState::Cancelling;
        }
        free
    }

    /// Ends a cancellation; `deleted` is `None` if the sender does not know whether its message is deleted. Returns
    /// whether the job is cancelled.
    pub fn unmark(&mut self, job: Job, nonce: Nonce, deleted: Option<bool>) -> bool {
        let Some(at) = self.own(job, nonce) else { return false };
        match self.entries[at].state {
            EntryState::Cancelling | EntryState::Skipped if deleted == Some(true) => {
                self.entries.remove(at);
                self.cancelled[job] = true;
                true
            }
            EntryState::Cancelling if deleted == Some(false) => {
                self.entries[at].state = EntryState::Stored;
                false
            }
            _ => false,
        }
    }
}
