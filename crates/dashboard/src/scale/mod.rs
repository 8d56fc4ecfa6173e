//! Figures for autoscalers: how much work a queue has, and how many workers it needs.
//!
//! ```text
//! GET /scale                                      all queues
//! GET /scale?queue=thumbnails                     one queue
//! GET /scale?queue=thumbnails&target_delay=30     the workers needed to start all waiting jobs within 30 s
//! GET /scale?queue=thumbnails&slots=16            for workers with 16 slots, instead of the actual number
//! ```
//!
//! ```json
//! {"queues": {"thumbnails": {"length": 120, "in_flight": 16, "waiting": 104, "hidden": 0, "oldest_seconds": 42.1, "dead": 3,
//!   "rate": 12.5, "run_seconds": 1.2, "workers": 1, "draining": 0, "slots": 32, "slots_per_worker": 32.0, "paused": false,
//!   "load": 3.75, "desired": 4, "desired_by_slots": 4, "desired_by_delay": null}},
//!  "errors": {}, "as_of": "2026-11-22T08:00:00.000Z", "age_seconds": 3.2}
//! ```
//!
//! The answer comes from a [snapshot](crate::snapshot), for which it waits a second at most. Figures that are
//! unknown or too old are refused by 503 with `{"error": "…"}`, and never reported as 0. A queue that does
//! not exist is answered with 404.
//!
//! `desired` is `desired_by_delay` if a target delay is given, and `desired_by_slots` otherwise; `load` is
//! the same number before rounding. [`Target`] has the formulas, and says which number to use.
//!
//! ```
//! # use jobqueue::Storage; use jobqueue_admin::Admin;
//! use jobqueue_dashboard::scale::{self, Target};
//!
//! let admin = Admin::new(Storage::memory());
//! let app = axum::Router::<()>::new().merge(scale::router(admin, Target::new()));
//! # drop(app);
//! ```
//!
//! The router of the dashboard includes `/scale`, with the access of the pages.

mod document;
mod target;

use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Deserialize;

pub use document::{ScaleDocument, ScaleFigures};
pub use target::{DEFAULT_SLOTS, Desired, Target};

use crate::snapshot::Snapshots;

/// Returns the router of `/scale` for an `Admin`, or for snapshots that other routers share.
///
/// `S` is the state of the router into which this router is merged.
pub fn router<S: Clone + Send + Sync + 'static>(
    snapshots: impl Into<Snapshots>,
    target: Target,
) -> Router<S> {
    Router::new().route("/scale", get(scale)).with_state((snapshots.into(), target))
}

/// The query of a request.
#[derive(Debug, Deserialize)]
pub(crate) struct ScaleQuery {
    queue: Option<String>,
    target_delay: Option<f64>,
    slots: Option<f64>,
}

impl ScaleQuery {
    /// Returns the target with the query's parameters; `None` if a number is out of range.
    fn target(&self, target: Target) -> Option<Target> {
        let delay = self
            .target_delay
            .map(|seconds| Duration::try_from_secs_f64(seconds).ok().filter(|delay| !delay.is_zero()));
        let target = match delay {
            None => target,
            Some(delay) => target.delay(delay?),
        };
        match self.slots {
            None => Some(target),
            Some(slots) if slots.is_finite() && slots >= 1.0 => Some(target.slots_per_worker(slots)),
            Some(_) => None,
        }
    }
}

pub(crate) async fn scale(
    State((snapshots, target)): State<(Snapshots, Target)>,
    Query(query): Query<ScaleQuery>,
) -> Response {
    let Some(target) = query.target(target) else {
        let text = "`target_delay` is a number of seconds above 0, `slots` a number from 1";
        return refuse(StatusCode::BAD_REQUEST, text);
    };
    let snapshot = match snapshots.latest_with_workers().await {
        Ok(snapshot) => snapshot,
        Err(unavailable) => return refuse(StatusCode::SERVICE_UNAVAILABLE, &unavailable.reason),
    };
    let document = ScaleDocument::of(&snapshot, &target, query.queue.as_deref());
    match (&query.queue, document.errors.values().next()) {
        (Some(queue), None) if document.queues.is_empty() => {
            refuse(StatusCode::NOT_FOUND, &format!("there is no queue `{queue}`"))
        }
        (_, Some(error)) if document.queues.is_empty() => refuse(StatusCode::SERVICE_UNAVAILABLE, error),
        _ => answer(StatusCode::OK, &document),
    }
}

fn refuse(status: StatusCode, error: &str) -> Response {
    answer(status, &serde_json::json!({ "error": error }))
}

pub(crate) fn answer(status: StatusCode, body: &impl serde::Serialize) -> Response {
    (status, [(header::CACHE_CONTROL, "no-store")], Json(body)).into_response()
}
