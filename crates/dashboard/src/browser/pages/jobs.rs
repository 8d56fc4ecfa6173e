//! The lists of a queue's jobs by state, and the forms that cancel jobs or make them due now.

use std::sync::Arc;

use askama::Template;
use jobqueue::QueueName;
use jobqueue::storage::StateCounts;
use jobqueue_admin::{Action, Admin, CancelPlan, JobPage, JobReference, JobState, RawJob};

use super::job::reference;
use super::operation::Started;
use super::rows::{Message, place};
use super::{Answer, Layout, PageError, operation};
use crate::browser::app::AuthorizedRequest;
use crate::browser::fields::Fields;
use crate::browser::filters;
use crate::browser::job_operations::{JobChoice, JobReport, MAX_DUE};
use crate::browser::job_selection::JobSelection;
use crate::browser::operation_spec::{OperationSpec, Verb};
use crate::browser::operations::OperationReport;
use crate::browser::selection::Selection;
use crate::browser::text::line;

/// The number of jobs on a page. With conditions there may be up to 1,000 more.
const PAGE_SIZE: usize = 100;

/// The states that have a list, in the order of the page.
const LISTS: [List; 4] =
    [List(JobState::Waiting), List(JobState::Delayed), List(JobState::BackingOff), List(JobState::Running)];

/// The list of the jobs in a state. Its name and its title are the [words](place) for that state.
#[derive(Clone, Copy)]
struct List(JobState);

#[derive(Template)]
#[template(path = "jobs.html")]
struct Jobs {
    layout: Layout,
    queue: String,
    /// The lists, each with its query and the number of its jobs if the storage counts them.
    lists: Vec<(List, String, Option<u64>)>,
    /// False if the waiting jobs include the running ones, which have no list.
    shows_running: bool,
    /// True if the storage may have jobs that it does not show.
    is_partial: bool,
    list: List,
    selection: JobSelection,
    jobs: Vec<Message>,
    has_keys: bool,
    /// The query of the next page.
    next: Option<String>,
    /// The query of the first page, unless this is it.
    first: Option<String>,
    /// True if the storage shows the jobs of every state.
    shows_all: bool,
    operations: Vec<Started>,
    has_text: bool,
    may_act: bool,
    /// True if the operator may make the jobs of this list due now.
    may_run_now: bool,
}

/// The jobs of one page.
#[derive(Default)]
struct FoundJobs {
    jobs: Vec<Message>,
    next: Option<String>,
    is_partial: bool,
}

impl List {
    /// Returns the list with this name, or the first without a name.
    fn find(name: Option<&str>) -> Result<Self, PageError> {
        let Some(name) = name else { return Ok(LISTS[0]) };
        let found = LISTS.into_iter().find(|list| list.name() == name);
        found.ok_or_else(|| {
            let names = LISTS.map(Self::name).join(", ");
            PageError::invalid(format!("`{}` is not a state; choose one of {names}", line(name)))
        })
    }

    /// Returns the name in addresses, which is that of the state in documents.
    fn name(self) -> String {
        place(self.0.into()).replace(' ', "_")
    }

    fn title(self) -> String {
        let mut title = place(self.0.into()).to_owned();
        if let Some(first) = title.get_mut(..1) {
            first.make_ascii_uppercase();
        }
        title
    }

    fn count(self, counts: &StateCounts) -> Option<u64> {
        match self.0 {
            JobState::Waiting => Some(counts.waiting),
            JobState::Delayed => Some(counts.delayed),
            JobState::BackingOff => Some(counts.backing_off),
            JobState::Running => Some(counts.running),
            _ => None,
        }
    }

    /// Returns whether its jobs wait for a time.
    fn is_hidden(self) -> bool {
        matches!(self.0, JobState::Delayed | JobState::BackingOff)
    }
}

pub(crate) async fn show(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let (queue, from) = (home_queue(&fields)?, fields.text("from"));
    let queue = queue.as_str();
    let list = List::find(fields.text("state"))?;
    let selection = JobSelection::read(&fields, &request.app.redactor)?;
    let look = request.app.looks.latest().await?;
    let found = read(&request, &fields, list, &selection).await?;
    let counts = look.queue(queue).and_then(|queue| queue.states);
    let lists = LISTS.map(|list| {
        let count = counts.as_ref().and_then(|counts| list.count(counts));
        (list, selection.query(&list.name(), None), count)
    });
    let mut layout = Layout::new(&request, "", format!("Jobs of {queue}")).with_look(&look);
    // A search is not repeated, and a later page may begin at a job that is gone.
    if selection.is_empty() && from.is_none() {
        layout = layout.live(&request, &look);
    }
    let (access, admin) = (request.admin.access(), &request.app.admin);
    let shows_all = admin.shows_all_jobs();
    let page = Jobs {
        layout,
        queue: queue.to_owned(),
        lists: lists.to_vec(),
        shows_running: admin.shows_running_jobs() || !shows_all,
        is_partial: found.is_partial,
        list,
        has_keys: found.jobs.iter().any(|job| !job.key.is_empty()),
        jobs: found.jobs,
        next: found.next.as_deref().map(|next| selection.query(&list.name(), Some(next))),
        first: from.map(|_| selection.query(&list.name(), None)),
        shows_all,
        operations: Started::last(&request, queue, true),
        has_text: !request.app.redactor.hides(),
        may_act: may_preview(&request),
        may_run_now: access.allows(Action::RunNow) && admin.makes_jobs_due() && list.is_hidden(),
        selection,
    };
    Ok(Answer::Page(page.render()?))
}

