//! `/live` and `/ready`: what an orchestrator sees of a worker.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use jobqueue::JobError;
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::worker::{CircuitBreaker, HealthReport};
use jobqueue_admin::{AccessLevel, Admin};
use jobqueue_dashboard::health::{self, Check};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, worker};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::support::{get_json, send};

const OK: StatusCode = StatusCode::OK;
const UNAVAILABLE: StatusCode = StatusCode::SERVICE_UNAVAILABLE;

/// Returns the answers of `/live` and `/ready`, and the first reason why the worker is not ready.
async fn checks(router: &Router) -> (StatusCode, StatusCode, String) {
    let (ready, body) = get_json(router, "/ready").await;
    assert_eq!(body["ok"], ready == OK);
    (get_json(router, "/live").await.0, ready, body["reasons"][0].as_str().unwrap_or_default().to_owned())
}

#[tokio::test(start_paused = true)]
async fn outage_makes_a_worker_unready_and_not_dead() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let worker = worker(&storage).handle(async |_: Task| Ok::<_, JobError>(())).build().unwrap();
    let router = health::router([worker.health()]);
    assert_eq!(checks(&router).await, (OK, UNAVAILABLE, "the worker starts".to_owned()));
    let stop = CancellationToken::new();
    let running = worker.run_until(stop.cancelled());
    let checking = async {
        after(5).await;
        assert_eq!(checks(&router).await, (OK, OK, String::new()));
        faulty.plan_always(Operation::Get, Fault::LoseRequest(StoreErrorKind::Unavailable));
        after(20).await;
        assert_eq!(checks(&router).await.1, OK, "a short outage is no reason");
        after(60).await;
        let (live, ready, reason) = checks(&router).await;
        assert_eq!(live, OK);
        assert_eq!(ready, UNAVAILABLE);
        let rest = reason.strip_prefix("the queue `tasks` has been unreachable for ");
        let is_time =
            rest.and_then(|rest| rest.strip_suffix(" s")).is_some_and(|time| time.parse::<u64>().is_ok());
        assert!(is_time, "the error is for the log alone: {reason}");
        faulty.heal();
        after(70).await;
        assert_eq!(checks(&router).await.1, OK);
        stop.cancel();
    };
    let (report, ()) = tokio::join!(running, checking);
    let _ = report.unwrap();
    assert_eq!(checks(&router).await, (UNAVAILABLE, UNAVAILABLE, "the worker has ended".to_owned()));
}

// K44
#[tokio::test(start_paused = true)]
async fn queue_that_is_paused_after_a_failure_is_not_unreachable() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let worker = worker(&storage).handle(async |_: Task| Ok::<_, JobError>(())).build().unwrap();
    let router = health::router([worker.health()]);
    let checking = async {
        after(5).await;
        faulty.plan_always(Operation::Get, Fault::LoseRequest(StoreErrorKind::Unavailable));
        after(5).await;
        let admin = Admin::builder(storage.clone()).access(AccessLevel::Operate).build();
        admin.pause("tasks").await.unwrap();
        after(300).await;
        faulty.heal();
        after(300).await;
        assert_eq!(checks(&router).await, (OK, OK, String::new()));
    };
    let _ = tokio::join!(worker.run_until(after(620)), checking);
}

#[tokio::test(start_paused = true)]
async fn draining_worker_is_alive_and_not_ready() {
    let storage = in_memory();
    send(&storage, 1).await;
    let (begun, stop) = (Arc::new(Notify::new()), CancellationToken::new());
    let started = Arc::clone(&begun);
    let handler = move |_: Task| {
        started.notify_one();
        async {
            after(10).await;
            Ok::<_, JobError>(())
        }
    };
    let worker = worker(&storage).handle(handler).build().unwrap();
    let router = health::router([worker.health()]);
    let checking = async {
        begun.notified().await;
        stop.cancel();
        after(1).await;
        assert_eq!(checks(&router).await, (OK, UNAVAILABLE, "the worker is draining".to_owned()));
    };
    let (report, ()) = tokio::join!(worker.run_until(stop.cancelled()), checking);
    assert_eq!(report.unwrap().completed, 1);
}

#[tokio::test(start_paused = true)]
async fn open_circuit_makes_a_worker_unready() {
    let storage = in_memory();
    send(&storage, 10).await;
    let breaker =
        CircuitBreaker::new().failures(3).jobs(1).pause(Duration::from_secs(600), Duration::from_secs(600));
    let handler = async |_: Task| Err::<(), _>(JobError::retry("down"));
    let worker = worker(&storage).circuit_breaker(breaker).handle(handler).build().unwrap();
    let router = health::router([worker.health()]);
    let checking = async {
        after(20).await;
        assert_eq!(
            checks(&router).await,
            (OK, UNAVAILABLE, "the circuit of the queue `tasks` is open".to_owned())
        );
    };
    let _ = tokio::join!(worker.run_until(after(30)), checking);
}

#[tokio::test(start_paused = true)]
async fn lease_that_was_not_renewed_makes_a_worker_unready() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    send(&storage, 1).await;
    faulty.plan_always(Operation::Update, Fault::LoseRequest(StoreErrorKind::Unavailable));
    let handler = async |_: Task| {
        after(50).await;
        Ok::<_, JobError>(())
    };
    let worker = worker(&storage).handle(handler).build().unwrap();
    let router = health::router([worker.health()]);
    let checking = async {
        after(20).await;
        assert_eq!(checks(&router).await.1, OK);
        after(20).await;
        let (live, ready, reason) = checks(&router).await;
        assert_eq!(live, OK);
        assert_eq!(ready, UNAVAILABLE);
        assert!(reason.starts_with("a lease ended before it was renewed"), "{reason}");
    };
    let _ = tokio::join!(worker.run_until(after(45)), checking);
}

#[tokio::test(start_paused = true)]
async fn stuck_renewals_make_a_worker_dead() {
    let storage = in_memory();
    let worker = worker(&storage).handle(async |_: Task| Ok::<_, JobError>(())).build().unwrap();
    let mut report: HealthReport = worker.health().report();
    report.renewals_behind = Duration::from_secs(60);
    assert!(Check::live(&report).is_ok());
    report.renewals_behind = Duration::from_secs(61);
    assert!(!Check::live(&report).is_ok());
}
