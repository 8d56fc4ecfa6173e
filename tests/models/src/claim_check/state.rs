//! The state: blobs, messages, letters, processes, and the memory of the properties.

use super::Design;

/// The number of times that each fault may happen in one run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Faults {
    /// Processes that die.
    pub crashes: u8,
    /// Changes that are applied and not answered.
    pub lost_answers: u8,
    /// Puts that are not answered, and whose message arrives at any later time.
    pub late_puts: u8,
    /// Changes that are certainly refused.
    pub refusals: u8,
    /// Leases that end while their holder works.
    pub lost_leases: u8,
    /// Checkpoints that need a blob.
    pub checkpoints: u8,
    /// Handlers that fail for good.
    pub deaths: u8,
    /// Letters that an operator purges.
    pub purges: u8,
    /// Sweeps that begin before everything else is over.
    pub sweeps: u8,
    /// Not a fault: the message is stored at the beginning, so that faults occur afterwards.
    pub is_stored: bool,
}

/// A blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Blob {
    /// Not written yet, or deleted.
    Missing,
    /// Written lately.
    New,
    /// Older than the time for which a message can be on its way.
    Old,
}

/// The number of names for blobs. A name without references can be used again.
pub const BLOBS: usize = 12;
/// The numbers of blobs, one bit each.
pub type References = u16;

/// A message in the queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Message {
    pub(super) payload: usize,
    pub(super) checkpoint: Option<usize>,
    pub(super) holder: Option<usize>,
    pub(super) dead: bool,
}

/// A message in the dead-letter queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Letter {
    pub(super) payload: usize,
    pub(super) checkpoint: Option<usize>,
}

/// The next step of the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sender {
    /// The blob must be written.
    Blob { ambiguous: bool },
    /// The message must be put.
    Put { blob: usize, ambiguous: bool },
    /// The blob of a message that was put first must be written ([`Design::MessageBeforeBlob`]).
    LateBlob(usize),
    /// The blob of a refused put must be deleted.
    DeleteBlob(usize),
    /// The send has ended, or its process has died.
    Over,
}

/// The next step of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Step {
    /// The handler runs.
    Run,
    /// The message must be updated to refer to this new checkpoint.
    Update { blob: usize, ambiguous: bool },
    /// A blob without references must be deleted; then the handler continues.
    DeleteBlob(usize),
    /// The blobs of the letter must be written.
    CopyBlobs,
    /// The letter must be put, with its blobs.
    Copy { payload: usize, checkpoint: Option<usize> },
    /// The message must be deleted.
    Delete { done: bool },
    /// The blobs of the message must be deleted.
    DeleteBlobs(References),
}

/// A worker with a message that it has leased.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Worker {
    pub(super) step: Step,
    pub(super) slot: usize,
}

/// The next step of a redrive or purge with the letter in a slot. It holds its letter for the whole run of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operator {
    /// No letter is held.
    Idle,
    /// The blobs of the message must be written.
    CopyBlobs(usize),
    /// The message must be put, with its blobs.
    PutBack { slot: usize, payload: usize, checkpoint: Option<usize> },
    /// The letter must be deleted.
    Delete { slot: usize, purged: bool },
    /// The blobs of the deleted letter must be deleted.
    DeleteBlobs(References),
}

/// A step of a process, of the storage or of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The sender takes its next step.
    Sender,
    /// Like `Sender`, but the answer is lost.
    SenderUnheard,
    /// A put takes longer than its sender waits.
    PutLate,
    /// A put is refused.
    PutRefused,
    /// The sender gives up after a put without an answer.
    GiveUp,
    /// The sender dies.
    SenderDies,
    /// A late message arrives.
    Arrive,
    /// A worker leases the message in a slot.
    Lease(usize, usize),
    /// A worker takes its next step.
    Worker(usize),
    /// Like `Worker`, but the answer is lost.
    WorkerUnheard(usize),
    /// A handler saves a checkpoint.
    Checkpoint(usize),
    /// An update is refused.
    UpdateRefused(usize),
    /// A handler fails for good.
    Fail(usize),
    /// A worker dies.
    WorkerDies(usize),
    /// The lease of the message in a slot ends.
    LeaseEnds(usize),
    /// A redrive of the letter in a slot begins.
    Redrive(usize),
    /// A purge of the letter in a slot begins.
    Purge(usize),
    /// The redrive or purge takes its next step.
    Operator,
    /// The redrive or purge dies.
    OperatorDies,
    /// All blobs grow old.
    Age,
    /// The sweeper takes its next step.
    Sweep,
}

impl Action {
    /// Returns whether this happens in a run without further faults.
    pub(super) fn is_fair(self) -> bool {
        use Action as A;
        matches!(
            self,
            A::Sender
                | A::Arrive
                | A::Lease(..)
                | A::Worker(_)
                | A::LeaseEnds(_)
                | A::Redrive(_)
                | A::Operator
                | A::Age
                | A::Sweep
        )
    }
}

/// The state of the model.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub(super) blobs: [Blob; BLOBS],
    pub(super) queue: [Option<Message>; 4],
    pub(super) in_flight: Option<Message>,
    pub(super) letters: [Option<Letter>; 3],
    pub(super) sender: Sender,
    pub(super) workers: [Option<Worker>; 2],
    pub(super) operator: Operator,
    /// The number of times that the sweeper has found a queue empty, after it has read all blobs.
    pub(super) looks: Option<u8>,
    pub(super) faults: Faults,
    pub(super) done: bool,
}