/// Returns the queue that the fields name. Refuses a dead-letter queue: no worker receives its messages, so
/// that a request to cancel them would have no effect.
fn home_queue(fields: &Fields) -> Result<QueueName, PageError> {
    let queue = QueueName::new(fields.required("queue")?).map_err(jobqueue::Error::from)?;
    Admin::check_home(queue.as_str())?;
    Ok(queue)
}

/// Returns whether the operator may change jobs of a preview.
pub(super) fn may_preview(request: &AuthorizedRequest) -> bool {
    let access = request.admin.access();
    access.allows(Action::Cancel) || access.allows(Action::RunNow)
}

/// Returns the jobs of the page. If the storage does not show every message, these are the visible ones among
/// the first 32.
async fn read(
    request: &AuthorizedRequest,
    fields: &Fields,
    list: List,
    selection: &JobSelection,
) -> Result<FoundJobs, PageError> {
    let admin = &request.app.admin;
    if !admin.shows_all_jobs() {
        let queue = fields.required("queue")?;
        if list.0 != JobState::Waiting {
            return Ok(FoundJobs::default());
        }
        let shown = request.app.reads.get(queue, admin.peek(queue)).await?;
        let jobs = shown.iter().filter(|job| selection.selects(job));
        let jobs = jobs.map(|job| Message::new(request, job)).collect();
        return Ok(FoundJobs { jobs, ..FoundJobs::default() });
    }
    if list.0 == JobState::Running && !admin.shows_running_jobs() {
        return Ok(FoundJobs::default());
    }
    let page = search(request, fields, list, selection).await?;
    let jobs = page.jobs.iter().map(|job| Message::new(request, job)).collect();
    Ok(FoundJobs { jobs, next: page.next.clone(), is_partial: page.partial })
}

/// Returns the jobs that the fields of the page select, if the storage shows every message. Leaves out what
/// the list does not show: a hundred payloads would be too large to be kept.
async fn search(
    request: &AuthorizedRequest,
    fields: &Fields,
    list: List,
    selection: &JobSelection,
) -> Result<Arc<JobPage>, PageError> {
    let (queue, from) = (fields.required("queue")?, fields.text("from"));
    let filter = selection.filter().from(from.map(str::to_owned)).limit(PAGE_SIZE);
    let reads = &request.app.reads;
    let search = async {
        let mut page = request.app.admin.jobs(queue, list.0, &filter).await?;
        page.jobs = page.jobs.into_iter().map(RawJob::without_content).collect();
        Ok::<_, jobqueue::Error>(page)
    };
    // The first page is refreshed for all viewers at once. Others may be too large to be kept.
    if selection.is_empty() && from.is_none() {
        return Ok(reads.get(&format!("{queue} {}", list.name()), search).await?);
    }
    Ok(Arc::new(reads.get_once(search).await?))
}

/// Returns the state whose jobs a document is to list, by the name that the page gives it.
pub(crate) fn listed_state(fields: &Fields) -> Result<JobState, PageError> {
    Ok(List::find(fields.text("state"))?.0)
}

/// Previews the jobs that meet the conditions of the form, in every state.
pub(crate) async fn preview(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let queue = home_queue(&fields)?;
    let selection = JobSelection::read(&fields, &request.app.redactor)?;
    if selection.is_empty() {
        let text = "nothing was changed: no jobs are selected; give a kind, a key, an error or a batch";
        return Err(PageError::invalid(text));
    }
    start(&request, Verb::PreviewJobs(JobChoice::Matching(selection)), queue.as_str())
}

/// Previews the selected rows.
pub(crate) async fn preview_selected(
    request: AuthorizedRequest,
    fields: Fields,
) -> Result<Answer, PageError> {
    let queue = home_queue(&fields)?;
    let jobs: Vec<JobReference> = fields.rows()?.iter().map(reference).collect::<Result<_, _>>()?;
    if jobs.iter().any(|job| job.queue != queue.as_str()) {
        return Err(PageError::invalid("nothing was changed: a selected row is a job of another queue"));
    }
    let choice = JobChoice::Named(CancelPlan::of_jobs(jobs));
    start(&request, Verb::PreviewJobs(choice), queue.as_str())
}

/// Cancels the jobs of a preview.
pub(super) fn cancel(request: &AuthorizedRequest, preview: &str) -> Result<Answer, PageError> {
    let (plan, queue) = planned(request, preview)?;
    start(request, Verb::Cancel(plan), &queue)
}

/// Makes the jobs of a preview due now.
pub(super) fn run_now(request: &AuthorizedRequest, preview: &str) -> Result<Answer, PageError> {
    let (plan, queue) = planned(request, preview)?;
    if plan.jobs.len() > MAX_DUE {
        let text = format!("nothing was changed: at most {MAX_DUE} jobs are made due at once");
        return Err(PageError::invalid(text));
    }
    start(request, Verb::RunNow(plan), &queue)
}

fn start(request: &AuthorizedRequest, verb: Verb, queue: &str) -> Result<Answer, PageError> {
    operation::start(request, OperationSpec::new(verb, queue, Selection::default()))
}

/// Returns the jobs that a preview has found, and their queue.
fn planned(request: &AuthorizedRequest, preview: &str) -> Result<(CancelPlan, String), PageError> {
    let operation = operation::find(request, preview)?;
    let progress = operation.progress();
    let report = progress.ended.iter().flatten().find_map(OperationReport::of_jobs);
    match (&operation.spec.verb, report) {
        (Verb::PreviewJobs(_), Some(JobReport::Found(plan))) if !plan.jobs.is_empty() => {
            Ok((plan.clone(), operation.spec.queue.clone()))
        }
        (Verb::PreviewJobs(_), _) => {
            Err(PageError::invalid("nothing was changed: the preview has found no job yet"))
        }
        _ => Err(PageError::invalid("nothing was changed: this operation is not a preview of jobs")),
    }
}
