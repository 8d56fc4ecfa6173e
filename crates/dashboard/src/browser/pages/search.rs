//! The search page: jobs by id or key, and the journal of jobs that have ended.

use std::collections::HashSet;
use std::sync::Arc;

use askama::Template;
use futures_util::{StreamExt, stream};
use jobqueue::{Error, ErrorKind};
use jobqueue_admin::{DeadLetterFilter, HistoryFilter, HistoryPage, HistoryRecord, JobFilter, RawJob};
use tokio::time::timeout;

use super::rows::{job_path, place, shown};
use super::{Answer, Layout, PART_TIMEOUT, PageError, or_reason, part};
use crate::browser::app::AuthorizedRequest;
use crate::browser::fields::{Fields, Given};
use crate::browser::filters;
use crate::browser::looks::Look;
use crate::browser::redact::Field;
use crate::browser::text::{When, encoded, line};

/// The maximum number of ended jobs on a page.
const PAGE_SIZE: usize = 200;
/// The maximum number of jobs on a page that have not ended.
const MAX_FOUND: usize = 200;
/// The number of queues that a search reads at once.
const CONCURRENT_READS: usize = 8;

#[derive(Template)]
#[template(path = "search.html")]
struct Search<'a> {
    layout: Layout,
    fields: &'a Fields,
    found: Option<Vec<&'a Found>>,
    /// The least number of found jobs that are not shown.
    more_found: usize,
    /// A sentence for a search that has found no job that has not ended.
    none_found: String,
    /// The queues that may have the job and could not be read, and `the records of workers` if these could
    /// not be read.
    unread: &'a [String],
    ended: Vec<Ended<'a>>,
    has_keys: bool,
    /// The time back to which jobs are shown, and the page with older jobs, if there may be any.
    older: Option<(When, String)>,
    /// The reason why the journal cannot be read.
    unread_journal: Option<&'a str>,
    /// The page that explains where the job could be, if its queue is known.
    explain: Option<String>,
    /// The page that searches for the id as a key.
    as_key: Option<String>,
    /// True unless texts are hidden: a search by text would reveal them.
    has_text: bool,
}

/// A job that has ended, with its texts as they are shown.
struct Ended<'a> {
    job: &'a HistoryRecord,
    key: String,
    error: String,
}

/// A job that has not ended.
struct Found {
    path: String,
    id: String,
    queue: String,
    kind: String,
    place: &'static str,
}

/// The results of a search.
struct Results {
    /// The jobs that have not ended; `None` if the search has neither an id nor a key.
    found: Option<Vec<Found>>,
    unread: Vec<String>,
    journal: Result<Arc<HistoryPage>, String>,
}

pub(crate) async fn show(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let look = request.app.looks.latest().await?;
    let Some(text) = fields.text("find") else {
        let results = search(&request, &look, &fields).await?;
        return page(&request, &look, &fields, &results);
    };
    // An id first: it names one job. A text that is no id of a job may be a key.
    let by_id = Fields::new([("id".to_owned(), text.to_owned())]);
    let results = search(&request, &look, &by_id).await?;
    if results.has_any() || request.app.redactor.hides() {
        return page(&request, &look, &by_id, &results);
    }
    let by_key = Fields::new([("key".to_owned(), text.to_owned())]);
    let of_key = search(&request, &look, &by_key).await?;
    // The page of the id has a link to the search for the key.
    let (fields, results) = if of_key.has_any() { (by_key, of_key) } else { (by_id, results) };
    page(&request, &look, &fields, &results)
}

impl Results {
    /// Returns whether a job was found, or may be found by continuing the search.
    fn has_any(&self) -> bool {
        self.found.as_ref().is_some_and(|found| !found.is_empty())
            || self.journal.as_ref().is_ok_and(|journal| !journal.jobs.is_empty() || !journal.complete)
    }
}

