//! Operations on jobs that wait or run: finding them, cancelling them, and making them due now.

use jobqueue::Error;
use jobqueue_admin::{Admin, CancelPlan, CancelReport, JobReference};
use tokio_util::sync::CancellationToken;

use crate::browser::job_selection::JobSelection;

/// The maximum number of jobs that one operation makes due. Each of them is searched for by itself.
pub(crate) const MAX_DUE: usize = 100;

/// The jobs of a preview.
#[derive(Debug, Clone)]
pub(crate) enum JobChoice {
    /// The jobs that meet conditions, in every state.
    Matching(JobSelection),
    /// The rows that the operator has selected.
    Named(CancelPlan),
}

/// The report of an operation on jobs.
#[derive(Debug)]
pub(crate) enum JobReport {
    Found(CancelPlan),
    Cancelled(CancelReport),
    Due(DueReport),
}

#[derive(Debug, Default)]
pub(crate) struct DueReport {
    /// The number of jobs that are due now.
    pub(crate) made: u64,
    /// The number of jobs that were not waiting for a time.
    pub(crate) unchanged: u64,
    /// The jobs that may wait as before, each with the error.
    pub(crate) failed: Vec<(JobReference, String)>,
    /// The number of jobs that were not reached, because the operation was stopped.
    pub(crate) left: usize,
}

impl JobChoice {
    pub(crate) async fn find(&self, admin: &Admin, queue: &str) -> Result<JobReport, Error> {
        let plan = match self {
            Self::Matching(selection) => admin.plan_cancel(queue, &selection.filter()).await?,
            Self::Named(plan) => plan.clone(),
        };
        Ok(JobReport::Found(plan))
    }
}

impl JobReport {
    /// Returns the jobs that the report names in large numbers.
    pub(crate) fn jobs(&self) -> &[JobReference] {
        match self {
            Self::Found(plan) => &plan.jobs,
            Self::Cancelled(report) => &report.jobs,
            Self::Due(_) => &[],
        }
    }
}

pub(crate) async fn cancel(admin: &Admin, plan: &CancelPlan) -> Result<JobReport, Error> {
    admin.cancel_all(plan).await.map(JobReport::Cancelled)
}

/// Makes the jobs of a plan due one by one, and calls `report_done` after each with the number so far.
pub(crate) async fn run_now(
    admin: &Admin,
    plan: &CancelPlan,
    stop: &CancellationToken,
    report_done: impl Fn(u64),
) -> JobReport {
    let mut report = DueReport::default();
    for (done, job) in plan.jobs.iter().enumerate() {
        if stop.is_cancelled() {
            report.left = plan.jobs.len() - done;
            break;
        }
        match admin.run_now(job).await {
            Ok(Some(_)) => report.made += 1,
            Ok(None) => report.unchanged += 1,
            Err(error) => report.failed.push((job.clone(), format!("{error:?}"))),
        }
        report_done(done as u64 + 1);
    }
    JobReport::Due(report)
}