impl State {
    pub(super) fn new(faults: Faults) -> Self {
        Self {
            blobs: [Blob::Missing; BLOBS],
            queue: [const { None }; 4],
            in_flight: None,
            letters: [const { None }; 3],
            sender: Sender::Blob { ambiguous: false },
            workers: [None; 2],
            operator: Operator::Idle,
            looks: None,
            faults,
            done: false,
        }
    }

    pub(super) fn stored(faults: Faults) -> Self {
        let mut state = Self::new(faults);
        let payload = state.write_blob();
        state.put(Message { payload, checkpoint: None, holder: None, dead: false });
        state.sender = Sender::Over;
        state
    }

    pub(super) fn apply(&mut self, action: Action, design: Design) {
        use Action as A;
        match action {
            A::Sender
            | A::SenderUnheard
            | A::PutLate
            | A::PutRefused
            | A::GiveUp
            | A::SenderDies
            | A::Arrive => self.send(action, design),
            A::Redrive(_) | A::Purge(_) | A::Operator | A::OperatorDies | A::Age | A::Sweep => {
                self.operate(action, design);
            }
            _ => self.work(action, design),
        }
    }

    /// Makes states equal that differ only in the order of messages, or in the numbers of workers.
    pub(super) fn normalise(&mut self) {
        let mut order = [0, 1, 2, 3];
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
        }
    }

    /// Writes a blob with a new name.
    pub(super) fn write_blob(&mut self) -> usize {
        let blob = self.name_blob();
        self.blobs[blob] = Blob::New;
        blob
    }

    /// Writes copies of the blobs of a text. A missing blob stays referred to, as evidence.
    pub(super) fn copy_blobs(&mut self, payload: usize, checkpoint: Option<usize>) -> (usize, Option<usize>) {
        let mut copy = |blob: usize| match self.blobs[blob] {
            Blob::Missing => blob,
            _ => self.write_blob(),
        };
        (copy(payload), checkpoint.map(copy))
    }

    pub(super) fn name_blob(&self) -> usize {
        let known = self.known();
        let free = |blob: &usize| self.blobs[*blob] == Blob::Missing && known & (1 << *blob) == 0;
        (0..BLOBS).find(free).expect("a name for every blob")
    }

    /// Returns the referenced blobs.
    fn known(&self) -> References {
        let messages = self.queue.iter().chain([&self.in_flight]).flatten();
        let messages = messages.map(|message| references(message.payload, message.checkpoint));
        let letters = self.letters.iter().flatten().map(|l| references(l.payload, l.checkpoint));
        let workers = self.workers.iter().flatten().map(|worker| match worker.step {
            Step::Update { blob, .. } | Step::DeleteBlob(blob) => 1 << blob,
            Step::Copy { payload, checkpoint } => references(payload, checkpoint),
            Step::DeleteBlobs(blobs) => blobs,
            Step::Run | Step::CopyBlobs | Step::Delete { .. } => 0,
        });
        let sender = match self.sender {
            Sender::Put { blob, .. } | Sender::LateBlob(blob) | Sender::DeleteBlob(blob) => 1 << blob,
            Sender::Blob { .. } | Sender::Over => 0,
        };
        let operator = match self.operator {
            Operator::PutBack { payload, checkpoint, .. } => references(payload, checkpoint),
            Operator::DeleteBlobs(blobs) => blobs,
            Operator::Idle | Operator::CopyBlobs(_) | Operator::Delete { .. } => 0,
        };
        messages.chain(letters).chain(workers).fold(sender | operator, |all, one| all | one)
    }

    pub(super) fn delete_blobs(&mut self, references: References) {
        let named = |blob: usize| references & (1 << blob) != 0;
        (0..BLOBS).filter(|blob| named(*blob)).for_each(|blob| self.blobs[blob] = Blob::Missing);
    }

    pub(super) fn put(&mut self, message: Message) {
        let free = self.queue.iter_mut().find(|slot| slot.is_none()).expect("a slot for every message");
        *free = Some(message);
    }

    pub(super) fn has_all_blobs(&self) -> bool {
        let messages = self.queue.iter().flatten().map(|m| references(m.payload, m.checkpoint));
        let letters = self.letters.iter().flatten().map(|l| references(l.payload, l.checkpoint));
        let needed = messages.chain(letters).fold(0, |all, one| all | one);
        self.done || (0..BLOBS).all(|blob| needed & (1 << blob) == 0 || self.blobs[blob] != Blob::Missing)
    }

    /// Returns whether nothing of the job is left in the queues.
    pub(super) fn is_over(&self) -> bool {
        self.queue.iter().all(Option::is_none) && self.letters.iter().all(Option::is_none)
    }

    pub(super) fn is_settled(&self) -> bool {
        self.is_over() && self.blobs == [Blob::Missing; BLOBS]
    }
}

/// Returns the blobs that a text refers to.
pub(super) fn references(payload: usize, checkpoint: Option<usize>) -> References {
    (1 << payload) | checkpoint.map_or(0, |blob| 1 << blob)
}
