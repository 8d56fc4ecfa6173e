//! The stream of server-sent events on which open pages refresh themselves.

use std::convert::Infallible;
use std::time::Duration;

use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, stream};
use tokio::sync::watch;

use crate::browser::app::AuthorizedRequest;
use crate::browser::fields::Fields;
use crate::browser::operations::{Operation, Progress};
use crate::browser::poller::Viewer;

/// The least time between two events of one page.
const LEAST: Duration = Duration::from_millis(250);

/// Answers with an event `refresh` after each look at the storage, and after each step of the operation of the page.
pub(crate) async fn events(request: AuthorizedRequest, fields: Fields) -> Response {
    let operation = fields.text("operation").and_then(|id| request.app.operations.find(id));
    let Some(viewer) = request.app.poller.watch() else {
        return (StatusCode::TOO_MANY_REQUESTS, "too many pages are open\n").into_response();
    };
    let ticks = Ticks { viewer, steps: operation.map(|operation| Operation::watch(&operation)) };
    let stop = request.app.stop.clone();
    let events = stream_of(ticks).take_until(stop.cancelled_owned());
    let alive = KeepAlive::new().interval(Duration::from_secs(15));
    Sse::new(events).keep_alive(alive).into_response()
}

struct Ticks {
    viewer: Viewer,
    steps: Option<watch::Receiver<Progress>>,
}

fn stream_of(ticks: Ticks) -> impl Stream<Item = Result<Event, Infallible>> {
    // The page may have been rendered a while before it listens: the first event comes at once.
    let first = stream::iter([Ok(event())]);
    let others = stream::unfold(ticks, |mut ticks| async move {
        tokio::time::sleep(LEAST).await;
        let goes_on = match &mut ticks.steps {
            None => ticks.viewer.next().await,
            Some(steps) => tokio::select! {
                more = ticks.viewer.next() => more,
                step = steps.changed() => {
                    if step.is_err() {
                        ticks.steps = None;
                    }
                    true
                }
            },
        };
        goes_on.then(|| (Ok(event()), ticks))
    });
    first.chain(others)
}

fn event() -> Event {
    Event::default().event("refresh").data("-")
}
