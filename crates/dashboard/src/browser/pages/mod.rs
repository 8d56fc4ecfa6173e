//! The pages and the forms of the dashboard, and the layout that they share.

pub(crate) mod batches;
pub(crate) mod dead;
pub(crate) mod enqueue;
pub(crate) mod holdup;
pub(crate) mod job;
mod job_operation;
pub(crate) mod jobs;
pub(crate) mod operation;
pub(crate) mod operation_document;
pub(crate) mod overview;
pub(crate) mod queue;
pub(crate) mod refused;
pub(crate) mod rows;
pub(crate) mod schedules;
pub(crate) mod search;
pub(crate) mod storages;
pub(crate) mod throughput;
mod timeline;
pub(crate) mod workers;

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use askama::Template;
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};
use jobqueue::{Error, ErrorKind};
use jobqueue_admin::AzurePrices;
use tokio::time::timeout;

use crate::browser::app::{AuthorizedRequest, Place};
use crate::browser::assets::{ASSETS, Assets};
use crate::browser::looks::Look;
pub(crate) use crate::browser::page_error::PageError;
use crate::browser::text::{Sum, Timed, When, error_text, line};

/// The maximum wait for a part of a page. The page shows the rest without it.
const PART_TIMEOUT: Duration = Duration::from_secs(8);

/// The answer to a request that succeeded.
#[derive(Debug)]
pub(crate) enum Answer {
    Page(String),
    /// A redirect to another page of the dashboard, by its path from the root.
    Go(String),
}

/// Reads a part of a page within [`PART_TIMEOUT`]. If that fails, returns the reason, which the page shows
/// instead.
///
/// # Errors
/// The request itself is invalid.
async fn part<V: Any + Send + Sync>(
    request: &AuthorizedRequest,
    key: &str,
    read: impl Future<Output = Result<V, Error>>,
) -> Result<Result<Arc<V>, String>, PageError> {
    in_part_time(request.app.reads.get_part(key, read)).await
}

/// Returns the result of [`part`] for a part that is read otherwise.
async fn in_part_time<V>(
    read: impl Future<Output = Result<Arc<V>, Error>>,
) -> Result<Result<Arc<V>, String>, PageError> {
    timeout(PART_TIMEOUT, read).await.map_or_else(
        |_| Ok(Err(format!("no answer within {PART_TIMEOUT:?}; each refresh tries again, and the storage may need longer than that"))),
        or_reason,
    )
}

/// Returns the result of a read, or the reason why it failed, for a page that shows the rest.
///
/// # Errors
/// The request itself is invalid.
fn or_reason<V>(read: Result<Arc<V>, Error>) -> Result<Result<Arc<V>, String>, PageError> {
    match read {
        Err(error) if error.kind() == ErrorKind::Invalid => Err(error.into()),
        read => Ok(read.map_err(|error| PageError::from(error).into_parts().1)),
    }
}

/// The header, the navigation and the footer around the content of every page.
#[derive(Debug)]
pub(crate) struct Layout {
    base: String,
    title: String,
    /// The navigation entry to which the page belongs; empty if none leads to pages of its kind.
    here: &'static str,
    /// `None` in the dashboard of one storage.
    place: Option<Place>,
    storage: String,
    operator: String,
    read_only: bool,
    /// True unless texts are hidden: a search by text would reveal them.
    has_text: bool,
    assets: &'static Assets,
    /// The number of dead letters, for the navigation; `None` without a look.
    dead: Option<Sum>,
    at: Option<When>,
    problem: Option<String>,
    /// The reason why the records of workers cannot be read.
    unread_workers: Option<String>,
    /// A sentence about the workers if none writes its record.
    silent_workers: Option<String>,
    notice: Option<&'static str>,
    /// The path of the event stream that refreshes the page; `None` if the page does not refresh itself.
    events: Option<String>,
    cost: Option<String>,
}

impl Layout {
    pub(crate) fn new(request: &AuthorizedRequest, here: &'static str, title: impl Into<String>) -> Self {
        let admin = &request.admin;
        let read_only = !jobqueue_admin::Action::ALL.iter().any(|action| admin.access().allows(*action));
        Self {
            base: request.base.clone(),
            title: title.into(),
            here,
            place: request.place.clone(),
            storage: line(admin.storage().description()),
            operator: line(admin.operator()),
            read_only,
            has_text: !request.app.redactor.hides(),
            assets: &ASSETS,
            dead: None,
            at: None,
            problem: None,
            unread_workers: None,
            silent_workers: None,
            notice: None,
            events: None,
            cost: None,
        }
    }

    /// Shows the time of the figures, and errors from reading them.
    pub(crate) fn with_look(mut self, look: &Look) -> Self {
        self.dead = Some(look.queues().iter().map(|queue| queue.dead_letters).collect());
        self.at = Some(When::of(look.at()));
        self.problem = look.error.as_deref().map(error_text);
        self.unread_workers = look.figures.workers.as_ref().err().map(|error| error_text(error));
        self.silent_workers = look.silence();
        self
    }

