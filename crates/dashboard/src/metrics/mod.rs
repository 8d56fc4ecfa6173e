//! Metrics for Prometheus, in the text format of OpenMetrics.
//!
//! [`router`] serves `GET /metrics`. The figures come from the [admin core](jobqueue_admin) and cover a whole
//! storage: configure Prometheus to scrape **one** exporter per storage, not every worker.
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
//! [`router`] asks for no credentials. The router of the dashboard includes `/metrics`, with the access of the
//! pages. To share one refresh with [`scale`](crate::scale), pass the same [`Snapshots`] to both routers
//! instead of an `Admin`.
//!
//! # Guarantees
//! - The figures of a scrape are at most 10 seconds old; `jobqueue_scrape_age_seconds` is their age.
//!   Concurrent scrapes share one refresh.
//! - If the storage cannot be read within 9 seconds, the answer has only the metrics about scrapes, with
//!   `jobqueue_scrape_success 0`. A missing series does not mean 0. If only the records of workers cannot be
//!   read, `jobqueue_workers_readable` is 0, and the figures of workers are missing.
//! - Counters begin at 0 with the process and never fall. The series of a kind that a worker handles begins
//!   with the first record of that worker, which may already count jobs. Counters lack the deliveries between
//!   the last record of a worker and its end.
//! - Labels are bounded: queues, and the kinds for which a worker has a handler. Other kinds count as
//!   `other`. Kinds that a relay forwards are counted under their own names, up to 200 kinds in all; the
//!   series of such a kind begins with its first job.
//!
//! # Cost
//! A scrape sends 2 requests, 3 for each queue and 1 for each worker. On Azure, with 10 queues, 4 workers and
//! a scrape each minute, this is 52,000 requests a day. They cost about 2 cents at 0.004 USD for 10,000, and
//! another cent for listing the workers, which is billed as a write.
//!
//! # Files
//! The folder of this crate contains a Grafana dashboard (`grafana/jobqueue.json`) and Prometheus alert rules
//! (`prometheus/alerts.yml`) for these metrics. Tests compare their metric names with [`ALL`].

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

/// The maximum age of the figures in the answer to a scrape.
const MAX_SCRAPE_AGE: Duration = Duration::from_secs(10);
/// The time after which the storage counts as unreadable. Prometheus waits for 10 seconds by default, and
/// discards a later answer.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(9);
/// The media type of the answer.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Returns the router of `/metrics` for an `Admin`, or for snapshots that other routers share, such as
/// [`scale::router`](crate::scale::router), so that one refresh serves both. The [refresh
/// interval](Snapshots::every) does not matter here: a scrape refreshes figures that are older than 10
/// seconds.
///
/// `S` is the state of the router into which this router is merged.
pub fn router<S: Clone + Send + Sync + 'static>(snapshots: impl Into<Snapshots>) -> Router<S> {
    Router::new().route("/metrics", get(metrics)).with_state(snapshots.into())
}

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
