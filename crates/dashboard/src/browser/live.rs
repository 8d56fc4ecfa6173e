//! The stream of server-sent events that makes open pages refresh themselves.

use std::convert::Infallible;
use std::time::Duration;

use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::future::select_all;
use futures_util::{Stream, StreamExt, stream};
use tokio::sync::watch;

use crate::browser::app::{App, AuthorizedRequest};
use crate::browser::fields::Fields;
use crate::browser::looks::Viewer;
use crate::browser::operations::{Operation, OperationProgress};

/// The minimum time between two events of one page.
const MIN_INTERVAL: Duration = Duration::from_millis(250);

/// The time without another event after which an event shows that the connection works. The script of the
/// pages reconnects after four of these intervals without an event.
const ALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Streams an event `refresh` after each look at the storage, and after each step of the page's operation
/// until the operation has ended.
pub(crate) async fn events(request: AuthorizedRequest, fields: Fields) -> Response {
    let operation = fields.text("operation").and_then(|id| request.app.operations.find(id));
    answer(&[&request.app], operation.map(|operation| Operation::watch(&operation)))
}

/// Streams an event after each look at one of these storages, and after each step of an operation. `apps` is
/// not empty.
pub(crate) fn answer(apps: &[&App], steps: Option<watch::Receiver<OperationProgress>>) -> Response {
    let Some(viewers) = apps.iter().map(|app| app.looks.watch()).collect() else {
        return (StatusCode::TOO_MANY_REQUESTS, "too many pages are open\n").into_response();
    };
    let stops = apps.iter().map(|app| Box::pin(app.stop.clone().cancelled_owned()));
    let events = stream_of(Ticks::new(viewers, steps)).take_until(select_all(stops));
    // An event, because the script of a page does not see comments.
    let alive = KeepAlive::new().interval(ALIVE_INTERVAL).event(event("alive"));
    Sse::new(events).keep_alive(alive).into_response()
}

/// The sources of the events of one stream.
struct Ticks {
    viewers: Vec<Viewer>,
    steps: Option<watch::Receiver<OperationProgress>>,
    /// True if the last event was sent after the operation had ended.
    is_over: bool,
}

impl Ticks {
    fn new(viewers: Vec<Viewer>, steps: Option<watch::Receiver<OperationProgress>>) -> Self {
        let is_over = steps.as_ref().is_some_and(has_ended);
        Self { viewers, steps, is_over }
    }
}

fn has_ended(steps: &watch::Receiver<OperationProgress>) -> bool {
    steps.borrow().ended.is_some()
}

fn stream_of(ticks: Ticks) -> impl Stream<Item = Result<Event, Infallible>> {
    // The first event is sent at once, because the page may have been rendered a while before it connects.
    let first = stream::iter([Ok(event("refresh"))]);
    let others = stream::unfold(ticks, |mut ticks| async move {
        if ticks.is_over {
            // Finding the outcomes of the jobs is expensive, so they are read only on request. The browser
            // would reconnect if the stream ended, so it stays open and counts as a viewer.
            return std::future::pending().await;
        }
        tokio::time::sleep(MIN_INTERVAL).await;
        let look = select_all(ticks.viewers.iter().map(|viewer| Box::pin(viewer.look())));
        let continues = match &mut ticks.steps {
            None => {
                look.await;
                true
            }
            Some(steps) => tokio::select! {
                _ = look => true,
                step = steps.changed() => step.is_ok(),
            },
        };
        ticks.is_over = ticks.steps.as_ref().is_some_and(has_ended);
        continues.then(|| (Ok(event("refresh")), ticks))
    });
    first.chain(others)
}

fn event(name: &str) -> Event {
    Event::default().event(name).data("-")
}