    /// Refreshes the page while it is open, and shows the cost of the shared looks.
    pub(crate) fn live(mut self, request: &AuthorizedRequest, look: &Look) -> Self {
        self.events = Some("events".to_owned());
        self.cost = priced(look, request);
        self
    }

    /// Also refreshes the page after each step of an operation.
    pub(crate) fn on(mut self, operation: &str) -> Self {
        self.events = Some(format!("events?operation={operation}"));
        self
    }

    /// Returns the relative path from the page to the root page of all storages, with a slash at its end.
    fn all_storages(&self) -> String {
        format!("{}{}", self.base, if self.storage_name().is_some() { "../" } else { "" })
    }

    /// Returns the name of the page's storage; `None` on a page of all storages, and in the dashboard of one.
    fn storage_name(&self) -> Option<&str> {
        self.place.as_ref().and_then(|place| place.here.as_deref())
    }

    /// Returns whether the page shows all storages, and not a single one.
    fn is_of_all(&self) -> bool {
        self.place.is_some() && self.storage_name().is_none()
    }

    /// Shows the result of the preceding change.
    pub(crate) fn noticed(mut self, code: Option<&str>) -> Self {
        self.notice = code.and_then(notice);
        self
    }
}

/// Returns a sentence about the cost of the looks at a storage.
fn priced(look: &Look, request: &AuthorizedRequest) -> Option<String> {
    cost_text(look.requests(), request.admin.storage().description(), request.app.looks.interval)
}

/// Returns a sentence about the hourly cost of looks, each of which sends `requests` and one listing; `None`
/// if the storage does not bill requests.
fn cost_text(requests: u64, storage: &str, interval: Duration) -> Option<String> {
    let listings = 3600.0 / interval.as_secs_f64();
    let requests = f64::from(u32::try_from(requests).unwrap_or(u32::MAX)) * listings;
    let hourly = AzurePrices::DEFAULT.text(storage, requests, listings, "listings of blobs an hour")?;
    Some(format!(
        "While pages are open, their shared figures cost {hourly}; \
         the page of a queue or a job adds requests, and the page of batches adds a listing for every 5,000 ended children"
    ))
}

/// Returns the text for a code. The code comes from the address, so the page never shows the code itself.
fn notice(code: &str) -> Option<&'static str> {
    Some(match code {
        "created" => "The queue was created.",
        "exists" => "A queue with this name already exists.",
        "paused" => "Paused. Workers notice within 30 seconds; running jobs continue.",
        "resumed" => "Resumed.",
        "unchanged" => "No change was needed.",
        "settings" => "The settings were changed. Workers read them within 30 seconds.",
        "sent" => "The job was sent.",
        "sent-unchecked" => {
            "The job was sent. Its payload was not checked here; the worker checks it when it receives the job."
        }
        "resumed-unserved" => "Resumed. No worker with a record serves the queue.",
        "cancel" => {
            "The cancellation was requested. The token of a running handler fires when its worker next writes its record, within 15 seconds by default; \
             if the handler succeeds all the same, the job is completed. A waiting job is cancelled when it is next received."
        }
        "cancel-unserved" => {
            "The cancellation was requested. No worker with a record serves the queue: the next one to start handles it, and one without a record \
             runs the job to its end."
        }
        "due" => "The job is due now: a worker with a free slot takes it.",
        "not-delayed" => "Nothing was changed: the job was not waiting for a time.",
        "triggered" => "Requested. The leading worker sends the job within 30 seconds.",
        "triggered-without-leader" => {
            "Requested. No worker leads the schedule now: the job is sent when one does."
        }
        "stopping" => {
            "It stops after what it is processing: at most 16 dead letters or cancellations, or one job."
        }
        _ => return None,
    })
}

#[derive(Template)]
#[template(path = "error.html")]
struct ErrorPage {
    layout: Layout,
    text: Timed,
}

pub(crate) fn error_page(request: &AuthorizedRequest, error: PageError) -> Response {
    let (status, text) = error.into_parts();
    let mut layout = Layout::new(request, "", status.canonical_reason().unwrap_or("Error"));
    // The page loads by itself once the storage answers.
    layout.events = (status == StatusCode::SERVICE_UNAVAILABLE).then(|| "events".to_owned());
    let page = ErrorPage { layout, text: Timed::of(&error_text(&text)) };
    match page.render() {
        Ok(html) => (status, Html(html)).into_response(),
        Err(_) => status.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_to_service_bus_have_no_price() {
        let text = |storage| cost_text(10, storage, Duration::from_secs(10));
        // A listing costs as much as a write, and so more than ten times as much as a request to a queue.
        let expected = "3600 requests and 360 listings of blobs an hour, or $0.003 on Azure;";
        assert!(text("azure:account").unwrap().contains(expected));
        let of_service_bus = text("servicebus:namespace").unwrap();
        assert!(of_service_bus.contains("360 listings of blobs an hour; "), "{of_service_bus}");
        assert_eq!(text("sqlite:jobs.db"), None);
    }
}
