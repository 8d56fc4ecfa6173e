//! Real processes of two releases on one storage, SQLite and Azurite: three old ones beside a new one, and
//! then the new one alone. Short, unless variables say otherwise: `JOBQUEUE_DEPLOY_MESSAGES` (2000),
//! `JOBQUEUE_DEPLOY_ALONE` (seconds of the old processes without the new one) and `JOBQUEUE_DEPLOY_SECONDS`
//! (side by side; with 300 or more, every message must run meanwhile).

use std::time::{Duration, Instant};

use jobqueue::{JobError, Queue, Storage, Worker};
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
    let Some(path) = part("rolling_deploys::processes::part_old_release") else { return };
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
    let Some(path) = part("rolling_deploys::processes::part_new_release") else { return };
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
    let azurite = Azurite::start();
    three_old_beside_a_new_one(&azurite.connection_string()).await;
}

/// The time for which the new process alone may need for the rest: the back-off is 30 seconds, the host may
/// be busy.
const REST: Duration = Duration::from_secs(120);
/// The time in which everything runs while old and new processes are side by side.
const ALL: Duration = Duration::from_secs(300);

async fn three_old_beside_a_new_one(connection: &str) {
    let messages = number("JOBQUEUE_DEPLOY_MESSAGES", 100);
    let beside = Duration::from_secs(number("JOBQUEUE_DEPLOY_SECONDS", 10));
    let storage = open(connection).await;
    let (first, second) =
        (storage.queue::<OrderV1>().await.unwrap(), storage.queue::<OrderV2>().await.unwrap());
    let refunds = storage.queue::<Refund>().await.unwrap();
    let old: Vec<_> =
        (0..3).map(|_| Part::start("rolling_deploys::processes::part_old_release", connection)).collect();
    for n in 0..messages {
        let id = n.to_string();
        match n % 3 {
            0 => drop(first.send(&OrderV1 { id }).await.unwrap()),
            1 => drop(second.send(&OrderV2 { id, express: true }).await.unwrap()),
            _ => drop(refunds.send(&Refund { id }).await.unwrap()),
        }
    }
    tokio::time::sleep(Duration::from_secs(number("JOBQUEUE_DEPLOY_ALONE", 0))).await;
    let new = Part::start("rolling_deploys::processes::part_new_release", connection);
    let began = Instant::now();
    let beside_left = empty_within(&first, beside).await;
    assert!(beside < ALL || beside_left == 0, "{beside_left} left after {beside:?}");
    // The rollout is done. What the old release has met and put back waits for at most 30 seconds.
    let mut done: Vec<String> = old.into_iter().flat_map(Part::kill).collect();
    assert_eq!(empty_within(&first, REST).await, 0);
    println!(
        "{messages} messages: {beside_left} left after at most {beside:?} side by side, none after {:.0?}",
        began.elapsed()
    );
    assert_eq!(first.dead_letters().unwrap().approximate_len().await.unwrap(), 0);
    done.extend(new.kill());
    let mut done: Vec<u64> = done.iter().map(|id| id.parse().unwrap()).collect();
    done.sort_unstable();
    done.dedup();
    assert_eq!(done, (0..messages).collect::<Vec<_>>());
}

/// Waits until the queue is empty, but not longer than `limit`. Returns the number of messages that are left.
async fn empty_within(queue: &Queue<OrderV1>, limit: Duration) -> u64 {
    let began = Instant::now();
    loop {
        let left = queue.approximate_len().await.unwrap();
        if left == 0 || began.elapsed() >= limit {
            return left;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
