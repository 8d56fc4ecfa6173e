//! The page of an operation on dead letters: its progress, its report, and after a preview the forms to act
//! on its dead letters.

use std::sync::Arc;

use askama::Template;
use jobqueue_admin::{Action, BulkReport, JobReference, PlanOutcome, SkippedJob};

use super::rows::{ErrorRow, job_path, shown};
use super::{Answer, Layout, PageError, job_operation};
use crate::browser::app::AuthorizedRequest;
use crate::browser::fields::Fields;
use crate::browser::filters;
use crate::browser::operation_spec::{OperationSpec, Verb};
use crate::browser::operations::{Operation, OperationProgress, OperationReport};
use crate::browser::redact::Field;
use crate::browser::text::{amount, line};

/// The maximum number of jobs that each list of the page names.
const MAX_NAMED: usize = 100;

#[derive(Template)]
#[template(path = "operation.html")]
struct OperationPage<'a> {
    layout: Layout,
    operation: &'a Operation,
    spec: &'a OperationSpec,
    progress: &'a OperationProgress,
    runs: bool,
    /// The error with which the operation failed.
    failed: Option<&'a str>,
    report: Option<&'a BulkReport>,
    /// The errors of a preview's dead letters.
    errors: Vec<ErrorRow>,
    /// The number of groups of errors that are not shown.
    more_errors: usize,
    /// The number of dead letters without a group.
    ungrouped: u64,
    /// The dead letters that the operation skipped, each with the error.
    skipped: Vec<(&'a SkippedJob, String)>,
    /// The reason why the operation ended early, which may quote the error of a job.
    stopped: Option<String>,
    /// The outcome of a redrive that has ended, or the reason why it cannot be read.
    outcome: Option<Arc<Result<PlanOutcome, String>>>,
    /// True if the outcome was searched behind the first 32 messages and dead letters.
    shows_all: bool,
    /// The jobs that died again, each with its path, id and error.
    died: Vec<(String, String, String)>,
    may_stop: bool,
    may_inspect: bool,
    may_redrive: bool,
    may_purge: bool,
}

pub(crate) async fn show(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let operation = find(&request, fields.required("operation")?)?;
    if operation.spec.verb.is_of_jobs() {
        return job_operation::show(&request, &operation, fields.text("done")).await;
    }
    let look = request.app.looks.latest().await?;
    let (progress, spec) = (operation.progress(), &operation.spec);
    let access = request.admin.access();
    let runs = progress.ended.is_none();
    let mut layout = Layout::new(&request, "dead", format!("{} of {}", spec.verb.name(), spec.queue))
        .with_look(&look)
        .noticed(fields.text("done"));
    if runs {
        layout = layout.live(&request, &look).on(&operation.id);
    }
    let report = progress.ended.iter().flatten().find_map(OperationReport::of_letters);
    let errors = report.map(|report| report.errors.as_slice()).unwrap_or_default();
    let outcome = match (&spec.verb, report) {
        (Verb::Redrive(_), Some(report)) => Some(outcome_of(&request, &operation.id, report).await),
        _ => None,
    };
    let error = |text: &str| shown(&request, &spec.queue, "", Field::Error, text);
    let stopped = report.and_then(|report| report.stopped.as_deref()).map(error);
    let known = outcome.as_deref().and_then(|outcome| outcome.as_ref().ok());
    let died = known.map(|outcome| died_again(&request, &spec.queue, outcome)).unwrap_or_default();
    let skipped = report.into_iter().flat_map(|report| &report.skipped).take(MAX_NAMED);
    let page = OperationPage {
        layout,
        operation: &operation,
        spec,
        runs,
        failed: progress.failed(),
        report,
        errors: ErrorRow::all(&request, &spec.queue, &spec.selection, errors),
        more_errors: ErrorRow::unshown(errors),
        ungrouped: report.map_or(0, |report| report.ungrouped),
        skipped: skipped.map(|job| (job, error(&job.error))).collect(),
        progress: &progress,
        stopped,
        outcome,
        shows_all: request.app.admin.shows_running_jobs(),
        died,
        may_stop: runs && access.allows(spec.verb.action(access)),
        may_inspect: access.allows(Action::Inspect),
        may_redrive: access.allows(Action::Redrive),
        may_purge: access.allows(Action::Purge),
    };
    Ok(Answer::Page(page.render()?))
}

