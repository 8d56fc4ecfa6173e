//! The guide's table of requests: each feature sends as many as its row says. In paused time on memory.

use std::collections::BTreeMap;
use std::time::Duration;

use jobqueue::batch::OnDeadLetters;
use jobqueue::leader::Leader;
use jobqueue::storage::Operation;
use jobqueue::{Context, JobError, QueueMessage, Storage, WorkerBuilder};
use jobqueue_testing::faults::Faulty;
use jobqueue_tests::jobs::{after, in_memory, worker};
use serde::{Deserialize, Serialize};
use tokio::time::{sleep, timeout};

const GUIDE: &str = include_str!("../../../jobqueue/src/docs/permissions_and_costs.md");
const DAY: u64 = 86_400;
const HOUR: Duration = Duration::from_secs(3_600);

#[derive(Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "parts", kind = "part")]
struct Part {
    #[message(key)]
    key: String,
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "wholes", kind = "whole")]
struct Whole {}

fn part(key: &str) -> Part {
    Part { key: key.to_owned() }
}

async fn accept(_: Part) -> Result<(), JobError> {
    Ok(())
}

async fn note(_: Whole) -> Result<(), JobError> {
    Ok(())
}

/// Returns the requests column of the row of a feature.
fn row(feature: &str) -> &'static str {
    let row = GUIDE.lines().find(|line| line.starts_with(&format!("| {feature}")));
    row.unwrap_or_else(|| panic!("no row for {feature}")).split('|').nth(3).unwrap().trim()
}

/// Returns the numbers in the requests column of a feature.
fn numbers(feature: &str) -> Vec<usize> {
    let words = row(feature).split([' ', ';', ':']).map(|word| word.replace(',', ""));
    words.filter_map(|word| word.parse().ok()).collect()
}

/// The requests to a storage since the last look.
struct Requests {
    faulty: Faulty,
    seen: BTreeMap<Operation, usize>,
}

impl Requests {
    fn to(storage: &Storage) -> Self {
        Self { faulty: Faulty::new(storage), seen: BTreeMap::new() }
    }

    fn storage(&self) -> Storage {
        self.faulty.storage()
    }

    fn take(&mut self, operation: Operation) -> usize {
        let now = self.faulty.calls_of(operation);
        now - self.seen.insert(operation, now).unwrap_or(0)
    }

    /// Returns the reads, writes, listings and deletions of blobs.
    fn take_blobs(&mut self) -> [usize; 4] {
        [Operation::GetBlob, Operation::PutBlob, Operation::ListBlobs, Operation::DeleteBlob]
            .map(|operation| self.take(operation))
    }
}

/// Asserts that a day brings as many requests as the guide says. The pauses between them do not include the
/// time of their answers.
fn assert_about(found: usize, expected: usize) {
    assert!(found.abs_diff(expected) <= expected / 50, "{found} requests instead of {expected}");
}

