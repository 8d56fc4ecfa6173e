//! Clears a queue: which messages are gone when the call returns.

use jobqueue::storage::{DeadLetterCause, DeadLetterMessage, PutMessage};

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
