//! Liveness and readiness checks for an orchestrator.
//!
//! The module judges the health reports of workers, and sends no requests to their storages.
//!
//! | path | 200 | 503 |
//! |---|---|---|
//! | `/live` | the worker starts, runs or drains, and its leases are renewed in time | it has ended, or its renewals are stuck: restart it |
//! | `/ready` | it runs, reaches its storage, and no circuit is open | wait; a restart does not help |
//!
//! An outage of the storage makes a worker not ready, but leaves it alive: restarting every worker would not
//! fix the storage. The body is JSON: `{"ok": false, "reasons": ["…"]}`. The checks report the results of the
//! worker's own requests.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use jobqueue::{JobError, QueueMessage, Storage, Worker}; use serde::{Deserialize, Serialize};
//! # #[derive(Serialize, Deserialize, QueueMessage)]
//! # #[message(queue = "mails", kind = "mail")] struct Mail { to: String }
//! use jobqueue_dashboard::health;
//!
//! let worker = Worker::builder(Storage::memory()).handle(|_: Mail| async { Ok::<_, JobError>(()) }).build()?;
//! let app = axum::Router::<()>::new().merge(health::router([worker.health()]));
//! # drop(app);
//! // Serve `app`, and run the worker.
//! # Ok(()) }
//! ```

mod check;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use jobqueue::worker::{HealthReport, WorkerHealth};

pub use check::Check;

use crate::scale::answer;

/// Returns the router of `/live` and `/ready` for all workers of a process. A check succeeds only if it
/// succeeds for every worker; a failed check has the reasons of all of them. Without a worker, as in a
/// process that only serves the dashboard, both checks succeed while the process answers. A dashboard that
/// was not ready during an outage of the storage could not report the outage, neither on its pages nor in
/// `/metrics`.
///
/// `S` is the state of the router into which this router is merged. A router is a tower service as well.
pub fn router<S: Clone + Send + Sync + 'static>(
    workers: impl IntoIterator<Item = WorkerHealth>,
) -> Router<S> {
    let workers: Arc<[WorkerHealth]> = workers.into_iter().collect();
    let live = async |State(workers): State<Arc<[WorkerHealth]>>| respond(&workers, Check::live);
    let ready = async |State(workers): State<Arc<[WorkerHealth]>>| respond(&workers, Check::ready);
    Router::new().route("/live", get(live)).route("/ready", get(ready)).with_state(workers)
}

fn respond(workers: &[WorkerHealth], check: fn(&HealthReport) -> Check) -> Response {
    let mut all = Check::default();
    for worker in workers {
        all.reasons.extend(check(&worker.report()).reasons);
    }
    response(&all)
}

fn response(check: &Check) -> Response {
    let status = if check.is_ok() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    answer(status, &serde_json::json!({ "ok": check.is_ok(), "reasons": check.reasons }))
}