async fn search(request: &AuthorizedRequest, look: &Look, fields: &Fields) -> Result<Results, PageError> {
    if request.app.redactor.hides() && (fields.exact("key").is_some() || fields.exact("error").is_some()) {
        let text = "texts are hidden here, so jobs cannot be searched by key or error";
        return Err(PageError::forbidden(text));
    }
    let (wanted, mut unread) = (Wanted::of(fields), Vec::new());
    let found = find(request, look, wanted.as_ref(), fields.text("queue"), &mut unread).await;
    let journal = journal(request, fields, fields.text("id")).await?;
    Ok(Results { found, unread, journal })
}

fn page(
    request: &AuthorizedRequest,
    look: &Look,
    fields: &Fields,
    results: &Results,
) -> Result<Answer, PageError> {
    let (id, queue) = (fields.text("id"), fields.text("queue"));
    let journal = results.journal.as_ref();
    let searched_to = journal.ok().and_then(|journal| journal.searched_to.as_deref());
    let ended: Vec<_> = journal.iter().flat_map(|journal| &journal.jobs).collect();
    let found = results.found.as_deref();
    let has_text = !request.app.redactor.hides();
    let page = Search {
        layout: Layout::new(request, "search", "History").with_look(look),
        fields,
        found: found.map(|found| found.iter().take(MAX_FOUND).collect()),
        more_found: found.map_or(0, |found| found.len().saturating_sub(MAX_FOUND)),
        none_found: none_found(request, look, fields),
        unread: &results.unread,
        has_keys: ended.iter().any(|job| job.key.is_some()),
        ended: ended.into_iter().map(|job| Ended::new(request, job)).collect(),
        older: searched_to.map(|time| (When::read(time), older(fields, time))),
        unread_journal: journal.err().map(String::as_str),
        explain: id.zip(queue).map(|(id, queue)| job_path(queue, "", id)),
        as_key: id
            .filter(|_| has_text && fields.exact("key").is_none())
            .map(|id| format!("search?key={}", encoded(id))),
        has_text,
    };
    Ok(Answer::Page(page.render()?))
}

/// Returns a sentence that says where a search has found no job.
fn none_found(request: &AuthorizedRequest, look: &Look, fields: &Fields) -> String {
    let (has_id, has_key) = (fields.text("id").is_some(), fields.exact("key").is_some());
    let what = match (has_id, has_key) {
        (true, true) => "id and key",
        (false, true) => "key",
        _ => "id",
    };
    let place = if fields.text("queue").is_some() { "this queue" } else { "each queue" };
    let admin = &request.app.admin;
    match (admin.shows_running_jobs(), admin.shows_all_jobs()) {
        (true, _) => format!(
            "No job with this {what} waits or runs, and no dead letter has it, among the first 10,000 of each state in {place}."
        ),
        (false, true) => format!(
            "No job with this {what} waits or runs, and no dead letter has it, among the messages of {place} that can be read in some seconds, 500 a second."
        ),
        (false, false) => format!(
            "No running job has this {what}, and none of the first 32 messages of {place} and of its dead letters ({} requests).",
            3 * searched_queues(look, fields.text("queue")).len()
        ),
    }
}

impl<'a> Ended<'a> {
    fn new(request: &AuthorizedRequest, job: &'a HistoryRecord) -> Self {
        let shown = |field: Field<'_>, text: &Option<String>| {
            let text = text.as_deref().map(|text| shown(request, &job.queue, &job.kind, field, text));
            text.unwrap_or_default()
        };
        Self { job, key: shown(Field::Key, &job.key), error: shown(Field::Error, &job.error) }
    }
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
        Some(_) if fields.text("until").is_none() => part(request, &key, read).await,
        // Without an id, the page shows only the journal, which may take longer than a part may. A search
        // that continues another reads some blobs again before it comes further.
        _ => or_reason(request.app.reads.get(&key, read).await),
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

/// A search for jobs that have not ended, by id, by key or by both.
#[derive(Debug, Clone)]
struct Wanted {
    id: Option<String>,
    key: Option<String>,
}

impl Wanted {
    /// Returns the search in the fields of the page; `None` if they have neither an id nor a key.
    fn of(fields: &Fields) -> Option<Self> {
        // Trimmed, because an id that is pasted into the box often has blanks around it.
        let id = fields.text("id").map(str::to_owned);
        let key = fields.exact("key").map(str::to_owned);
        (id.is_some() || key.is_some()).then_some(Self { id, key })
    }

