//! Operations on many dead letters or jobs. They run in the background, report their progress and can be
//! stopped.
//!
//! Only a preview takes a filter. A change takes a plan: the jobs of a preview, or one named job.

use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use jobqueue::{Error, ErrorKind};
use jobqueue_admin::{Admin, Bulk, BulkReport, JobReference, QueueHold};
use jobqueue_storage::sync::lock;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::browser::fields::Given;
use crate::browser::job_operations::{self, JobChoice, JobReport};
use crate::browser::operation_spec::{OperationSpec, Verb};
use crate::browser::page_error::PageError;

/// The maximum number of concurrent operations, without redrives that wait for their canary.
const MAX_WORKING: usize = 8;
/// The maximum number of operations that are kept, with their reports.
const MAX_KEPT: usize = 50;
/// The total size of plans and reports above which the oldest operation is forgotten. Senders choose ids and
/// sources, of up to 1 KiB each.
const MAX_KEPT_BYTES: usize = 250_000_000;
/// The size of a dead letter in a plan without its id and source, including the overhead of the allocator.
const LETTER_BYTES: usize = 200;

/// The report of an operation that has ended.
#[derive(Debug, Clone)]
pub(crate) enum OperationReport {
    Letters(Arc<BulkReport>),
    Jobs(Arc<JobReport>),
}

impl OperationReport {
    pub(crate) fn of_letters(&self) -> Option<&BulkReport> {
        match self {
            Self::Letters(report) => Some(report),
            Self::Jobs(_) => None,
        }
    }

    pub(crate) fn of_jobs(&self) -> Option<&JobReport> {
        match self {
            Self::Jobs(report) => Some(report),
            Self::Letters(_) => None,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Letters(report) => report_bytes(report),
            Self::Jobs(report) => report.jobs().iter().map(bytes_of).sum(),
        }
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct OperationProgress {
    pub(crate) done: u64,
    pub(crate) total: Option<u64>,
    /// True while the redrive waits until the jobs of its canary have ended.
    pub(crate) waits: bool,
    /// The reason why these jobs do not begin.
    pub(crate) held_up: Option<QueueHold>,
    /// The report, or the error with which the operation failed; `None` while it runs.
    pub(crate) ended: Option<Result<OperationReport, String>>,
}

impl OperationProgress {
    /// Returns the error with which the operation failed.
    pub(crate) fn failed(&self) -> Option<&str> {
        self.ended.as_ref().and_then(|ended| ended.as_ref().err()).map(String::as_str)
    }
}

/// An operation that runs or has ended.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) id: String,
    pub(crate) spec: OperationSpec,
    pub(crate) operator: String,
    pub(crate) started: SystemTime,
    progress: watch::Sender<OperationProgress>,
    stop: CancellationToken,
}

impl Operation {
    pub(crate) fn progress(&self) -> OperationProgress {
        self.progress.borrow().clone()
    }

    pub(crate) fn watch(this: &Arc<Self>) -> watch::Receiver<OperationProgress> {
        this.progress.subscribe()
    }

    pub(crate) fn is_running(&self) -> bool {
        self.progress.borrow().ended.is_none()
    }

    /// Returns the approximate size of its plan and its report in bytes.
    fn bytes(&self) -> usize {
        let planned = match &self.spec.verb {
            Verb::Preview(None) | Verb::PreviewJobs(JobChoice::Matching(_)) => 0,
            Verb::Preview(Some(plan)) | Verb::Redrive(plan) | Verb::Purge(plan) => {
                plan.letters.iter().map(|letter| bytes_of(&letter.job)).sum()
            }
            Verb::PreviewJobs(JobChoice::Named(plan)) | Verb::Cancel(plan) | Verb::RunNow(plan) => {
                plan.jobs.iter().map(bytes_of).sum()
            }
        };
        planned + self.progress.borrow().ended.iter().flatten().map(OperationReport::bytes).sum::<usize>()
    }

    /// Stops it after the dead letters, requests or job in progress, and a preview of jobs at once, if the
    /// operator may start an operation of its kind.
    pub(crate) async fn stop(&self, admin: &Admin) -> Result<(), Error> {
        let verb = &self.spec.verb;
        let subject = format!("operation {} on {} of {}", self.id, verb.objects(), self.spec.queue);
        admin.stop(verb.action(admin.access()), &subject, &self.stop).await
    }

