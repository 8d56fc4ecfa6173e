//! The guide's table of limits: what is just within one is taken, and what is just beyond is refused.

use jobqueue::{Context, ErrorKind, JobError, QueueMessage, Storage};
use jobqueue_tests::jobs::{in_memory, worker};
use serde::{Deserialize, Serialize};

const GUIDE: &str = include_str!("../../../jobqueue/src/docs/messages.md");

#[derive(Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "notes", kind = "note")]
struct Note {
    text: String,
}

/// Returns the largest number of a row.
fn most(of: &str) -> usize {
    let (_, table) = GUIDE.split_once("# Limits").unwrap();
    let row = table.lines().find(|line| line.starts_with(&format!("| {of}"))).unwrap();
    let numbers = row.split(' ').filter_map(|word| word.replace(',', "").parse().ok());
    numbers.max().unwrap()
}

/// Asserts that a text of this length is taken, and one more character is refused.
async fn assert_most<T>(of: &str, take: impl AsyncFn(&Storage, String) -> Result<T, jobqueue::Error>) {
    let (storage, most) = (in_memory(), most(of));
    assert!(take(&storage, "x".repeat(most)).await.is_ok(), "{most} of {of}");
    assert!(take(&storage, "x".repeat(most + 1)).await.is_err(), "{} of {of}", most + 1);
}

#[tokio::test(start_paused = true)]
async fn names_and_ids_have_the_lengths_of_the_guide() {
    let note = Note { text: String::new() };
    assert_most("the name of a queue", async |storage, name| {
        // A longer one has no room for its dead-letter queue, and no worker takes it.
        storage.queue_named::<Note>(&name).await
    })
    .await;
    assert_most("the id of a batch", async |storage, id| storage.batch(&id).await).await;
    assert_most("an id, a source", async |storage, id| {
        storage.queue::<Note>().await?.send(&note).id(id.clone()).source(id).await
    })
    .await;
    assert_most("the name of a header", async |storage, name| {
        storage.queue::<Note>().await?.send(&note).header(name, "value").await
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn steps_and_results_have_the_lengths_of_the_guide() {
    let (step, result) = (most("the name of a step"), most("the result of a child"));
    let handler = move |_: Note, ctx: Context| async move {
        let named =
            async |bytes: usize| ctx.step(&"s".repeat(bytes), || async { Ok::<_, JobError>(1) }).await;
        named(step).await?;
        assert!(named(step + 1).await.is_err());
        // Two bytes are the quotes.
        ctx.set_result(&"r".repeat(result - 2))?;
        assert_eq!(ctx.set_result(&"r".repeat(result - 1)).unwrap_err().kind(), ErrorKind::TooLarge);
        Ok::<_, JobError>(())
    };
    let storage = in_memory();
    storage.queue::<Note>().await.unwrap().send(&Note { text: String::new() }).await.unwrap();
    let report = worker(&storage).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, 1);
}
