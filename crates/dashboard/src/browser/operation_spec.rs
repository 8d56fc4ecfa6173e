//! The request for an operation: its action, and the dead letters or jobs that it may take.

use jobqueue_admin::{AccessLevel, Action, CancelPlan, DeadLetterPlan};

use crate::browser::job_operations::JobChoice;
use crate::browser::selection::Selection;

/// The action on the dead letters or jobs.
#[derive(Debug, Clone)]
pub(crate) enum Verb {
    /// Finds the dead letters of a later redrive or purge: those of the plan, or without a plan those that
    /// the selection selects.
    Preview(Option<DeadLetterPlan>),
    Redrive(DeadLetterPlan),
    Purge(DeadLetterPlan),
    /// Finds the jobs of a later cancellation or run.
    PreviewJobs(JobChoice),
    Cancel(CancelPlan),
    /// Makes the jobs due now that wait for a time.
    RunNow(CancelPlan),
}

/// The request of an operator for an operation.
#[derive(Debug, Clone)]
pub(crate) struct OperationSpec {
    pub(crate) verb: Verb,
    pub(crate) queue: String,
    /// The selection among dead letters.
    pub(crate) selection: Selection,
    /// The maximum number of dead letters.
    pub(crate) limit: Option<u64>,
    pub(crate) per_second: Option<u32>,
    /// The number of jobs that a redrive puts back first.
    pub(crate) canary: Option<u64>,
}

impl OperationSpec {
    /// Returns the request for an operation without a limit, a rate and a canary.
    pub(crate) fn new(verb: Verb, queue: impl Into<String>, selection: Selection) -> Self {
        Self { verb, queue: queue.into(), selection, limit: None, per_second: None, canary: None }
    }
}

impl Verb {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Preview(_) | Self::PreviewJobs(_) => "Preview",
            Self::Redrive(_) => "Redrive",
            Self::Purge(_) => "Purge",
            Self::Cancel(_) => "Cancellation",
            Self::RunNow(_) => "Run now",
        }
    }

    pub(crate) fn is_preview(&self) -> bool {
        matches!(self, Self::Preview(_) | Self::PreviewJobs(_))
    }

    pub(crate) fn is_of_jobs(&self) -> bool {
        matches!(self, Self::PreviewJobs(_) | Self::Cancel(_) | Self::RunNow(_))
    }

    pub(crate) fn objects(&self) -> &'static str {
        if self.is_of_jobs() { "jobs" } else { "dead letters" }
    }

    /// Returns the action that the operation requires of an operator with this access: a preview of jobs
    /// requires either of the actions that may follow.
    pub(crate) fn action(&self, access: &AccessLevel) -> Action {
        match self {
            Self::Preview(_) => Action::Inspect,
            Self::Redrive(_) => Action::Redrive,
            Self::Purge(_) => Action::Purge,
            Self::PreviewJobs(_) if access.allows(Action::RunNow) => Action::RunNow,
            Self::PreviewJobs(_) | Self::Cancel(_) => Action::Cancel,
            Self::RunNow(_) => Action::RunNow,
        }
    }
}