/// An operation, as the lists of dead letters and of jobs name it.
pub(super) struct Started {
    pub(super) id: String,
    pub(super) verb: &'static str,
    pub(super) operator: String,
    pub(super) runs: bool,
}

impl Started {
    /// Returns the last operations on the jobs or on the dead letters of a queue.
    pub(super) fn last(request: &AuthorizedRequest, queue: &str, of_jobs: bool) -> Vec<Self> {
        let all = request.app.operations.of_queue(queue);
        let wanted = all.iter().filter(|operation| operation.spec.verb.is_of_jobs() == of_jobs);
        let started = wanted.take(5).map(|operation| Self {
            id: operation.id.clone(),
            verb: operation.spec.verb.name(),
            operator: line(&operation.operator),
            runs: operation.is_running(),
        });
        started.collect()
    }
}

/// Returns a text about the dead letters that the operation left unchanged.
fn rest_of(report: &BulkReport) -> String {
    report.rest_text(amount)
}

/// Returns the jobs that died again, each with its path, id and error.
fn died_again(
    request: &AuthorizedRequest,
    queue: &str,
    outcome: &PlanOutcome,
) -> Vec<(String, String, String)> {
    let died = outcome.dead_again.iter().take(MAX_NAMED).map(|died| {
        let JobReference { queue: of_job, source, id, .. } = &died.job;
        let error = shown(request, queue, "", Field::Error, died.error.as_deref().unwrap_or("-"));
        (job_path(of_job, source.as_deref().unwrap_or_default(), id), line(id), error)
    });
    died.collect()
}

/// Finds the outcome of the jobs that a redrive has put back. If this fails, the page still shows the report.
pub(super) async fn outcome_of(
    request: &AuthorizedRequest,
    operation: &str,
    report: &BulkReport,
) -> Arc<Result<PlanOutcome, String>> {
    let text = |error| PageError::from(error).into_parts().1;
    // Caches a failure as well, so that viewers do not repeat the search.
    let work = async { Ok(request.app.admin.outcome_of(report).await.map_err(text)) };
    request.app.reads.get(operation, work).await.unwrap_or_else(|error| Arc::new(Err(text(error))))
}

pub(super) fn find(request: &AuthorizedRequest, id: &str) -> Result<Arc<Operation>, PageError> {
    let missing = || {
        PageError::missing(
            "there is no such operation in this process, which keeps previews and reports only in memory; start a new preview",
        )
    };
    request.app.operations.find(id).ok_or_else(missing)
}

/// Starts an operation, and shows its page. Requires the right to its action.
pub(super) fn start(request: &AuthorizedRequest, spec: OperationSpec) -> Result<Answer, PageError> {
    let action = spec.verb.action(request.admin.access());
    request.admin.require(action, &format!("{} of {}", spec.verb.objects(), spec.queue))?;
    let app = Arc::downgrade(&request.app);
    let ended = move || {
        if let Some(app) = app.upgrade() {
            app.changed();
        }
    };
    let operation = request.app.operations.start(&request.admin, spec, ended)?;
    Ok(Answer::Go(format!("operations/{}", operation.id)))
}

/// Stops an operation. Requires the right to its action.
pub(crate) async fn stop(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let operation = find(&request, fields.required("operation")?)?;
    operation.stop(&request.admin).await?;
    Ok(Answer::Go(format!("operations/{}?done=stopping", operation.id)))
}
