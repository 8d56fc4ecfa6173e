//! The search page: jobs by id, and the journal of jobs that have ended.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use askama::Template;
use futures_util::{StreamExt, stream};
use jobqueue::{Error, ErrorKind};
use jobqueue_admin::{DeadLetterFilter, HistoryFilter, HistoryPage, HistoryRecord, JobState};
use tokio::time::timeout;

use super::rows::{job_path, shown};
use super::{Answer, Layout, PART_TIMEOUT, PageError, or_reason, part};
use crate::browser::app::AuthorizedRequest;
use crate::browser::fields::{Fields, Given};
use crate::browser::filters;
use crate::browser::looks::Look;
use crate::browser::redact::Field;
use crate::browser::text::{When, encoded, line};

/// The maximum number of ended jobs on a page.
const PAGE_SIZE: usize = 200;
/// The number of queues that a search reads at once.
const CONCURRENT_READS: usize = 8;

#[derive(Template)]
#[template(path = "search.html")]
struct Search<'a> {
    layout: Layout,
    fields: &'a Fields,
    found: Option<Vec<Found>>,
    /// The queues that may have the job and could not be read, and `the records of workers` if these could
    /// not be read.
    unread: Vec<String>,
    /// The jobs that have ended, each with its error.
    ended: Vec<(&'a HistoryRecord, String)>,
    /// The time back to which jobs are shown, and the page with older jobs, if there may be any.
    older: Option<(When, String)>,
    /// The reason why the journal cannot be read.
    unread_journal: Option<String>,
    requests: u64,
    /// True if the storage shows every message.
    shows_all: bool,
    /// The page that explains where the job could be, if its queue is known.
    explain: Option<String>,
}

/// A job that has not ended.
struct Found {
    path: String,
    id: String,
    queue: String,
    kind: String,
    place: &'static str,
}

pub(crate) async fn show(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let look = request.app.looks.latest().await?;
    let queue = fields.text("queue");
    if request.app.redactor.hides() && (fields.exact("key").is_some() || fields.exact("error").is_some()) {
        let text = "texts are hidden here, so jobs cannot be searched by key or error";
        return Err(PageError::forbidden(text));
    }
    // Trimmed, because an id that is pasted into the box often has blanks around it.
    let (id, mut unread) = (fields.text("id"), Vec::new());
    let found = find(&request, &look, id, queue, &mut unread).await;
    let journal = journal(&request, &fields, id).await?;
    let ended = journal.iter().flat_map(|journal| &journal.jobs);
    let searched_to = journal.as_ref().ok().and_then(|journal| journal.searched_to.as_deref());
    let error = |record: &HistoryRecord| {
        let error = record.error.as_deref();
        let error = error.map(|error| shown(&request, &record.queue, &record.kind, Field::Error, error));
        error.unwrap_or_default()
    };
    let page = Search {
        layout: Layout::new(&request, "search", "History").with_look(&look),
        fields: &fields,
        explain: id.zip(queue).map(|(id, queue)| job_path(queue, "", id)),
        found,
        unread,
        ended: ended.map(|record| (record, error(record))).collect(),
        older: searched_to.map(|time| (When::read(time), older(&fields, time))),
        unread_journal: journal.as_ref().err().cloned(),
        shows_all: request.app.admin.shows_all_jobs(),
        requests: 3 * searched_queues(&look, queue).len() as u64,
    };
    Ok(Answer::Page(page.render()?))
}

/// Returns the ended jobs that match the fields, or the reason why the journal cannot be read.
async fn journal(
    request: &AuthorizedRequest,
    fields: &Fields,
    id: Option<&str>,
) -> Result<Result<Arc<HistoryPage>, String>, PageError> {
    let filter = filter(fields)?.limit(PAGE_SIZE).given(id, HistoryFilter::id);
    let key = format!("{filter:?}");
    let read = request.app.admin.history(&filter);
    match id {
        Some(_) => part(request, &key, read).await,
        // Without an id, the page shows only the journal, which may take longer than a part may.
        None => or_reason(request.app.reads.get(&key, read).await),
    }
}

fn older(fields: &Fields, time: &str) -> String {
    let kept = ["id", "queue", "key", "kind", "outcome", "error", "younger", "since"];
    until(kept.into_iter().filter_map(|name| Some((name, fields.exact(name)?))), time)
}

/// Returns the path of the page that searches with these fields for jobs that ended until `time`.
pub(crate) fn until<'a>(fields: impl Iterator<Item = (&'a str, &'a str)>, time: &'a str) -> String {
    let values = fields.chain([("until", time)]).map(|(name, value)| format!("{name}={}", encoded(value)));
    format!("search?{}", values.collect::<Vec<_>>().join("&"))
}

