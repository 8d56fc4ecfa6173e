//! The stream of server-sent events on which open pages refresh themselves.

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

/// The least time between two events of one page.
const MIN_INTERVAL: Duration = Duration::from_millis(250);

/// Answers with an event `refresh` after each look at the storage, and after each step of the operation of the page until that has ended.
pub(crate) async fn events(request: AuthorizedRequest, fields: Fields) -> Response {
    let operation = fields.text("operation").and_then(|id| request.app.operations.find(id));
    answer(&[&request.app], operation.map(|operation| Operation::watch(&operation)))
}

/// Answers with an event after each look at one of these storages, of which there is at least one, and after each step.
pub(crate) fn answer(apps: &[&App], steps: Option<watch::Receiver<OperationProgress>>) -> Response {
    let Some(viewers) = apps.iter().map(|app| app.looks.watch()).collect() else {
        return (StatusCode::TOO_MANY_REQUESTS, "too many pages are open\n").into_response();
    };
    let stops = apps.iter().map(|app| Box::pin(app.stop.clone().cancelled_owned()));
    let events = stream_of(Ticks::new(viewers, steps)).take_until(select_all(stops));
    let alive = KeepAlive::new().interval(Duration::from_secs(15));
    Sse::new(events).keep_alive(alive).into_response()
}

struct Ticks {
    viewers: Vec<Viewer>,
    steps: Option<watch::Receiver<OperationProgress>>,
    /// True if the last event came after the operation had ended.
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
    // The page may have been rendered a while before it listens: the first event comes at once.
    let first = stream::iter([Ok(event())]);
    let others = stream::unfold(ticks, |mut ticks| async move {
        if ticks.is_over {
            // The outcome of the jobs is expensive to find, so it is read on request only. The browser would open a stream again that ended; this
            // one stays open, and counts as a viewer.
            return std::future::pending().await;
        }
        tokio::time::sleep(MIN_INTERVAL).await;
        let look = select_all(ticks.viewers.iter().map(|viewer| Box::pin(viewer.look())));
        let goes_on = match &mut ticks.steps {
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
        goes_on.then(|| (Ok(event()), ticks))
    });
    first.chain(others)
}

fn event() -> Event {
    Event::default().event("refresh").data("-")
}
