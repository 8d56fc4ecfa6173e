//! Code of the application that panics while it is called for a schedule.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jobqueue::schedule::Schedule;
use jobqueue::{QueueMessage, Worker};
use jobqueue_tests::jobs::in_memory;
use serde::{Deserialize, Serialize, Serializer};
use tokio::time::sleep;

#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "ticks", kind = "tick")]
struct Tick {
    #[serde(serialize_with = "encode_but_for_the_second")]
    n: u64,
}

fn encode_but_for_the_second<S: Serializer>(n: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    assert_ne!(*n, 2, "planted");
    serializer.serialize_u64(*n)
}

#[tokio::test(start_paused = true)]
async fn message_that_panics_while_it_is_encoded_ends_no_schedule() {
    let storage = in_memory();
    let made = Arc::new(AtomicU64::new(0));
    let make = move || Tick { n: made.fetch_add(1, Ordering::SeqCst) + 1 };
    let schedule = Schedule::every(Duration::from_secs(60)).name("tick");
    let worker = Worker::builder(storage.clone()).schedule_by(schedule, make).build().unwrap();
    let _ = worker.run_until(sleep(Duration::from_secs(601))).await.unwrap();
    let sent = storage.queue::<Tick>().await.unwrap().approximate_len().await.unwrap();
    assert!(sent >= 9, "{sent} of 10 slots");
}