/// Runs the jobs that are there.
async fn run(worker: WorkerBuilder) {
    let _ = worker.presence(None).concurrency(1).build().unwrap().run_until_idle().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn unique_sends_and_cancellations_cost_what_the_guide_says() {
    let mut requests = Requests::to(&in_memory());
    let parts = requests.storage().queue::<Part>().await.unwrap();
    // Makes the container.
    parts.send(&part("first")).unique_for(HOUR).await.unwrap();
    requests.take_blobs();
    assert_eq!(
        row("[`unique_for`]"),
        "two writes beside the put; within the window a refused write and a read"
    );
    assert!(parts.send(&part("a")).unique_for(HOUR).await.unwrap().is_sent());
    assert_eq!(requests.take_blobs(), [0, 2, 0, 0]);
    assert!(!parts.send(&part("a")).unique_for(HOUR).await.unwrap().is_sent());
    assert_eq!(requests.take_blobs(), [1, 1, 0, 0]);

    assert_eq!(row("cancelling by key"), "by key a read, two writes and a delete; by `Sent` a delete");
    assert!(parts.cancel_unique("a").await.unwrap());
    assert_eq!((requests.take_blobs(), requests.take(Operation::Delete)), ([1, 2, 0, 0], 1));
    let sent = parts.send(&part("b")).await.unwrap();
    assert!(parts.cancel(&sent).await.unwrap());
    assert_eq!((requests.take_blobs(), requests.take(Operation::Delete)), ([0; 4], 1));
}

#[tokio::test(start_paused = true)]
async fn payloads_and_effects_cost_what_the_guide_says() {
    let mut requests = Requests::to(&in_memory());
    let storage = requests.storage();
    let parts = storage.queue::<Part>().await.unwrap();
    let effect = |_: Part, ctx: Context| async move {
        ctx.once("effect", || async { Ok::<_, JobError>(1) }).await.map(drop)
    };
    for _ in 0..2 {
        parts.send(&part("a")).await.unwrap();
        requests.take_blobs();
        run(worker(&storage).handle(effect)).await;
    }
    // The first one has made the container.
    assert_eq!(row("[`Context::once`]"), "a read and a write");
    assert_eq!(requests.take_blobs(), [1, 1, 0, 0]);

    parts.send(&part(&"large".repeat(20_000))).key("k").await.unwrap();
    run(worker(&storage).handle(accept)).await;
    assert_eq!(row("a payload over 64 KiB"), "a write, a read and a delete");
    let [reads, writes, listings, deletions] = requests.take_blobs();
    assert_eq!((reads, deletions, listings), (1, 1, 0));
    // One more finds no container.
    assert!((1..=2).contains(&writes), "{writes}");
}

#[tokio::test(start_paused = true)]
async fn children_of_a_batch_cost_what_the_guide_says() {
    let mut requests = Requests::to(&in_memory());
    let storage = requests.storage();
    let of_a_child = row("a child of a batch");
    assert!(of_a_child.contains("at its end a write, and a listing of at most 100 names"), "{of_a_child}");
    let writes_of_each = 1 + usize::from(of_a_child.contains("a write at its start"));
    // round 30, coordination 4: the row did not name the read.
    assert!(
        of_a_child.contains("and always with `OnDeadLetters::Continue`, then with a read"),
        "{of_a_child}"
    );
    let (waits, continues) = (OnDeadLetters::Wait, OnDeadLetters::Continue);
    for (id, policy, more) in [("first", waits, 0), ("second", waits, 0), ("third", continues, 1)] {
        let mut batch = storage.batch(id).await.unwrap();
        batch.on_dead_letters(policy);
        batch.send_all((0..10).map(|n| part(&n.to_string()))).await.unwrap();
        batch.then(&Whole {}).await.unwrap();
        requests.take_blobs();
        run(worker(&storage).handle(accept)).await;
        let [reads, writes, listings, deletions] = requests.take_blobs();
        if id == "first" {
            // It also makes the containers.
            continue;
        }
        assert_eq!((listings, deletions), (10, 0), "{id}");
        // Some more are for the batch, whose last child has ended.
        assert!(writes.abs_diff(10 * (writes_of_each + more)) <= 2, "{id}: {writes} writes");
        assert!((10 * more..=10 * more + 5).contains(&reads), "{id}: {reads} reads");
    }
}

#[tokio::test(start_paused = true)]
async fn worker_at_rest_costs_what_the_guide_says() {
    let mut requests = Requests::to(&in_memory());
    // The default, which virtual time switches off.
    let builder = worker(&requests.storage()).presence(Duration::from_secs(15)).handle(accept);
    let _ = builder.build().unwrap().run_until(after(DAY)).await.unwrap();
    let polls = requests.take(Operation::Get) + requests.take(Operation::QueueMetadata);
    assert_about(polls, numbers("an idle queue")[0]);
    let [reads, writes, listings, deletions] = requests.take_blobs();
    assert_about(writes, numbers("[the record of a worker]")[0]);
    // Three at both ends of the day, and one of the queue.
    assert!(reads == 0 && listings <= 7 && deletions <= 1, "{reads}, {listings}, {deletions}");
}

#[tokio::test(start_paused = true)]
async fn schedules_and_leaderships_at_rest_cost_what_the_guide_says() {
    let [renewals, reads, common, looks] = numbers("a schedule")[..] else { panic!("{}", row("a schedule")) };
    for schedules in [1, 3] {
        let storage = in_memory();
        let (mut leading, mut waiting) = (Requests::to(&storage), Requests::to(&storage));
        let scheduled = |storage: &Storage| {
            let rare =
                |builder: WorkerBuilder, n| builder.every(Duration::from_secs(40 * DAY + n), || Whole {});
            let builder = worker(storage).presence(None).handle(note);
            (0..schedules).fold(builder, rare).build().unwrap()
        };
        let waits = async {
            sleep(Duration::from_secs(60)).await;
            scheduled(&waiting.storage()).run_until(after(DAY - 70)).await
        };
        let (led, waited) = tokio::join!(scheduled(&leading.storage()).run_until(after(DAY)), waits);
        let _ = (led.unwrap(), waited.unwrap());
        let several = usize::from(schedules > 1);
        let schedules = usize::try_from(schedules).unwrap();
        assert_about(leading.take(Operation::RenewLease), schedules * renewals + several * common);
        assert_about(leading.take(Operation::GetBlob), schedules * reads);
        assert_about(waiting.take(Operation::BlobProperties), looks);
    }

    let mut requests = Requests::to(&in_memory());
    let leader = Leader::new(&requests.storage(), "one").unwrap();
    let leads = leader.run_while_leader(|leadership| async move { leadership.token().cancelled().await });
    let _ = timeout(Duration::from_secs(DAY), leads).await;
    assert_about(requests.take(Operation::RenewLease), renewals);
    assert_eq!(row("a leadership"), "the same without the reads and slots");
}

#[tokio::test(start_paused = true)]
async fn batch_opens_the_queue_of_its_children_once() {
    let faulty = Faulty::new(&in_memory());
    let mut batch = faulty.storage().batch("b").await.unwrap();
    let looked = || {
        let of_queue = faulty.calls().into_iter().filter(|call| call.subject == "parts");
        of_queue.filter(|call| !matches!(call.operation, Operation::Put | Operation::PutAll)).count()
    };
    batch.send(&part("a")).await.unwrap();
    let opened = looked();
    for _ in 0..10 {
        batch.send(&part("a")).await.unwrap();
    }
    assert_eq!(looked(), opened);
}
