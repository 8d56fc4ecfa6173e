//! Metrics for Prometheus, in the text format of OpenMetrics.
//!
//! [`router`] serves `GET /metrics`. The figures come from the [admin core](jobqueue_admin) and cover a whole storage:
//! let Prometheus scrape **one** exporter per storage, not every worker.
//!
//! ```
//! # use jobqueue::Storage; use jobqueue_admin::Admin;
//! use jobqueue_dashboard::metrics;
//!
//! let admin = Admin::new(Storage::memory());
//! let app = axum::Router::<()>::new().merge(metrics::router(admin));
//! # drop(app);
//! ```
//!
//! The router of the dashboard has it already, with the access of the pages. To share one refresh with [`scale`](crate::scale), give
//! [`router`] the same [`Snapshots`] instead of an `Admin`.
//!
//! # Guarantees
//! - The figures of a scrape are at most 10 seconds old; `jobqueue_scrape_age_seconds` is their age. Concurrent scrapes
//!   share one refresh.
//! - If the storage cannot be read, or not within 9 seconds, the answer has the metrics of the scrape alone, with `jobqueue_scrape_success 0`. A series that is
//!   missing is not 0. If the records of workers alone cannot be read, `jobqueue_workers_readable` is 0, and the figures of workers are missing.
//! - Counters begin at 0 with the process and never fall. A kind that a worker handles has its series from the first record of that worker, which may already count jobs.
//!   They lack the deliveries between the last record of a worker and its end.
//! - Labels are bounded: queues, and the kinds that a worker has a handler for. Other kinds count as `other`. The kinds that a relay forwards
//!   have their names, 200 of them in all; each has its series from its first job.
//!
//! # Cost
//! A scrape sends 2 requests, 3 for each queue and 1 for each worker. On Azure, with 10 queues, 4 workers and a scrape each minute, that is
//! 52,000 requests a day, about 2 cents at 0.004 USD for 10,000, and another cent for listing the workers, which is billed as a write.
//!
//! # Files
//! `grafana/jobqueue.json` and `prometheus/alerts.yml` in the folder of this crate are a dashboard for Grafana and alert rules for these
//! metrics. Tests compare the names in them with [`ALL`].

mod exposition;
mod list;

use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

pub use list::{ALL, Kind, Metric};

use crate::snapshot::Snapshots;

/// The greatest age of the figures that a scrape gets.
const MAX_SCRAPE_AGE: Duration = Duration::from_secs(10);
/// The time after which the storage counts as unreadable: Prometheus waits for 10 seconds by default, and stores nothing of a later answer.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(9);
/// The media type of the answer.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Returns the router of `/metrics` for an `Admin`, or for snapshots that others use too, such as [`scale::router`](crate::scale::router): one
/// refresh then serves both. The [refresh interval](Snapshots::every) does not matter here: a scrape refreshes figures that are older than 10
/// seconds.
///
/// `S` is the state of the router that it is merged into.
pub fn router<S: Clone + Send + Sync + 'static>(snapshots: impl Into<Snapshots>) -> Router<S> {
    Router::new().route("/metrics", get(metrics)).with_state(snapshots.into())
}

/// Answers a scrape.
pub(crate) async fn metrics(State(snapshots): State<Snapshots>) -> Response {
    let snapshot = tokio::time::timeout(SCRAPE_TIMEOUT, snapshots.within(MAX_SCRAPE_AGE))
        .await
        .ok()
        .and_then(Result::ok);
    match exposition::text(snapshot, &snapshots.stats()) {
        Ok(text) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
