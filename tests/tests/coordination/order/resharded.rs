//! Jobs in order whose queue gets other shards while messages wait in the former ones. On memory, in paused
//! time.

use jobqueue::sharded::Sharded;
use jobqueue::{SendOptions, Storage};
use jobqueue_tests::jobs::worker;
use tokio::time::{Instant, timeout};

use crate::order::records::{MINUTE, run, steps};
use crate::order::{Step, Watch, handle, logged, send, step};

/// Returns the administration of a storage with shards over one account, and the storage.
fn sharded() -> (Sharded, Storage) {
    let sharded = Sharded::builder().account("one", logged()).build().unwrap();
    let storage = Storage::from(sharded.stores());
    (sharded, storage)
}

// round 31, coordination 1: the first was given up after eight minutes, because the second had come again in
// its shard.
#[tokio::test(start_paused = true)]
async fn job_behind_a_long_backlog_of_a_former_shard_is_not_passed_by() {
    let (sharded, storage) = sharded();
    let queue = steps(&storage).await;
    let backlog = (0..400).map(|number| Step { millis: 5_000, ..step("busy", number) });
    let backlog: Vec<_> = backlog.map(|step| (step, SendOptions::new())).collect();
    assert!(queue.send_all(backlog).await.unwrap().iter().all(Result::is_ok));
    send(&queue, &step("a", 0)).await;
    sharded.reshard(queue.name(), 4).await.unwrap();
    send(&queue, &step("a", 1)).await;

    let (watch, began) = (Watch::default(), Instant::now());
    let worker = worker(&storage).concurrency(1).state(watch.clone()).handle(handle).build().unwrap();
    let _ = timeout(MINUTE * 180, worker.run_until(watch.ends(402))).await.expect("all end").unwrap();
    assert_eq!(watch.begun("a"), [0, 1]);
    assert!(began.elapsed() > MINUTE * 30, "the first was not behind a long backlog");
}

/// The job behind the lost message is itself in a former shard.
#[tokio::test(start_paused = true)]
async fn message_that_was_lost_before_its_queue_got_other_shards_is_waited_for_some_minutes_only() {
    let (sharded, storage) = sharded();
    let queue = steps(&storage).await;
    send(&queue, &step("a", 0)).await;
    storage.queues().clear(queue.name()).await.unwrap();
    send(&queue, &step("a", 1)).await;
    sharded.reshard(queue.name(), 4).await.unwrap();
    send(&queue, &step("a", 2)).await;
    let watch = Watch::default();
    let took = run(&storage, &watch, 2).await;
    assert_eq!(watch.begun("a"), [1, 2]);
    assert!(took < MINUTE * 20, "{took:?}");
}
