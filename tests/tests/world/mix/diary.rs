//! The diary: observations of handlers and senders that the world's own ledger does not have.

use std::sync::{Arc, Mutex};

use jobqueue::leader::Leader;
use jobqueue_testing::world::{Finding, World};

use super::plan::Plan;

/// A note, with its position in the world's history.
#[derive(Debug, Clone)]
pub(super) enum Note {
    /// A checkpoint was acknowledged.
    Saved { id: String, value: u32 },
    /// A run read this checkpoint.
    Resumed { id: String, value: u32 },
    /// A run has this fence.
    Fence { id: String, fence: u64 },
    /// A step returned this.
    Step { id: String, value: u64 },
    /// An effect that is to happen once happens.
    OnceHappens { id: String },
    /// An effect that happens once returned this result.
    Once { id: String, value: u64 },
    /// Unique work was sent or joined, by a call that began at `at`, with a window; both in milliseconds.
    Unique { key: String, began: usize, at: u64, window: u64, id: String, is_sent: bool },
    /// A claim was released.
    UniqueCancelled { key: String },
    /// A cancellation of unique work returned false: nothing to cancel. It began behind this entry.
    UniqueKept { key: String, began: usize },
    /// The queue of work was cleared, by a call that began behind this entry.
    Cleared { began: usize },
    /// A job was certainly cancelled.
    Cancelled { id: String },
    /// An operator's request to cancel a job was made.
    CancelRequested { id: String },
    /// The queue of work is paused until this time of the world, in milliseconds.
    PausedUntil { millis: u64 },
    /// A redrive put these jobs back, the canary first; it began after this entry.
    AfterCanary { began: usize, canary: usize, jobs: Vec<String> },
    /// A sender, or a job, begins to send the children of a batch, for the first time or again.
    BatchBegins { id: String },
    /// A batch was sealed.
    Sealed { id: String },
    /// A join found that these children were not done.
    Undone { id: String, missing: usize },
}

type Candidate = (Arc<str>, Arc<Leader>);

/// The state that a world's processes share for its checks.
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

    /// Notes that a pause of the queue of work ends, which has perhaps an end of its own.
    pub(super) fn note_end_of_pauses(&self, world: &World, node: &Arc<str>) {
        self.note(world, node, Note::PausedUntil { millis: world.now().as_millis() as u64 });
    }

    pub(super) fn notes(&self) -> Vec<(usize, Note)> {
        self.notes.lock().unwrap().clone()
    }

    /// A problem that shows at once.
    pub(super) fn wrong(&self, what: &'static str, subject: &str, detail: String) {
        self.wrong.lock().unwrap().push(Finding { what, subject: subject.to_owned(), detail });
    }

    pub(super) fn found(&self) -> Vec<Finding> {
        self.wrong.lock().unwrap().clone()
    }

    pub(super) fn candidate(&self, node: &Arc<str>, leader: &Arc<Leader>) {
        self.leaders.lock().unwrap().push((Arc::clone(node), Arc::clone(leader)));
    }

    /// Returns the processes that believe to lead now, including frozen and killed ones.
    pub(super) fn leading(&self) -> Vec<String> {
        let leaders = self.leaders.lock().unwrap();
        leaders.iter().filter(|(_, leader)| leader.has_control()).map(|(node, _)| node.to_string()).collect()
    }
}
