//! Jobs found by their id, and the journal of jobs that have ended.

use std::time::SystemTime;

use askama::Template;
use futures_util::{StreamExt, stream};
use jobqueue_admin::{DeadLetterFilter, HistoryFilter, HistoryRecord};

use super::rows::{job_path, shown};
use super::{Answer, Layout, PageError};
use crate::browser::app::AuthorizedRequest;
use crate::browser::fields::Fields;
use crate::browser::poller::Look;
use crate::browser::redact::Field;
use crate::browser::text::{When, encoded, line};

/// The most lines of the journal on the page.
const SHOWN: usize = 200;

/// The number of queues that are searched at once.
const AT_ONCE: usize = 8;

#[derive(Template)]
#[template(path = "search.html")]
struct Search {
    layout: Layout,
    id: String,
    queue: String,
    key: String,
    kind: String,
    outcome: String,
    error: String,
    younger: String,
    found: Option<Vec<Found>>,
    ended: Vec<Ended>,
    /// The time back to which the jobs are shown, and the page with older ones, if there may be any.
    older: Option<(When, String)>,
    requests: u64,
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

/// A job that has ended.
struct Ended {
    path: String,
    id: String,
    queue: String,
    kind: String,
    outcome: String,
    is_bad: bool,
    attempt: u32,
    ended: When,
    ran: String,
    error: String,
}

pub(crate) async fn show(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let look = request.app.poller.latest().await?;
    let (id, queue) = (fields.exact("id").map(str::trim), fields.text("queue"));
    let found = match id {
        Some(id) => Some(find(&request, &look, id, queue).await?),
        None => None,
    };
    let journal = request.app.admin.history(&filter(&request, &fields, id)?).await?;
    let text = |name| fields.text(name).unwrap_or_default().to_owned();
    let page = Search {
        layout: Layout::new(&request, "search", "History").with_look(&look),
        id: id.unwrap_or_default().to_owned(),
        queue: text("queue"),
        key: fields.exact("key").unwrap_or_default().to_owned(),
        kind: text("kind"),
        outcome: text("outcome"),
        error: fields.exact("error").unwrap_or_default().to_owned(),
        younger: text("younger"),
        explain: id.zip(queue).map(|(id, queue)| job_path(queue, "", id)),
        found,
        ended: journal.jobs.iter().map(|record| ended(&request, record)).collect(),
        older: journal.searched_to.as_deref().map(|time| (When::read(time), older(&fields, time))),
        requests: 3 * look.queues().len() as u64,
    };
    Ok(Answer::Page(page.render()?))
}

fn older(fields: &Fields, time: &str) -> String {
    let kept = ["id", "queue", "key", "kind", "outcome", "error", "younger"];
    until(kept.into_iter().filter_map(|name| Some((name, fields.exact(name)?))), time)
}

/// Returns the path of the page that searches with these fields what ended until this time.
pub(crate) fn until<'a>(fields: impl Iterator<Item = (&'a str, &'a str)>, time: &'a str) -> String {
    let values = fields.chain([("until", time)]).map(|(name, value)| format!("{name}={}", encoded(value)));
    format!("search?{}", values.collect::<Vec<_>>().join("&"))
}

fn filter(
    request: &AuthorizedRequest,
    fields: &Fields,
    id: Option<&str>,
) -> Result<HistoryFilter, PageError> {
    if request.app.redactor.hides() && (fields.exact("key").is_some() || fields.exact("error").is_some()) {
        return Err(PageError::forbidden(
            "texts are hidden here, so jobs cannot be searched by key or error",
        ));
    }
    let mut filter = HistoryFilter::new().limit(SHOWN);
    if let Some(id) = id {
        filter = filter.id(id);
    }
    if let Some(queue) = fields.text("queue") {
        filter = filter.queue(queue);
    }
    if let Some(key) = fields.exact("key") {
        filter = filter.key(key);
    }
    if let Some(kind) = fields.text("kind") {
        filter = filter.kind(kind);
    }
    if let Some(outcome) = fields.text("outcome") {
        filter = filter.outcome(outcome);
    }
    if let Some(text) = fields.exact("error") {
        filter = filter.error(text);
    }
    if let Some(since) = fields.duration("younger")?.and_then(|age| SystemTime::now().checked_sub(age)) {
        filter = filter.since(since);
    }
    if let Some(until) = fields.time("until")? {
        filter = filter.until(until);
    }
    Ok(filter)
}

/// Looks for a job that has not ended: among running jobs, and among the messages of each queue that a look shows.
async fn find(
    request: &AuthorizedRequest,
    look: &Look,
    id: &str,
    only: Option<&str>,
) -> Result<Vec<Found>, PageError> {
    let mut found = Vec::new();
    for job in look.present().flat_map(|worker| &worker.record.running) {
        if job.id == id && only.is_none_or(|queue| job.queue == queue) {
            found.push(Found::new(&job.queue, &job.source, &job.id, &job.kind, "running"));
        }
    }
    let names = look.queues().iter().map(|queue| queue.name.clone());
    let names: Vec<String> = names.filter(|name| only.is_none_or(|only| only == name)).collect();
    let looks = names.into_iter().map(|name| {
        let (request, id) = (request.clone(), id.to_owned());
        async move { in_queue(&request, &name, &id).await }
    });
    let looks: Vec<_> = stream::iter(looks).buffered(AT_ONCE).collect().await;
    for look in looks {
        found.extend(look?);
    }
    Ok(found)
}

async fn in_queue(request: &AuthorizedRequest, queue: &str, id: &str) -> Result<Vec<Found>, PageError> {
    let (reads, admin) = (&request.app.reads, &request.app.admin);
    let waiting = reads.peeks.get(queue, admin.peek(queue)).await?;
    let dead =
        reads.dead.get(queue, async { admin.dead_letters(queue, &DeadLetterFilter::new()).await }).await?;
    let waiting = waiting.iter().map(|job| (job, "waiting"));
    let all = waiting.chain(dead.letters.iter().map(|job| (job, "dead"))).filter(|(job, _)| job.id == id);
    Ok(all.map(|(job, place)| Found::new(&job.queue, &job.source, &job.id, &job.kind, place)).collect())
}

impl Found {
    fn new(queue: &str, source: &str, id: &str, kind: &str, place: &'static str) -> Self {
        let path = job_path(queue, source, id);
        Self { path, id: line(id), queue: line(queue), kind: line(kind), place }
    }
}

fn ended(request: &AuthorizedRequest, record: &HistoryRecord) -> Ended {
    let outcome = match &record.reason {
        Some(reason) => format!("{}: {reason}", record.outcome),
        None => record.outcome.clone(),
    };
    let error = record.error.as_deref();
    Ended {
        path: job_path(&record.queue, &record.source, &record.id),
        id: line(&record.id),
        queue: line(&record.queue),
        kind: line(&record.kind),
        outcome: line(&outcome),
        is_bad: record.outcome == "dead_lettered",
        attempt: record.attempt,
        ended: When::read(&record.ended),
        ran: format!("{:.3} s", record.run_seconds),
        error: error
            .map(|error| shown(request, &record.queue, &record.kind, Field::Error, error))
            .unwrap_or_default(),
    }
}
