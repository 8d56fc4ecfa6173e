//! Jobs in order whose checkpoint is in a blob. On memory, in paused time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::worker::HandlerLimits;
use jobqueue::{Context, JobError, QueueMessage};
use jobqueue_tests::jobs::worker;
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use crate::order::records::{MINUTE, steps};
use crate::order::{Step, logged, send, step};

/// A job of another kind in the queue and the keys of [`Step`].
#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "steps", kind = "note")]
struct Note {
    #[message(key)]
    of: String,
}

/// The first job of the key has saved a large checkpoint and is tried again, while a job of another key has
/// the only permit of its kind for twenty minutes.
// round 31, coordination 3: its deliveries were put back before they asked their log, and the note passed it.
#[tokio::test(start_paused = true)]
async fn job_with_a_large_checkpoint_keeps_its_position_while_its_handler_is_at_its_limit() {
    let storage = logged();
    let queue = steps(&storage).await;
    send(&queue, &step("a", 0)).await;
    let _ = queue.send(&step("busy", 0)).delay(Duration::from_secs(10)).await.unwrap();
    let notes = storage.queue::<Note>().await.unwrap();
    notes.send(&Note { of: "a".into() }).in_order().await.unwrap();

    let begun = Arc::new(Mutex::new(Vec::new()));
    let (of_steps, of_notes) = (Arc::clone(&begun), Arc::clone(&begun));
    let on_step = move |step: Step, ctx: Context| {
        of_steps.lock().unwrap().push(step.of.clone());
        async move {
            if step.of == "busy" {
                sleep(MINUTE * 20).await;
            } else if ctx.info().attempt == 1 {
                ctx.checkpoint(&"p".repeat(50_000)).await?;
                return Err(JobError::retry_after(Duration::from_secs(30), "not yet"));
            }
            Ok::<_, JobError>(())
        }
    };
    let on_note = move |_: Note| {
        of_notes.lock().unwrap().push("note".to_owned());
        async { Ok::<_, JobError>(()) }
    };
    let worker = worker(&storage).concurrency(4).handle(on_step).handle(on_note);
    let worker = worker.limit::<Step>(HandlerLimits::new().concurrency(1)).build().unwrap();
    let _ = worker.run_until(sleep(MINUTE * 40)).await.unwrap();
    assert_eq!(*begun.lock().unwrap(), ["a", "busy", "a", "note"]);
}
