//! The lease renewer at scale: I8, F37, F40.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::storage::Operation;
use jobqueue::{Context, JobError, memory};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, task, worker};

// I8
#[tokio::test(start_paused = true)]
async fn ten_thousand_leases_are_renewed_by_few_tasks() {
    const JOBS: usize = 10_000;
    let faulty = Faulty::new(&memory::open());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    for n in 0..JOBS {
        let _ = queue.send(&task(n.to_string())).await.unwrap();
    }
    let handler = |_: Task| async {
        after(29).await;
        Ok::<(), JobError>(())
    };
    let started = tokio::time::Instant::now();
    let metrics = tokio::runtime::Handle::current().metrics();
    let most = tokio::spawn(async move {
        let mut most = 0;
        for _ in 0..270 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            most = most.max(metrics.num_alive_tasks());
        }
        most
    });
    let worker = worker(&faulty.storage()).concurrency(JOBS).handle(handler).build().unwrap();
    let report = worker.run_until_idle().await.unwrap();
    assert_eq!(report.completed, JOBS as u64);
    let renewals: Vec<_> = faulty
        .calls()
        .into_iter()
        .filter(|call| call.operation == Operation::Update)
        .map(|c| c.at - started)
        .collect();
    assert_eq!(renewals.len(), JOBS, "one renewal each in 29 of 30 seconds");
    let first = renewals.iter().min().unwrap();
    assert!(
        *first >= Duration::from_millis(19_400),
        "sent at {first:?}, before two thirds of the lease had passed"
    );
    let most = most.await.unwrap();
    // One task for each handler; renewals add at most the requests that may be under way.
    assert!(most <= JOBS + 300, "{most} tasks");
}

// I8, F40
#[tokio::test(start_paused = true)]
async fn renewals_end_with_max_run_time() {
    let faulty = Faulty::new(&memory::open());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    let handler = |_: Task| async {
        std::future::pending::<()>().await;
        Ok::<(), JobError>(())
    };
    let worker =
        worker(&faulty.storage()).max_run_time(Duration::from_secs(100)).handle(handler).build().unwrap();
    let report = worker.run_until(after(103)).await.unwrap();
    assert_eq!(report.retried, 1);
    // 100 s in steps of about 20 s, and the release; without an end there would be no limit to them.
    let updates = faulty.calls_of(Operation::Update);
    assert!((5..=8).contains(&updates), "{updates}");
}

// I8, F8
#[tokio::test(start_paused = true)]
async fn hanging_renewal_leaves_time_for_another() {
    let faulty = Faulty::new(&memory::open());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    // One connection in which nothing moves, as it happens behind balancers; the next works.
    faulty.plan(Operation::Update, 1, Fault::Hang);
    let handler = |_: Task| async {
        after(45).await;
        Ok::<(), JobError>(())
    };
    let worker = worker(&faulty.storage()).handle(handler).build().unwrap();
    let report = worker.run_until_idle().await.unwrap();
    assert_eq!(report.completed, 1);
    assert_eq!(report.lease_lost, 0);
}

// F37
#[tokio::test(start_paused = true)]
async fn renewals_of_an_expiring_message_stop_at_its_ttl() {
    let faulty = Faulty::new(&memory::open());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    let options = jobqueue::SendOptions::new().ttl(Duration::from_secs(45));
    let _ = queue.send(&task("a")).with(options).await.unwrap();
    let started = tokio::time::Instant::now();
    let cancelled: Arc<Mutex<Vec<Duration>>> = Arc::default();
    let sink = Arc::clone(&cancelled);
    let handler = move |_: Task, ctx: Context| {
        let sink = Arc::clone(&sink);
        async move {
            ctx.token().cancelled().await;
            sink.lock().unwrap().push(started.elapsed());
            Ok::<(), JobError>(())
        }
    };
    let worker = worker(&faulty.storage()).handle(handler).build().unwrap();
    let report = worker.run_until(after(300)).await.unwrap();
    assert_eq!(report.completed, 0, "neither done nor failed: lost");
    assert_eq!(report.retried, 0, "neither done nor failed: lost");
    // 30 s of lease, renewed to a second before the end; in that second no handler begins.
    let first = cancelled.lock().unwrap()[0];
    assert!(first >= Duration::from_secs(42), "cancelled after {first:?}");
    assert_eq!((report.lease_lost, cancelled.lock().unwrap().len()), (0, 1), "{report:?}");
    assert!(report.expired > 0 && faulty.calls_of(Operation::Update) <= 2, "{report:?}");
}

// I8, F37
#[tokio::test(start_paused = true)]
async fn message_with_distant_ttl_is_renewed_as_usual() {
    let faulty = Faulty::new(&memory::open());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    let options = jobqueue::SendOptions::new().ttl(Duration::from_secs(86_400));
    let _ = queue.send(&task("a")).with(options).await.unwrap();
    let handler = |_: Task| async {
        after(100).await;
        Ok::<(), JobError>(())
    };
    let report = worker(&faulty.storage()).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, 1);
    assert_eq!(report.lease_lost, 0);
}
