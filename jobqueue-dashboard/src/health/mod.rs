//! The checks of an orchestrator: does the process live, and is it ready?
//!
//! | path | 200 | 503 |
//! |---|---|---|
//! | `/live` | the worker starts, runs or drains, and its leases are renewed in time | it has ended, or renewals are stuck: restart it |
//! | `/ready` | it runs, reaches its storage, and no circuit is open | wait; a restart does not help |
//!
//! An outage of the storage makes a worker not ready, but leaves it alive: to restart all workers would not bring the storage back. The body
//! is JSON: `{"ok": false, "reasons": ["…"]}`. The checks send no requests; they tell what the requests of the worker have met.
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
use jobqueue::worker::WorkerHealth;

pub use check::{Check, Tolerance};

use crate::scale::answer;

/// Returns the router of `/live` and `/ready` for all workers of a process, with the default tolerance.
///
/// `S` is the state of the router that it is merged into. A router is a tower service as well.
pub fn router<S: Clone + Send + Sync + 'static>(
    workers: impl IntoIterator<Item = WorkerHealth>,
) -> Router<S> {
    router_with(workers, Tolerance::new())
}

/// Returns the router of `/live` and `/ready`, with a tolerance of your own.
pub fn router_with<S: Clone + Send + Sync + 'static>(
    workers: impl IntoIterator<Item = WorkerHealth>,
    tolerance: Tolerance,
) -> Router<S> {
    let workers: Arc<[WorkerHealth]> = workers.into_iter().collect();
    Router::new().route("/live", get(live)).route("/ready", get(ready)).with_state((workers, tolerance))
}

type Workers = (Arc<[WorkerHealth]>, Tolerance);

async fn live(State((workers, tolerance)): State<Workers>) -> Response {
    tell(&workers, |worker| tolerance.live(worker))
}

async fn ready(State((workers, tolerance)): State<Workers>) -> Response {
    tell(&workers, |worker| tolerance.ready(worker))
}

fn tell(workers: &[WorkerHealth], check: impl Fn(&jobqueue::worker::HealthReport) -> Check) -> Response {
    let mut all = Check::default();
    for worker in workers {
        all.reasons.extend(check(&worker.report()).reasons);
    }
    let status = if all.is_ok() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    answer(status, &serde_json::json!({ "ok": all.is_ok(), "reasons": all.reasons }))
}
