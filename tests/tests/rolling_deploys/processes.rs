//! Real processes of two releases on one storage: SQLite and Azurite. Short, unless `JOBQUEUE_DEPLOY_MESSAGES` and `JOBQUEUE_DEPLOY_SECONDS` say otherwise.

use std::time::{Duration, Instant};

use jobqueue::{JobError, Storage, Worker};
use jobqueue_tests::azurite::Azurite;
use jobqueue_tests::children::{Part, part};
use jobqueue_tests::say;

use super::messages::{OrderV1, OrderV2, Refund};

async fn open(connection: &str) -> Storage {
    Storage::connect(connection).await.unwrap()
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

// A part of the next test: a worker of the first release.
#[tokio::test]
async fn part_old_release() {
    let Some(path) = part("processes::part_old_release") else { return };
    let handler = |order: OrderV1| async move {
        say!("{}", order.id);
        Ok::<(), JobError>(())
    };
    let worker = Worker::builder(open(&path).await).concurrency(8).handle(handler).build().unwrap();
    let _ = worker.run_until(std::future::pending()).await.unwrap();
}

// A part of the next test: a worker of the second release.
#[tokio::test]
async fn part_new_release() {
    let Some(path) = part("processes::part_new_release") else { return };
    let order = |order: OrderV2| async move {
        say!("{}", order.id);
        Ok::<(), JobError>(())
    };
    let refund = |refund: Refund| async move {
        say!("{}", refund.id);
        Ok::<(), JobError>(())
    };
    let builder = Worker::builder(open(&path).await).concurrency(8).handle(order).handle(refund);
    let _ = builder.build().unwrap().run_until(std::future::pending()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn three_old_processes_beside_a_new_one_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    three_old_beside_a_new_one(&format!("sqlite:{}", folder.path().join("jobs.db").display())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_old_processes_beside_a_new_one_lose_nothing_on_azurite() {
    // Azurite is polled, and what the old processes put back waits for minutes: only in the long run.
    if std::env::var_os("JOBQUEUE_DEPLOY_MESSAGES").is_none() {
        return;
    }
    let azurite = Azurite::start();
    three_old_beside_a_new_one(&azurite.connection_string()).await;
}

async fn three_old_beside_a_new_one(connection: &str) {
    let (messages, seconds) =
        (number("JOBQUEUE_DEPLOY_MESSAGES", 200), number("JOBQUEUE_DEPLOY_SECONDS", 300));
    let storage = open(connection).await;
    let (first, second) =
        (storage.queue::<OrderV1>().await.unwrap(), storage.queue::<OrderV2>().await.unwrap());
    let refunds = storage.queue::<Refund>().await.unwrap();
    let old: Vec<_> = (0..3).map(|_| Part::start("processes::part_old_release", connection)).collect();
    for n in 0..messages {
        match n % 3 {
            0 => drop(first.send(&OrderV1 { id: format!("{n}") }).await.unwrap()),
            1 => drop(second.send(&OrderV2 { id: format!("{n}"), express: true }).await.unwrap()),
            _ => drop(refunds.send(&Refund { id: format!("{n}") }).await.unwrap()),
        }
    }
    let new = Part::start("processes::part_new_release", connection);
    let began = Instant::now();
    while !first.is_empty().await.unwrap() {
        assert!(
            began.elapsed() < Duration::from_secs(seconds),
            "{} left",
            first.approximate_len().await.unwrap()
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(first.dead_letters().unwrap().approximate_len().await.unwrap(), 0);
    let mut done: Vec<u64> =
        old.into_iter().chain([new]).flat_map(Part::kill).map(|id| id.parse().unwrap()).collect();
    done.sort_unstable();
    done.dedup();
    assert_eq!(done, (0..messages).collect::<Vec<_>>());
}