/// Returns the filter in the fields of a page or a document.
pub(crate) fn filter(fields: &Fields) -> Result<HistoryFilter, PageError> {
    let outcome = fields.text("outcome");
    if let Some(unknown) = outcome.filter(|outcome| !HistoryFilter::OUTCOMES.contains(outcome)) {
        let text = format!(
            "`{}` is not an outcome; choose one of {}",
            line(unknown),
            HistoryFilter::OUTCOMES.join(", ")
        );
        return Err(PageError::invalid(text));
    }
    Ok(HistoryFilter::new()
        .given(fields.exact("id"), HistoryFilter::id)
        .given(fields.text("queue"), HistoryFilter::queue)
        .given(fields.exact("key"), HistoryFilter::key)
        .given(fields.text("kind"), HistoryFilter::kind)
        .given(outcome, HistoryFilter::outcome)
        .given(fields.exact("error"), HistoryFilter::error)
        .given(fields.duration("younger")?, HistoryFilter::younger_than)
        .given(fields.time("since")?, HistoryFilter::since)
        .given(fields.time("until")?, HistoryFilter::until))
}

/// Finds the jobs with this id that have not ended, among running jobs and in each queue of the look. Returns
/// `None` without an id.
async fn find(
    request: &AuthorizedRequest,
    look: &Look,
    id: Option<&str>,
    only: Option<&str>,
    unread: &mut Vec<String>,
) -> Option<Vec<Found>> {
    let (id, mut found) = (id?, Vec::new());
    for job in look.present().flat_map(|worker| &worker.record.running) {
        if job.id == id && only.is_none_or(|queue| job.queue == queue) {
            found.push(Found::new(&job.queue, &job.source, &job.id, &job.kind, "running"));
        }
    }
    // While the storage does not answer, the look has outdated records.
    if look.known_workers().is_none() || look.error.is_some() {
        unread.push("the records of workers".to_owned());
    }
    let searches = searched_queues(look, only).into_iter().map(|name| {
        let (request, id) = (request.clone(), id.to_owned());
        async move { in_queue(&request, name, &id, only.is_some()).await }
    });
    let results: Vec<_> = stream::iter(searches).buffered(CONCURRENT_READS).collect().await;
    for (more, failed) in results {
        found.extend(more);
        unread.extend(failed);
    }
    // A running job is found both in its queue and in the record of its worker.
    let mut seen = HashSet::new();
    found.retain(|job| seen.insert((job.path.clone(), job.place)));
    Some(found)
}

/// Returns the names of the queues to search. A queue that the address names is searched even if the look
/// does not have it yet.
fn searched_queues(look: &Look, only: Option<&str>) -> Vec<String> {
    match only {
        Some(only) => vec![only.to_owned()],
        None => look.queues().iter().map(|queue| queue.name.clone()).collect(),
    }
}

/// Returns the jobs with this id, and the name of the queue unless it could be read completely and in time.
async fn in_queue(
    request: &AuthorizedRequest,
    queue: String,
    id: &str,
    is_named: bool,
) -> (Vec<Found>, Option<String>) {
    let (reads, admin) = (&request.app.reads, &request.app.admin);
    // As parts of a page, so that whole pages of a storage that hangs do not take all permits for a minute.
    let read = async {
        if !admin.shows_all_jobs() {
            let all = DeadLetterFilter::new();
            let waiting = reads.get_part(&queue, admin.peek(&queue)).await;
            return (waiting, reads.get_part(&queue, async { admin.dead_letters(&queue, &all).await }).await);
        }
        let (key, ids) = (format!("{queue} {id}"), BTreeSet::from([id]));
        let dead = DeadLetterFilter::new().ids([id]);
        let open = reads.get_part(&key, admin.open_messages(&queue, &ids)).await;
        (open, reads.get_part(&key, async { admin.dead_letters(&queue, &dead).await }).await)
    };
    let Ok((waiting, dead)) = timeout(PART_TIMEOUT, read).await else { return (Vec::new(), Some(queue)) };
    // A queue that was deleted since, or whose name is too long for a dead-letter queue, has no such jobs.
    // But a queue that the address names may be misspelt.
    let has_failed = |e: &Error| !matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Invalid);
    let failed = waiting.as_ref().is_err_and(|e| is_named || has_failed(e));
    let failed = failed || dead.as_ref().is_err_and(has_failed);
    let dead = dead.iter().flat_map(|page| &page.letters);
    let all = waiting.iter().flat_map(|jobs| jobs.iter()).chain(dead).filter(|job| job.id == id);
    let found = all.map(|job| Found::new(&job.queue, &job.source, &job.id, &job.kind, place(job.state)));
    (found.collect(), failed.then(|| queue.clone()))
}

fn place(state: JobState) -> &'static str {
    match state {
        JobState::Running => "running",
        JobState::Delayed => "delayed",
        JobState::BackingOff => "backing off",
        JobState::Dead => "dead",
        _ => "waiting",
    }
}

impl Found {
    fn new(queue: &str, source: &str, id: &str, kind: &str, place: &'static str) -> Self {
        let path = job_path(queue, source, id);
        Self { path, id: line(id), queue: line(queue), kind: line(kind), place }
    }
}
