//! Bulk operations on dead letters: they run in the background, report their progress and can be stopped.
//!
//! Only a preview takes a filter. A redrive and a purge take a plan: the jobs of a preview, or one job by name.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use jobqueue_admin::{Action, Admin, Bulk, BulkReport, DeadLetterPlan, JobReference, QueueHold};
use jobqueue_storage::sync::lock;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::browser::fields::Given;
use crate::browser::pages::PageError;
use crate::browser::pages::selection::Selection;

const AT_ONCE: usize = 8;

/// The number of operations whose reports are kept.
const KEPT: usize = 50;
/// The time for which the last operation of each operator is kept.
const LAST_KEPT: Duration = Duration::from_secs(3_600);
/// The number of bytes of the dead letters and errors in kept reports and plans beyond which the oldest is forgotten. A letter has some 500.
const KEPT_BYTES: usize = 250_000_000;
/// The number of bytes of a dead letter beside its names.
const LETTER: usize = 200;

/// The action on the dead letters.
#[derive(Debug, Clone)]
pub(crate) enum Verb {
    /// Finds the dead letters that a redrive or a purge may take.
    Preview,
    Redrive(DeadLetterPlan),
    Purge(DeadLetterPlan),
}

/// The operation that an operator has asked for.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    pub(crate) verb: Verb,
    pub(crate) queue: String,
    pub(crate) selection: Selection,
    pub(crate) per_second: Option<u32>,
    /// The number of jobs of a redrive that go first.
    pub(crate) canary: Option<u64>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Progress {
    pub(crate) done: u64,
    pub(crate) total: Option<u64>,
    /// True while it waits until those that it has done have ended.
    pub(crate) waits: bool,
    /// The reason why these do not begin.
    pub(crate) held_up: Option<QueueHold>,
    /// The report, or the reason why there is none.
    pub(crate) ended: Option<Result<Arc<BulkReport>, String>>,
}

/// An operation that runs or has ended.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) id: String,
    pub(crate) order: Order,
    pub(crate) operator: String,
    pub(crate) started: SystemTime,
    progress: watch::Sender<Progress>,
    stop: CancellationToken,
}

impl Operation {
    pub(crate) fn progress(&self) -> Progress {
        self.progress.borrow().clone()
    }

    pub(crate) fn watch(this: &Arc<Self>) -> watch::Receiver<Progress> {
        this.progress.subscribe()
    }

    pub(crate) fn is_running(&self) -> bool {
        self.progress.borrow().ended.is_none()
    }

    /// Returns about how many bytes the dead letters and errors in the plan and in the report have: senders choose ids and sources.
    fn bytes(&self) -> usize {
        let planned = match &self.order.verb {
            Verb::Preview => 0,
            Verb::Redrive(plan) | Verb::Purge(plan) => {
                plan.letters().iter().map(|letter| bytes_of(&letter.job)).sum()
            }
        };
        let progress = self.progress.borrow();
        let reported = progress.ended.iter().flatten().map(|report| {
            let errors = report.errors.iter().map(|group| group.sample_error.as_ref().map_or(0, String::len));
            // A report names each also in the plan that it gives.
            report.jobs.iter().map(bytes_of).sum::<usize>() * 2 + errors.sum::<usize>()
        });
        planned + reported.sum::<usize>()
    }

    /// Ends it before the next dead letter, for an operator who may start one of its sort.
    pub(crate) async fn stop(&self, admin: &Admin) -> Result<(), jobqueue::Error> {
        let subject = format!("operation {} on dead letters of {}", self.id, self.order.queue);
        admin.stop(self.order.verb.action(), &subject, &self.stop).await
    }

    async fn run(&self, admin: &Admin) -> Result<BulkReport, jobqueue::Error> {
        let Order { verb, queue, selection, per_second, canary } = &self.order;
        let bulk = match verb {
            Verb::Preview => admin.redrive(queue).filter(selection.filter()).dry_run(true),
            Verb::Redrive(plan) => admin.redrive(queue).plan(plan.clone()).given(*canary, Bulk::canary),
            Verb::Purge(plan) => admin.purge(queue).plan(plan.clone()),
        };
        let bulk = bulk.stop_when(self.stop.clone()).given(*per_second, Bulk::per_second).on_progress(|at| {
            self.progress.send_modify(|progress| {
                (progress.done, progress.total) = (at.done, at.total);
                (progress.waits, progress.held_up) = (at.waits, at.held_up);
            });
        });
        bulk.run().await
    }
}

