//! The page of a bulk operation: its progress, its report, and after a preview the forms to act on its dead
//! letters.

use std::collections::BTreeMap;
use std::sync::Arc;

use askama::Template;
use jobqueue_admin::{Action, BulkReport, JobReference, PlanOutcome, SkippedJob};
use serde_json::{Value, json};

use super::rows::{ErrorRow, job_path, shown};
use super::{Answer, Layout, PageError};
use crate::browser::app::AuthorizedRequest;
use crate::browser::fields::Fields;
use crate::browser::filters;
use crate::browser::json;
use crate::browser::operations::{Operation, OperationProgress, OperationSpec, Verb};
use crate::browser::redact::Field;
use crate::browser::text::{amount, line};

/// The maximum number of jobs that each list of the page names.
const MAX_NAMED: usize = 100;
/// The maximum number of jobs in each list of the document: a plan may have millions.
const MAX_DOCUMENTED: usize = 1_000;

#[derive(Template)]
#[template(path = "operation.html")]
struct OperationPage<'a> {
    layout: Layout,
    operation: &'a Operation,
    spec: &'a OperationSpec,
    progress: &'a OperationProgress,
    runs: bool,
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
    /// The jobs that died again, each with its path, id and error.
    died: Vec<(String, String, String)>,
    may_stop: bool,
    may_inspect: bool,
    may_redrive: bool,
    may_purge: bool,
}

pub(crate) async fn show(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let operation = find(&request, fields.required("operation")?)?;
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
    let report = progress.ended.iter().flatten().next();
    let errors = report.map(|report| report.errors.as_slice()).unwrap_or_default();
    let outcome = match (&spec.verb, report) {
        (Verb::Redrive(_), Some(report)) => Some(outcome_of(&request, &operation.id, report).await),
        _ => None,
    };
    let stopped = report.and_then(|report| report.stopped.as_deref());
    let stopped = stopped.map(|why| shown(&request, &spec.queue, "", Field::Error, why));
    let known = outcome.as_deref().and_then(|outcome| outcome.as_ref().ok());
    let died = known.iter().flat_map(|outcome| &outcome.dead_again).take(MAX_NAMED).map(|died| {
        let JobReference { queue, source, id, .. } = &died.job;
        let error = shown(&request, queue, "", Field::Error, died.error.as_deref().unwrap_or("-"));
        (job_path(queue, source.as_deref().unwrap_or_default(), id), line(id), error)
    });
    let died = died.collect();
    let skipped = progress.ended.iter().flatten().flat_map(|report| &report.skipped).take(MAX_NAMED);
    let page = OperationPage {
        layout,
        operation: &operation,
        spec,
        runs,
        errors: ErrorRow::all(&request, &spec.queue, &spec.selection, errors),
        more_errors: ErrorRow::unshown(errors),
        ungrouped: report.map_or(0, |report| report.ungrouped),
        skipped: skipped
            .map(|job| (job, shown(&request, &spec.queue, "", Field::Error, &job.error)))
            .collect(),
        progress: &progress,
        stopped,
        outcome,
        died,
        may_stop: runs && access.allows(spec.verb.action()),
        may_inspect: access.allows(Action::Inspect),
        may_redrive: access.allows(Action::Redrive),
        may_purge: access.allows(Action::Purge),
    };
    Ok(Answer::Page(page.render()?))
}

/// The operation as JSON, with the progress, the report, and the outcome of a redrive that has ended.
pub(crate) async fn document(request: AuthorizedRequest, fields: Fields) -> json::Document {
    json::require_texts(&request)?;
    let operation = find(&request, fields.required("id")?)?;
    let (progress, spec) = (operation.progress(), &operation.spec);
    let report = progress.ended.iter().flatten().next();
    let outcome = match (&spec.verb, report) {
        (Verb::Redrive(_), Some(report)) => Some(outcome_of(&request, &operation.id, report).await),
        _ => None,
    };
    let outcome = outcome.as_deref().map(Result::as_ref);
    let filter: BTreeMap<_, _> = spec.selection.fields().into_iter().collect();
    let started = jiff::Timestamp::try_from(operation.started).ok().map(|at| at.to_string());
    json::document(&json!({
        "id": operation.id,
        "verb": spec.verb.name().to_ascii_lowercase(),
        "queue": spec.queue,
        "filter": filter,
        "per_second": spec.per_second,
        "canary": spec.canary,
        "operator": operation.operator,
        "started": started,
        "done": progress.done,
        "total": progress.total,
        "waits": progress.waits,
        "held_up": progress.held_up,
        "ended": progress.ended.is_some(),
        "problem": progress.ended.as_ref().and_then(|ended| ended.as_ref().err()),
        "report": report.map(|report| report_document(report)),
        "outcome": outcome.and_then(Result::ok),
        "outcome_problem": outcome.and_then(Result::err),
    }))
}

/// Returns a report with the first jobs of its lists, and the number of jobs that it leaves out.
fn report_document(report: &BulkReport) -> Value {
    let left_out = |listed: usize| listed.saturating_sub(MAX_DOCUMENTED);
    json!({
        "count": report.count,
        "jobs": report.jobs.iter().take(MAX_DOCUMENTED).collect::<Vec<_>>(),
        "more_jobs": left_out(report.jobs.len()),
        "errors": report.errors,
        "ungrouped": report.ungrouped,
        "skipped": report.skipped.iter().take(MAX_DOCUMENTED).collect::<Vec<_>>(),
        "more_skipped": left_out(report.skipped.len()),
        "waited_for": report.waited_for,
        "left": report.left,
        "newer": report.newer,
        "copies": report.copies,
        "payloads_left": report.payloads_left,
        "missing": report.missing,
        "unseen": report.unseen,
        "complete": report.complete,
        "stopped": report.stopped,
    })
}

/// Returns a text about the dead letters that the operation left unchanged.
fn rest_of(report: &BulkReport) -> String {
    report.rest_text(amount)
}

/// Finds the outcome of the jobs that a redrive has put back. If this fails, the page still shows the report.
async fn outcome_of(
    request: &AuthorizedRequest,
    operation: &str,
    report: &BulkReport,
) -> Arc<Result<PlanOutcome, String>> {
    let text = |error| PageError::from(error).text;
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

/// Stops an operation. Requires the right to its action.
pub(crate) async fn stop(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let operation = find(&request, fields.required("operation")?)?;
    operation.stop(&request.admin).await?;
    Ok(Answer::Go(format!("operations/{}?done=stopping", operation.id)))
}
