//! The diary: observations of handlers and senders that the ledger of the world does not contain.

use std::sync::{Arc, Mutex};

use jobqueue::leader::Leader;
use jobqueue_testing::world::{Finding, World};

use super::plan::Plan;

/// An observation.
#[derive(Debug, Clone)]
pub(super) enum Note {
    /// A checkpoint was acknowledged.
    Saved { id: String, value: u32 },
    /// A run found this checkpoint.
    Resumed { id: String, value: u32 },
    /// A run has this fence.
    Fence { id: String, fence: u64 },
    /// A step returned this result.
    Step { id: String, value: u64 },
    /// The effect of a `once` happens.
    OnceHappens { id: String },
    /// A `once` returned this result.
    Once { id: String, value: u64 },
    /// A call sent unique work, or joined it. It began at `at`, with this window; both in milliseconds.
    Unique { key: String, began: usize, at: u64, window: u64, id: String, is_sent: bool },
    /// A cancellation of unique work is about to begin.
    UniqueCancelled { key: String },
    /// A cancellation of unique work returned false: there was nothing to cancel. The call began after the
    /// entry `began`.
    UniqueKept { key: String, began: usize },
    /// The queue of work was cleared. The call began after the entry `began`.
    Cleared { began: usize },
    /// A job was certainly cancelled.
    Cancelled { id: String },
    /// An operator requested the cancellation of a job.
    CancelRequested { id: String },
    /// The queue of work is paused until this time of the world, in milliseconds.
    PausedUntil { millis: u64 },
    /// A redrive put these jobs back, the canary first. It began after the entry `began`.
    AfterCanary { began: usize, canary: usize, jobs: Vec<String> },
    /// A sender or a job begins to send the children of a batch, for the first time or again.
    BatchBegins { id: String },
    /// A batch was sealed.
    Sealed { id: String },
    /// A continuation found that this many children were not done.
    Undone { id: String, missing: usize },
}

type Candidate = (Arc<str>, Arc<Leader>);

/// The state that the processes and the checks of a world share.
#[derive(Clone)]
pub(super) struct Diary {
    pub(super) plan: Arc<Plan>,
    /// True if sessions keep the order, so that a delayed job takes its place when its delay ends.
    pub(super) orders_by_sessions: bool,
    notes: Arc<Mutex<Vec<(usize, Note)>>>,
    wrong: Arc<Mutex<Vec<Finding>>>,
    leaders: Arc<Mutex<Vec<Candidate>>>,
}

impl Diary {
    pub(super) fn new(plan: &Plan, orders_by_sessions: bool) -> Self {
        let plan = Arc::new(plan.clone());
        Self {
            plan,
            orders_by_sessions,
            notes: Arc::default(),
            wrong: Arc::default(),
            leaders: Arc::default(),
        }
    }

    pub(super) fn note(&self, world: &World, node: &Arc<str>, note: Note) {
        let number = world.note(node, format!("{note:?}"));
        self.notes.lock().unwrap().push((number, note));
    }

    /// Notes that every pause of the queue of work ends now.
    pub(super) fn note_end_of_pauses(&self, world: &World, node: &Arc<str>) {
        self.note(world, node, Note::PausedUntil { millis: world.now().as_millis() as u64 });
    }

    pub(super) fn notes(&self) -> Vec<(usize, Note)> {
        self.notes.lock().unwrap().clone()
    }

    /// Records a problem that shows immediately.
    pub(super) fn wrong(&self, what: &'static str, subject: &str, detail: String) {
        self.wrong.lock().unwrap().push(Finding { what, subject: subject.to_owned(), detail });
    }

    pub(super) fn found(&self) -> Vec<Finding> {
        self.wrong.lock().unwrap().clone()
    }

    pub(super) fn candidate(&self, node: &Arc<str>, leader: &Arc<Leader>) {
        self.leaders.lock().unwrap().push((Arc::clone(node), Arc::clone(leader)));
    }

    /// Returns the processes that believe that they lead now, including frozen and killed ones.
    pub(super) fn leading(&self) -> Vec<String> {
        let leaders = self.leaders.lock().unwrap();
        leaders.iter().filter(|(_, leader)| leader.has_control()).map(|(node, _)| node.to_string()).collect()
    }
}