    async fn run(&self, admin: &Admin) -> Result<OperationReport, Error> {
        let OperationSpec { verb, queue, selection, limit, per_second, canary } = &self.spec;
        let admin = admin.stop_when(self.stop.clone());
        let bulk = match verb {
            Verb::Preview(None) => admin.redrive(queue).filter(selection.filter()).dry_run(true),
            Verb::Preview(Some(plan)) => admin.redrive(queue).plan(plan.clone()).dry_run(true),
            Verb::Redrive(plan) => admin.redrive(queue).plan(plan.clone()).given(*canary, Bulk::canary),
            Verb::Purge(plan) => admin.purge(queue).plan(plan.clone()),
            Verb::PreviewJobs(choice) => return self.unless_stopped(choice.find(&admin, queue)).await,
            Verb::Cancel(plan) => {
                let report = job_operations::cancel(&admin, plan).await?;
                return Ok(OperationReport::Jobs(Arc::new(report)));
            }
            Verb::RunNow(plan) => {
                let report = job_operations::run_now(&admin, plan, &self.stop, |done| {
                    let total = Some(plan.jobs.len() as u64);
                    self.progress.send_modify(|progress| (progress.done, progress.total) = (done, total));
                });
                return Ok(OperationReport::Jobs(Arc::new(report.await)));
            }
        };
        let bulk = bulk.given(*limit, Bulk::limit).given(*per_second, Bulk::per_second);
        let bulk = bulk.on_progress(|at| {
            self.progress.send_modify(|progress| {
                (progress.done, progress.total) = (at.done, at.total);
                (progress.waits, progress.held_up) = (at.waits, at.held_up);
            });
        });
        Ok(OperationReport::Letters(Arc::new(bulk.run().await?)))
    }

    /// Drops a preview, which changes nothing, once the operation is to stop.
    async fn unless_stopped(
        &self,
        preview: impl Future<Output = Result<JobReport, Error>>,
    ) -> Result<OperationReport, Error> {
        let stopped = || Err(Error::new(ErrorKind::Conflict, "it was stopped by a request"));
        let report = self.stop.run_until_cancelled(preview).await.unwrap_or_else(stopped)?;
        Ok(OperationReport::Jobs(Arc::new(report)))
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

    /// Starts an operation in the background. Calls `ended` when the operation has ended.
    pub(crate) fn start(
        &self,
        admin: &Admin,
        spec: OperationSpec,
        ended: impl FnOnce() + Send + 'static,
    ) -> Result<Arc<Operation>, PageError> {
        let operation = Arc::new(Operation {
            id: uuid::Uuid::new_v4().simple().to_string(),
            spec,
            operator: admin.operator().to_owned(),
            started: admin.storage().runtime().now(),
            progress: watch::Sender::default(),
            stop: self.stop.child_token(),
        });
        {
            let mut all = lock(&self.all);
            // A redrive that waits for its canary sends few requests, and may wait without end.
            let running: Vec<_> = all.iter().filter(|other| other.is_running()).collect();
            let working = running.iter().filter(|other| !other.progress.borrow().waits);
            if working.count() >= MAX_WORKING || running.len() >= MAX_KEPT {
                let name = |other: &&Arc<Operation>| {
                    format!(
                        "{} of {} by {} ({})",
                        other.spec.verb.name(),
                        other.spec.queue,
                        other.operator,
                        other.id
                    )
                };
                return Err(PageError::busy(format!(
                    "{} operations are running; stop one, or wait until one has ended: {}",
                    running.len(),
                    running.iter().take(MAX_WORKING).map(name).collect::<Vec<_>>().join(", ")
                )));
            }
            forget_oldest(&mut all, MAX_KEPT_BYTES);
            all.push(Arc::clone(&operation));
        }
        let (running, admin) = (Arc::clone(&operation), admin.clone());
        self.tasks.spawn(async move {
            let result = running.run(&admin).await.map_err(|error| format!("{error:?}"));
            ended();
            running.progress.send_modify(|progress| progress.ended = Some(result));
        });
        Ok(operation)
    }

    pub(crate) fn find(&self, id: &str) -> Option<Arc<Operation>> {
        let all = lock(&self.all);
        all.iter().find(|operation| operation.id == id).cloned()
    }

    /// Returns the operations on a queue, newest first.
    pub(crate) fn of_queue(&self, queue: &str) -> Vec<Arc<Operation>> {
        let all = lock(&self.all);
        all.iter().rev().filter(|operation| operation.spec.queue == queue).cloned().collect()
    }
}

/// Forgets the oldest operations that have ended, until another operation can be kept.
fn forget_oldest(all: &mut Vec<Arc<Operation>>, max_bytes: usize) {
    while (all.len() >= MAX_KEPT || all.iter().map(|other| other.bytes()).sum::<usize>() > max_bytes)
        && let Some(oldest) = all.iter().position(|other| !other.is_running())
    {
        all.remove(oldest);
    }
}

fn report_bytes(report: &BulkReport) -> usize {
    let jobs = report.held_jobs().map(bytes_of).sum::<usize>();
    let skipped = report.skipped.iter().map(|skipped| skipped.id.len() + skipped.error.len());
    let errors = report.errors.iter().map(|group| {
        bytes_of(&group.sample) + group.error.len() + group.sample_error.as_ref().map_or(0, String::len)
    });
    jobs + skipped.sum::<usize>() + errors.sum::<usize>()
}

fn bytes_of(job: &JobReference) -> usize {
    LETTER_BYTES + job.id.len() + job.source.as_ref().map_or(0, String::len)
}

#[cfg(test)]
mod tests {
    use jobqueue::Storage;
    use jobqueue::storage::PutMessage;
    use jobqueue_admin::{AccessLevel, CancelPlan, DeadLetterPlan, JobReference};
    use jobqueue_testing::faults::Faulty;

