//! The page of an operation on jobs: its progress, its report, and after a preview the forms to cancel the
//! jobs or to make them due now.

use askama::Template;
use jobqueue_admin::{Action, CancelPlan, CancelReport};

use super::rows::job_path;
use super::{Answer, Layout, PageError};
use crate::browser::app::AuthorizedRequest;
use crate::browser::filters;
use crate::browser::job_operations::{DueReport, JobChoice, JobReport, MAX_DUE};
use crate::browser::operation_spec::{OperationSpec, Verb};
use crate::browser::operations::{Operation, OperationProgress, OperationReport};

/// The maximum number of jobs that the page names.
const MAX_NAMED: usize = 100;

#[derive(Template)]
#[template(path = "job_operation.html")]
struct JobOperationPage<'a> {
    layout: Layout,
    operation: &'a Operation,
    spec: &'a OperationSpec,
    progress: &'a OperationProgress,
    /// The conditions of a preview.
    conditions: Vec<(&'static str, &'a str)>,
    runs: bool,
    /// The error with which the operation failed.
    failed: Option<&'a str>,
    /// The jobs of a preview.
    found: Option<&'a CancelPlan>,
    /// The number of these jobs.
    count: u64,
    cancelled: Option<&'a CancelReport>,
    due: Option<&'a DueReport>,
    shows_all: bool,
    /// True if the jobs could be made due if they were fewer.
    too_many: bool,
    may_stop: bool,
    may_cancel: bool,
    may_run_now: bool,
}

pub(super) async fn show(
    request: &AuthorizedRequest,
    operation: &Operation,
    done: Option<&str>,
) -> Result<Answer, PageError> {
    let look = request.app.looks.latest().await?;
    let (progress, spec) = (operation.progress(), &operation.spec);
    let runs = progress.ended.is_none();
    let title = format!("{}: jobs of {}", spec.verb.name(), spec.queue);
    let mut layout = Layout::new(request, "", title).with_look(&look).noticed(done);
    if runs {
        layout = layout.live(request, &look).on(&operation.id);
    }
    let report = progress.ended.iter().flatten().find_map(OperationReport::of_jobs);
    let (mut found, mut cancelled, mut due) = (None, None, None);
    match report {
        Some(JobReport::Found(plan)) => found = Some(plan),
        Some(JobReport::Cancelled(report)) => cancelled = Some(report),
        Some(JobReport::Due(report)) => due = Some(report),
        None => {}
    }
    let count = report.map_or(0, |report| report.jobs().len());
    let (access, shows_all) = (request.admin.access(), request.app.admin.shows_all_jobs());
    let may_run_now = access.allows(Action::RunNow) && request.app.admin.makes_jobs_due();
    let page = JobOperationPage {
        layout,
        operation,
        spec,
        conditions: match &spec.verb {
            Verb::PreviewJobs(JobChoice::Matching(selection)) => selection.fields(),
            _ => Vec::new(),
        },
        runs,
        failed: progress.failed(),
        found,
        count: count as u64,
        cancelled,
        due,
        shows_all,
        too_many: may_run_now && count > MAX_DUE,
        may_stop: runs && access.allows(spec.verb.action(access)),
        may_cancel: access.allows(Action::Cancel),
        may_run_now: may_run_now && count <= MAX_DUE,
        progress: &progress,
    };
    Ok(Answer::Page(page.render()?))
}
