//! An operation as JSON: its progress, its report, and the outcome of a redrive.

use std::collections::BTreeMap;

use jobqueue_admin::BulkReport;
use serde_json::{Value, json};

use super::operation::{find, outcome_of};
use crate::browser::app::AuthorizedRequest;
use crate::browser::fields::Fields;
use crate::browser::job_operations::{JobChoice, JobReport};
use crate::browser::json::{Document, document, require_texts};
use crate::browser::operation_spec::Verb;
use crate::browser::operations::OperationReport;

/// The maximum number of jobs in each list of the document: a plan may have millions.
const MAX_DOCUMENTED: usize = 1_000;

/// The operation with its progress, its report, and the outcome of a redrive that has ended.
pub(crate) async fn show(request: AuthorizedRequest, fields: Fields) -> Document {
    require_texts(&request)?;
    let operation = find(&request, fields.required("id")?)?;
    let (progress, spec) = (operation.progress(), &operation.spec);
    let report = progress.ended.iter().flatten().next();
    let outcome = match (&spec.verb, report) {
        (Verb::Redrive(_), Some(OperationReport::Letters(report))) => {
            Some(outcome_of(&request, &operation.id, report).await)
        }
        _ => None,
    };
    let outcome = outcome.as_deref().map(Result::as_ref);
    let (filter, rows) = match &spec.verb {
        Verb::PreviewJobs(JobChoice::Matching(selection)) => (selection.fields(), None),
        Verb::PreviewJobs(JobChoice::Named(plan)) => (Vec::new(), Some(plan.jobs.len())),
        _ => (spec.selection.fields(), spec.selection.rows()),
    };
    let filter: BTreeMap<_, _> = filter.into_iter().collect();
    let started = jiff::Timestamp::try_from(operation.started).ok().map(|at| at.to_string());
    document(&json!({
        "id": operation.id,
        "verb": spec.verb.name().to_ascii_lowercase().replace(' ', "_"),
        "objects": spec.verb.objects().replace(' ', "_"),
        "queue": spec.queue,
        "filter": filter,
        "rows": rows,
        "limit": spec.limit,
        "per_second": spec.per_second,
        "canary": spec.canary,
        "operator": operation.operator,
        "started": started,
        "done": progress.done,
        "total": progress.total,
        "waits": progress.waits,
        "held_up": progress.held_up,
        "ended": progress.ended.is_some(),
        "problem": progress.failed(),
        "report": report.map(report_document),
        "outcome": outcome.and_then(Result::ok),
        "outcome_problem": outcome.and_then(Result::err),
    }))
}

fn report_document(report: &OperationReport) -> Value {
    match report {
        OperationReport::Letters(report) => of_letters(report),
        OperationReport::Jobs(report) => of_jobs(report),
    }
}

/// Returns a report with the first jobs of its lists, and the number of jobs that it leaves out.
fn of_letters(report: &BulkReport) -> Value {
    json!({
        "count": report.count,
        "jobs": first(&report.jobs),
        "more_jobs": left_out(&report.jobs),
        "errors": report.errors,
        "ungrouped": report.ungrouped,
        "skipped": first(&report.skipped),
        "more_skipped": left_out(&report.skipped),
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

fn of_jobs(report: &JobReport) -> Value {
    match report {
        JobReport::Found(plan) => json!({
            "count": plan.jobs.len(),
            "jobs": first(&plan.jobs),
            "more_jobs": left_out(&plan.jobs),
            "complete": plan.complete,
        }),
        JobReport::Cancelled(report) => json!({
            "count": report.jobs.len(),
            "jobs": first(&report.jobs),
            "more_jobs": left_out(&report.jobs),
            "workers": report.workers,
            "complete": report.complete,
        }),
        JobReport::Due(report) => {
            let failed = report.failed.iter().map(|(job, error)| json!({ "job": job, "error": error }));
            json!({
                "count": report.made,
                "unchanged": report.unchanged,
                "failed": failed.collect::<Vec<_>>(),
                "left": report.left,
            })
        }
    }
}

fn first<T>(list: &[T]) -> Vec<&T> {
    list.iter().take(MAX_DOCUMENTED).collect()
}

fn left_out<T>(list: &[T]) -> usize {
    list.len().saturating_sub(MAX_DOCUMENTED)
}
