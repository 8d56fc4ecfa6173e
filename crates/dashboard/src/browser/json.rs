//! The content of the pages as JSON, in the same form as the documents that the command line prints.

use axum::Json;
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use jobqueue_admin::JobFilter;
use serde::Serialize;
use serde_json::json;

use super::app::AuthorizedRequest;
use super::fields::{Fields, Given};
use super::job_selection::JobSelection;
use super::log;
use super::pages::dead::letters;
use super::pages::job::reference;
use super::pages::jobs::listed_state;
use super::pages::{PageError, queue, search, throughput};
use super::selection::Selection;

/// The maximum number of jobs in a document.
const MAX_JOBS: usize = 1_000;

/// A document, or the reason why there is none.
pub(crate) type Document = Result<String, PageError>;

pub(crate) fn document<T: Serialize>(value: &T) -> Document {
    let json = serde_json::to_string(value);
    json.map_err(|error| {
        PageError::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("the document cannot be written as JSON: {error}"),
        )
    })
}

/// Refuses a document with texts of jobs if the embedding program may hide some: its hook applies to pages,
/// but not to documents.
pub(crate) fn require_texts(request: &AuthorizedRequest) -> Result<(), PageError> {
    if request.app.redactor.hides() {
        return Err(PageError::forbidden("texts are hidden here, so jobs have no JSON"));
    }
    Ok(())
}

/// The queues, with the time of the snapshot, and the reason if it is outdated.
pub(crate) async fn queues(request: AuthorizedRequest, _: Fields) -> Document {
    let look = request.app.looks.latest().await?;
    let as_of = jiff::Timestamp::try_from(look.at()).ok().map(|at| at.to_string());
    document(&json!({ "as_of": as_of, "problem": look.error, "queues": look.queues() }))
}

/// The pace of a queue, and what holds up its jobs.
pub(crate) async fn explain(request: AuthorizedRequest, fields: Fields) -> Document {
    document(&queue::explain(&request, fields.required("queue")?).await?)
}

/// The workers with their running jobs.
pub(crate) async fn workers(request: AuthorizedRequest, _: Fields) -> Document {
    require_texts(&request)?;
    let look = request.app.looks.latest().await?;
    let as_of = jiff::Timestamp::try_from(look.at()).ok().map(|at| at.to_string());
    let problem = look.error.as_ref().or(look.figures.workers.as_ref().err());
    document(&json!({ "as_of": as_of, "problem": problem, "workers": look.known_workers() }))
}

/// The next jobs of a queue, as its page shows them.
pub(crate) async fn peek(request: AuthorizedRequest, fields: Fields) -> Document {
    require_texts(&request)?;
    let queue = fields.required("queue")?;
    log::payloads_read(&request, "/api/peek", queue);
    document(&*request.app.reads.get(queue, request.app.admin.peek(queue)).await?)
}

/// The jobs of a queue in one state, by default `waiting`, that match the filter. `next` of a document is
/// `from` of the document that continues it.
pub(crate) async fn jobs(request: AuthorizedRequest, fields: Fields) -> Document {
    require_texts(&request)?;
    let (queue, state) = (fields.required("queue")?, listed_state(&fields)?);
    let limit = fields.number::<usize>("limit")?;
    if limit.is_some_and(|limit| !(1..=MAX_JOBS).contains(&limit)) {
        return Err(PageError::invalid(format!("`limit` must be from 1 to {MAX_JOBS}")));
    }
    let filter = JobSelection::read(&fields, &request.app.redactor)?
        .filter()
        .from(fields.exact("from").map(str::to_owned))
        .given(limit, JobFilter::limit)
        .given(fields.exact("id"), |filter, id| filter.ids([id]))
        .given(fields.exact("source"), JobFilter::source);
    log::payloads_read(&request, "/api/jobs", queue);
    // Not cached, because each mark is read once, and a thousand jobs may be large.
    document(&request.app.reads.get_once(request.app.admin.jobs(queue, state, &filter)).await?)
}

/// The FIFO groups of a queue.
pub(crate) async fn groups(request: AuthorizedRequest, fields: Fields) -> Document {
    require_texts(&request)?;
    let queue = fields.required("queue")?;
    document(&*request.app.reads.get(queue, request.app.admin.groups(queue)).await?)
}

/// A page of the dead letters of a queue that match the filter, and their groups of errors.
pub(crate) async fn dead(request: AuthorizedRequest, fields: Fields) -> Document {
    require_texts(&request)?;
    let (queue, selection) = (fields.required("queue")?, Selection::read(&fields, &request.app.redactor)?);
    log::payloads_read(&request, "/api/dead", queue);
    document(&*letters(&request, queue, &selection, fields.text("from")).await?)
}

/// The state of a job, and why it does not run.
pub(crate) async fn job(request: AuthorizedRequest, fields: Fields) -> Document {
    require_texts(&request)?;
    let job = reference(&fields)?;
    let key = format!("{job:?}");
    let found = request.app.reads.get(&key, request.app.admin.explain(&job)).await?;
    if let Some(message) = &found.message {
        log::payload_read(&request, &message.reference());
    }
    document(&*found)
}

/// The jobs that have ended, if workers keep a journal.
pub(crate) async fn history(request: AuthorizedRequest, fields: Fields) -> Document {
    require_texts(&request)?;
    let filter = search::filter(&fields)?;
    let key = format!("{filter:?}");
    document(&*request.app.reads.get(&key, request.app.admin.history(&filter)).await?)
}

/// The jobs of the last 24 hours, counted from the journal by queue and hour.
pub(crate) async fn throughput(request: AuthorizedRequest, _: Fields) -> Document {
    document(&*throughput::counts(&request).await?)
}

/// The schedules.
pub(crate) async fn schedules(request: AuthorizedRequest, _: Fields) -> Document {
    document(&*request.app.reads.get("", request.app.admin.schedules()).await?)
}

/// The batches.
pub(crate) async fn batches(request: AuthorizedRequest, _: Fields) -> Document {
    document(&*request.app.reads.get("", request.app.admin.batches()).await?)
}

/// A batch, with the children that block it and their errors.
pub(crate) async fn batch(request: AuthorizedRequest, fields: Fields) -> Document {
    require_texts(&request)?;
    let id = fields.required("id")?;
    document(&*request.app.reads.get(id, request.app.admin.batch(id)).await?)
}

/// The leaderships and their holders.
pub(crate) async fn leaders(request: AuthorizedRequest, _: Fields) -> Document {
    document(&*request.app.reads.get("", request.app.admin.leaders()).await?)
}

/// Returns whether an address is below the path of documents, even if the document does not exist.
pub(crate) fn is_document(address: &Uri) -> bool {
    address.path().starts_with("/api/")
}

pub(crate) fn respond(document: Document) -> Response {
    match document {
        Ok(json) => ([(header::CONTENT_TYPE, "application/json")], json).into_response(),
        Err(error) => {
            let (status, text) = error.into_parts();
            (status, Json(json!({ "error": text }))).into_response()
        }
    }
}
