//! Jobs found by their id, and the journal of jobs that have ended.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::SystemTime;

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

const PAGE_SIZE: usize = 200;

const CONCURRENT_READS: usize = 8;

#[derive(Template)]
#[template(path = "search.html")]
struct Search<'a> {
    layout: Layout,
    fields: &'a Fields,
    found: Option<Vec<Found>>,
    /// The queues in which the job may be, and which could not be read; with them the records of workers.
    unread: Vec<String>,
    /// The jobs that have ended, each with its error.
    ended: Vec<(&'a HistoryRecord, String)>,
    /// The time back to which the jobs are shown, and the page with older ones, if there may be any.
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
    // One that was pasted into the box has the blanks of the text around it.
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
        requests: 3 * asked(&look, queue).len() as u64,
    };
    Ok(Answer::Page(page.render()?))
}

/// Returns the jobs that have ended and that the fields select, or the reason why the journal cannot be read.
async fn journal(
    request: &AuthorizedRequest,
    fields: &Fields,
    id: Option<&str>,
) -> Result<Result<Arc<HistoryPage>, String>, PageError> {
    let filter = filter(fields)?.limit(PAGE_SIZE).given(id, HistoryFilter::id);
    let question = format!("{filter:?}");
    let read = request.app.admin.history(&filter);
    match id {
        Some(_) => part(request, &question, read).await,
        // Nothing else is searched.
        None => or_reason(request.app.reads.get_part(&question, read).await),
    }
}

fn older(fields: &Fields, time: &str) -> String {
    let kept = ["id", "queue", "key", "kind", "outcome", "error", "younger", "since"];
    until(kept.into_iter().filter_map(|name| Some((name, fields.exact(name)?))), time)
}

/// Returns the path of the page that searches with these fields what ended until this time.
pub(crate) fn until<'a>(fields: impl Iterator<Item = (&'a str, &'a str)>, time: &'a str) -> String {
    let values = fields.chain([("until", time)]).map(|(name, value)| format!("{name}={}", encoded(value)));
    format!("search?{}", values.collect::<Vec<_>>().join("&"))
}

/// Returns the filter that the fields of a page or a document give.
pub(crate) fn filter(fields: &Fields) -> Result<HistoryFilter, PageError> {
    let younger = fields.duration("younger")?.and_then(|age| SystemTime::now().checked_sub(age));
    let since = younger.max(fields.time("since")?);
    let outcome = fields.text("outcome");
    if let Some(unknown) = outcome.filter(|outcome| !HistoryFilter::OUTCOMES.contains(outcome)) {
        let text = format!(
            "`{}` is no outcome; choose one of {}",
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
        .given(since, HistoryFilter::since)
        .given(fields.time("until")?, HistoryFilter::until))
}

/// Looks for a job that has not ended: among running jobs, and among the messages of each queue that a look shows. `None` without an id.
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
    // While the storage does not answer, the records are those of an earlier look.
    if look.known_workers().is_none() || look.error.is_some() {
        unread.push("the records of workers".to_owned());
    }
    let looks = asked(look, only).into_iter().map(|name| {
        let (request, id) = (request.clone(), id.to_owned());
        async move { in_queue(&request, name, &id, only.is_some()).await }
    });
    let looks: Vec<_> = stream::iter(looks).buffered(CONCURRENT_READS).collect().await;
    for (more, failed) in looks {
        found.extend(more);
        unread.extend(failed);
    }
    // A job that runs is in the record of its worker too.
    let mut seen = HashSet::new();
    found.retain(|one| seen.insert((one.path.clone(), one.place)));
    Some(found)
}

/// Returns the names of the queues that are asked: one that the address names also if no look has shown it yet.
fn asked(look: &Look, only: Option<&str>) -> Vec<String> {
    match only {
        Some(only) => vec![only.to_owned()],
        None => look.queues().iter().map(|queue| queue.name.clone()).collect(),
    }
}

/// Returns the jobs with this id, and the name of the queue if it could not be read to the end, or not in time.
async fn in_queue(
    request: &AuthorizedRequest,
    queue: String,
    id: &str,
    is_named: bool,
) -> (Vec<Found>, Option<String>) {
    let (reads, admin) = (&request.app.reads, &request.app.admin);
    let read = async {
        if !admin.shows_all_jobs() {
            let all = DeadLetterFilter::new();
            let waiting = reads.get(&queue, admin.peek(&queue)).await;
            return (waiting, reads.get(&queue, async { admin.dead_letters(&queue, &all).await }).await);
        }
        let (question, ids) = (format!("{queue} {id}"), BTreeSet::from([id]));
        let dead = DeadLetterFilter::new().ids([id]);
        let open = reads.get(&question, admin.open_messages(&queue, &ids)).await;
        (open, reads.get(&question, async { admin.dead_letters(&queue, &dead).await }).await)
    };
    let Ok((waiting, dead)) = timeout(PART_TIMEOUT, read).await else { return (Vec::new(), Some(queue)) };
    // A queue that was deleted since, or whose name is too long for dead letters, has none. One that the address names may be misspelt.
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