    use super::*;
    use crate::browser::selection::Selection;

    fn admin(operator: &str, storage: Storage) -> Admin {
        Admin::builder(storage).access(AccessLevel::Operate).operator(operator).build()
    }

    fn spec(verb: Verb) -> OperationSpec {
        OperationSpec { canary: Some(1), ..OperationSpec::new(verb, "mails", Selection::default()) }
    }

    #[tokio::test]
    async fn redrives_that_wait_for_their_canaries_do_not_block_others() {
        let storage = Storage::memory();
        let admin = admin("ada", storage.clone());
        admin.create_queue("mails").await.unwrap();
        admin.create_queue("mails-poison").await.unwrap();
        let poison = "mails-poison".parse().unwrap();
        let operations = Operations::new(TaskTracker::new(), CancellationToken::new());
        for number in 0..=MAX_WORKING {
            let letter = |id: usize| {
                format!(
                    r#"{{"specversion":"1.0","id":"{number}-{id}","source":"/s","type":"mail","data":{{}}}}"#
                )
            };
            for id in 0..2 {
                let _ = storage.queues().put(&poison, PutMessage::new(letter(id))).await.unwrap();
            }
            let jobs =
                (0..2).map(|id| JobReference::new("mails", format!("{number}-{id}")).with_source("/s"));
            let redrive = Verb::Redrive(DeadLetterPlan::of_jobs("mails", jobs));
            let operation = operations.start(&admin, spec(redrive), || {}).unwrap();
            let mut progress = Operation::watch(&operation);
            progress.wait_for(|progress| progress.waits && progress.held_up.is_some()).await.unwrap();
        }
        for operation in operations.of_queue("mails") {
            assert!(operation.is_running());
            operation.stop(&admin).await.unwrap();
        }
    }

    // A cancellation that was dropped notified no worker of its requests, and had no report.
    #[tokio::test(start_paused = true)]
    async fn stopped_cancellation_reports_what_it_has_requested() {
        let faulty = Faulty::quiet(&Storage::memory());
        let stop = CancellationToken::new();
        let fired = stop.clone();
        faulty.on(jobqueue::storage::Operation::PutBlob, move |_| {
            fired.cancel();
            None
        });
        let operations = Operations::new(TaskTracker::new(), stop);
        let jobs = (0..40).map(|number| JobReference::new("mails", number.to_string()));
        let cancel = Verb::Cancel(CancelPlan::of_jobs(jobs));
        let operation = operations.start(&admin("ada", faulty.storage()), spec(cancel), || {}).unwrap();
        let mut progress = Operation::watch(&operation);
        let ended = progress.wait_for(|progress| progress.ended.is_some()).await.unwrap().clone();
        let failed = ended.failed().unwrap();
        assert!(failed.contains(" of 40 jobs: their cancellation was requested"), "{failed}");
    }

    #[tokio::test]
    async fn oldest_operation_is_forgotten_first() {
        let operations = Operations::new(TaskTracker::new(), CancellationToken::new());
        let start = async || {
            let admin = admin("ada", Storage::memory());
            let operation = operations.start(&admin, spec(Verb::Preview(None)), || {}).unwrap();
            Operation::watch(&operation).wait_for(|progress| progress.ended.is_some()).await.unwrap();
            operation.id.clone()
        };
        let (first, second) = (start().await, start().await);
        for _ in 1..MAX_KEPT {
            start().await;
        }
        assert!(operations.find(&first).is_none() && operations.find(&second).is_some());
        assert_eq!(operations.of_queue("mails").len(), MAX_KEPT);
    }

    #[tokio::test]
    async fn operations_on_letters_with_long_names_are_forgotten_sooner() {
        let operations = Operations::new(TaskTracker::new(), CancellationToken::new());
        let admin = admin("ada", Storage::memory());
        let (id, source) = ("i".repeat(1_024), "s".repeat(1_024));
        for _ in 0..2 {
            let job = JobReference::new("mails", &id).with_source(&source);
            let purge = Verb::Purge(DeadLetterPlan::of_jobs("mails", vec![job; 100]));
            // The purge fails at once, because the queue does not exist.
            let operation = operations.start(&admin, spec(purge), || {}).unwrap();
            Operation::watch(&operation).wait_for(|progress| progress.ended.is_some()).await.unwrap();
        }
        let mut all = lock(&operations.all);
        let bytes = all[0].bytes();
        assert!(bytes > 100 * 2_048, "{bytes}");
        forget_oldest(&mut all, 2 * bytes);
        assert_eq!(all.len(), 2);
        forget_oldest(&mut all, 2 * bytes - 1);
        assert_eq!(all.len(), 1);
    }
}