impl Verb {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Preview => "Preview",
            Self::Redrive(_) => "Redrive",
            Self::Purge(_) => "Purge",
        }
    }

    pub(crate) fn is_preview(&self) -> bool {
        matches!(self, Self::Preview)
    }

    pub(crate) fn action(&self) -> Action {
        match self {
            Self::Preview => Action::Inspect,
            Self::Redrive(_) => Action::Redrive,
            Self::Purge(_) => Action::Purge,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Operations {
    all: Mutex<Vec<Arc<Operation>>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Operations {
    pub(crate) fn new(tasks: TaskTracker, stop: CancellationToken) -> Self {
        Self { all: Mutex::default(), tasks, stop }
    }

    /// Starts an operation in the background. `ended` is called when it has ended.
    pub(crate) fn start(
        &self,
        admin: &Admin,
        order: Order,
        ended: impl FnOnce() + Send + 'static,
    ) -> Result<Arc<Operation>, PageError> {
        let operation = Arc::new(Operation {
            id: uuid::Uuid::new_v4().simple().to_string(),
            order,
            operator: admin.operator().to_owned(),
            started: admin.storage().runtime().now(),
            progress: watch::Sender::default(),
            stop: self.stop.child_token(),
        });
        {
            let mut all = lock(&self.all);
            if all.iter().filter(|other| other.is_running()).count() >= AT_ONCE {
                return Err(PageError::busy(format!(
                    "{AT_ONCE} operations are running; wait until one has ended"
                )));
            }
            while (all.len() >= KEPT || all.iter().map(|other| other.bytes()).sum::<usize>() > KEPT_BYTES)
                && let Some(oldest) = oldest_to_forget(&all, operation.started)
            {
                all.remove(oldest);
            }
            all.push(Arc::clone(&operation));
        }
        let (running, admin) = (Arc::clone(&operation), admin.clone());
        self.tasks.spawn(async move {
            let result = running.run(&admin).await.map(Arc::new).map_err(|error| format!("{error:?}"));
            ended();
            running.progress.send_modify(|progress| progress.ended = Some(result));
        });
        Ok(operation)
    }

    pub(crate) fn find(&self, id: &str) -> Option<Arc<Operation>> {
        let all = lock(&self.all);
        all.iter().find(|operation| operation.id == id).cloned()
    }

    /// Returns the operations on a queue, the newest first.
    pub(crate) fn of_queue(&self, queue: &str) -> Vec<Arc<Operation>> {
        let all = lock(&self.all);
        all.iter().rev().filter(|operation| operation.order.queue == queue).cloned().collect()
    }
}

fn bytes_of(job: &JobReference) -> usize {
    LETTER + job.id.len() + job.source.as_ref().map_or(0, String::len)
}

/// Returns the first operation that has ended, except the last one of each operator for an hour: its page is open, with the preview that the
/// operator is about to execute.
fn oldest_to_forget(all: &[Arc<Operation>], now: SystemTime) -> Option<usize> {
    all.iter().enumerate().position(|(at, one)| {
        let is_last = all[at + 1..].iter().all(|later| later.operator != one.operator);
        let is_new = now.duration_since(one.started).is_ok_and(|age| age < LAST_KEPT);
        !(one.is_running() || is_last && is_new)
    })
}

#[cfg(test)]
mod tests {
    use jobqueue::Storage;
    use jobqueue_admin::AccessLevel;

    use super::*;

    #[tokio::test]
    async fn last_operation_of_each_operator_is_kept() {
        let operations = Operations::new(TaskTracker::new(), CancellationToken::new());
        let start = async |operator: &str| {
            let admin = Admin::builder(Storage::memory()).access(AccessLevel::Operate).operator(operator);
            let order = Order {
                verb: Verb::Preview,
                queue: "mails".to_owned(),
                selection: Selection::default(),
                per_second: None,
                canary: None,
            };
            let operation = operations.start(&admin.build(), order, || {}).unwrap();
            Operation::watch(&operation).wait_for(|progress| progress.ended.is_some()).await.unwrap();
            operation.id.clone()
        };
        let (first, preview) = (start("ada").await, start("ada").await);
        for _ in 0..2 * KEPT {
            start("bob").await;
        }
        assert!(operations.find(&preview).is_some() && operations.find(&first).is_none());
        assert!(operations.of_queue("mails").len() <= KEPT);
        let all = lock(&operations.all);
        assert_eq!(all[0].id, preview);
        assert_ne!(oldest_to_forget(&all, SystemTime::now()), Some(0));
        // Each visitor of a page behind a proxy may be an operator.
        assert_eq!(oldest_to_forget(&all, SystemTime::now() + LAST_KEPT), Some(0));
    }
}
