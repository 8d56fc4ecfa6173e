//! A bulk operation: its progress, its report, and after a preview the decision.

use std::sync::Arc;

use askama::Template;
use jobqueue_admin::{Action, BulkReport, SkippedJob};

use super::rows::shown;
use super::selection::Selection;
use super::{Answer, Layout, PageError};
use crate::browser::app::AuthorizedRequest;
use crate::browser::fields::Fields;
use crate::browser::operations::{Operation, Verb};
use crate::browser::redact::Field;
use crate::browser::text::{When, amount, line};

/// The most jobs of a report that the page names.
const NAMED: usize = 100;

#[derive(Template)]
#[template(path = "operation.html")]
struct OperationPage {
    layout: Layout,
    id: String,
    verb: &'static str,
    queue: String,
    operator: String,
    started: When,
    selection: Selection,
    done: u64,
    total: u64,
    runs: bool,
    failed: Option<String>,
    report: Option<Report>,
    is_preview: bool,
    may_stop: bool,
    may_redrive: bool,
    may_purge: bool,
}

struct Report {
    count: u64,
    count_text: String,
    jobs: Vec<String>,
    more: usize,
    skipped: Vec<(String, String, bool)>,
    left: String,
    newer: u64,
    missing: u64,
    stopped: Option<String>,
}

pub(crate) async fn show(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let operation = find(&request, fields.required("operation")?)?;
    let look = request.app.poller.latest().await?;
    let (progress, order) = (operation.progress(), &operation.order);
    let access = request.admin.access();
    let runs = progress.ended.is_none();
    let mut layout = Layout::new(&request, "dead", format!("{} of {}", order.verb.name(), order.queue))
        .with_look(&look)
        .noticed(fields.text("done"));
    if runs {
        layout = layout.live(&request, &look, 0).on(&operation.id);
    }
    let page = OperationPage {
        layout,
        id: operation.id.clone(),
        verb: order.verb.name(),
        queue: order.queue.clone(),
        operator: line(&operation.operator),
        started: When::of(operation.started),
        selection: order.selection.clone(),
        done: progress.done,
        total: progress.total,
        runs,
        failed: progress.ended.as_ref().and_then(|ended| ended.as_ref().err()).map(|error| line(error)),
        report: progress.ended.and_then(Result::ok).map(|ended| report(&request, &order.queue, &ended)),
        is_preview: matches!(order.verb, Verb::Preview),
        may_stop: runs && access.allows(order.verb.action()),
        may_redrive: access.allows(Action::Redrive),
        may_purge: access.allows(Action::Purge),
    };
    Ok(Answer::Page(page.render()?))
}

pub(super) fn find(request: &AuthorizedRequest, id: &str) -> Result<Arc<Operation>, PageError> {
    let missing = || {
        PageError::missing(
            "there is no such operation in this process, which keeps reports and previews in its memory; look again",
        )
    };
    request.app.operations.find(id).ok_or_else(missing)
}

fn report(request: &AuthorizedRequest, queue: &str, report: &BulkReport) -> Report {
    let error = |error: &str| shown(request, queue, "", Field::Error, error);
    let skipped = |job: &SkippedJob| (line(&job.id), error(&job.error), job.maybe_moved);
    Report {
        count: report.count,
        count_text: amount(report.count),
        jobs: report.jobs.iter().take(NAMED).map(|job| line(&job.id)).collect(),
        more: report.jobs.len().saturating_sub(NAMED),
        skipped: report.skipped.iter().take(NAMED).map(skipped).collect(),
        left: amount(report.left),
        newer: report.newer,
        missing: report.missing,
        stopped: report.stopped.as_deref().map(line),
    }
}

/// Stops an operation. Whoever may start one of its sort may stop it.
pub(crate) async fn stop(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let operation = find(&request, fields.required("operation")?)?;
    let subject = format!("operation on dead letters of {}", operation.order.queue);
    request.admin.require(operation.order.verb.action(), &subject)?;
    let operator = request.admin.operator().escape_debug();
    tracing::info!(%operator, operation = %operation.id, queue = %operation.order.queue, "requested the stop of a bulk operation");
    operation.stop();
    Ok(Answer::Go(format!("operations/{}?done=stopping", operation.id)))
}