    fn selects(&self, id: &str, key: Option<&str>) -> bool {
        self.id.as_deref().is_none_or(|wanted| wanted == id)
            && self.key.as_deref().is_none_or(|wanted| key == Some(wanted))
    }

    fn jobs(&self) -> JobFilter {
        JobFilter::new()
            .limit(MAX_FOUND)
            .given(self.id.as_deref(), |filter, id| filter.ids([id]))
            .given(self.key.as_deref(), JobFilter::key)
    }

    fn letters(&self) -> DeadLetterFilter {
        DeadLetterFilter::new()
            .given(self.id.as_deref(), |filter, id| filter.ids([id]))
            .given(self.key.as_deref(), DeadLetterFilter::key)
    }
}

/// Finds the wanted jobs that have not ended, among running jobs and in each queue of the look. Returns
/// `None` if none are wanted.
async fn find(
    request: &AuthorizedRequest,
    look: &Look,
    wanted: Option<&Wanted>,
    only: Option<&str>,
    unread: &mut Vec<String>,
) -> Option<Vec<Found>> {
    let (wanted, mut found) = (wanted?, Vec::new());
    for job in look.present().flat_map(|worker| &worker.record.running) {
        if wanted.selects(&job.id, job.key.as_deref()) && only.is_none_or(|queue| job.queue == queue) {
            found.push(Found::new(&job.queue, &job.source, &job.id, &job.kind, "running"));
        }
    }
    // While the storage does not answer, the look has outdated records.
    if look.known_workers().is_none() || look.error.is_some() {
        unread.push("the records of workers".to_owned());
    }
    let searches = searched_queues(look, only).into_iter().map(|name| {
        let (request, wanted) = (request.clone(), wanted.clone());
        async move { in_queue(&request, name, &wanted, only.is_some()).await }
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

/// Returns the wanted jobs of a queue, and the name of the queue unless it could be read completely and in
/// time.
async fn in_queue(
    request: &AuthorizedRequest,
    queue: String,
    wanted: &Wanted,
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
        let (key, jobs, letters) = (format!("{queue} {wanted:?}"), wanted.jobs(), wanted.letters());
        let open = async {
            let open = admin.open_messages(&queue, &jobs).await?;
            // Hundreds of payloads would be too large to be kept.
            Ok::<_, Error>(open.into_iter().map(RawJob::without_content).collect::<Vec<_>>())
        };
        let open = reads.get_part(&key, open).await;
        let dead = async {
            let mut page = admin.dead_letters(&queue, &letters).await?;
            page.letters = page.letters.into_iter().map(RawJob::without_content).collect();
            Ok::<_, Error>(page)
        };
        (open, reads.get_part(&key, dead).await)
    };
    let Ok((waiting, dead)) = timeout(PART_TIMEOUT, read).await else { return (Vec::new(), Some(queue)) };
    // A queue that was deleted since, or whose name is too long for a dead-letter queue, has no such jobs.
    // But a queue that the address names may be misspelt.
    let has_failed = |e: &Error| !matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Invalid);
    let failed = waiting.as_ref().is_err_and(|e| is_named || has_failed(e));
    let failed = failed || dead.as_ref().is_err_and(has_failed);
    let dead = dead.iter().flat_map(|page| &page.letters);
    let all = waiting.iter().flat_map(|jobs| jobs.iter()).chain(dead);
    let all = all.filter(|job| wanted.selects(&job.id, job.key.as_deref()));
    let found =
        all.map(|job| Found::new(&job.queue, &job.source, &job.id, &job.kind, place(job.state.into())));
    (found.collect(), failed.then(|| queue.clone()))
}

impl Found {
    fn new(queue: &str, source: &str, id: &str, kind: &str, place: &'static str) -> Self {
        let path = job_path(queue, source, id);
        Self { path, id: line(id), queue: line(queue), kind: line(kind), place }
    }
}
