//! Clears a queue: which messages are gone when the call returns.

use jobqueue::storage::{DeadLetterCause, DeadLetterMessage, PutMessage};
use serde_json::json;

use super::{Bench, MINUTE};

// The letter with the highest number was taken for the newest; it has the time at which its job came.
#[tokio::test]
async fn dead_letters_are_cleared_in_whatever_order_their_jobs_came() {
    let bench = Bench::new();
    bench.put(PutMessage::new("older")).await.unwrap();
    bench.emulator.advance(MINUTE);
    bench.put(PutMessage::new("newer")).await.unwrap();
    let (older, newer) = (bench.get().await.unwrap(), bench.get().await.unwrap());
    for job in [newer, older] {
        let letter = DeadLetterMessage::new("dead", DeadLetterCause::new("rejected"));
        bench.store().dead_letter(&bench.queue, &job.message, letter).await.unwrap();
    }
    assert_eq!(bench.count("deadLetters"), 2);
    bench.store().clear(&bench.queue.dead_letter().unwrap()).await.unwrap();
    assert_eq!(bench.count("deadLetters"), 0);
}

// A partition without messages answered, and the whole queue counted as empty.
#[tokio::test]
async fn a_partitioned_queue_is_cleared_although_one_partition_is_empty() {
    let bench = Bench::with(json!({ "EnablePartitioning": true }), &[]);
    for number in 0..8 {
        bench.put(PutMessage::new(number.to_string())).await.unwrap();
    }
    let none = json!({ "condition": "com.microsoft:message-not-found", "status": 404 });
    let fault = bench.emulator.plant_with("peek-message", "error", none);
    bench.store().clear(&bench.queue).await.unwrap();
    assert_eq!((fault.hits(), bench.count("active")), (1, 0));
}
