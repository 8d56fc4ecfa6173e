//! Lesson 8: a message larger than a queue can carry.
//!
//! Teaches that a payload over 64 KiB is stored in a blob (a claim check), verified when it is read, and
//! deleted when its job is done; and that your own files belong in your own blobs. Prints
//!
//! ```text
//! sent 3000000 letters; blobs now: 1
//! read 3000000 letters, most of them 'a'
//! blobs now: 0
//! ```

#![allow(clippy::print_stdout, reason = "a program for people to look at")]

use jobqueue::storage::ContainerName;
use jobqueue::{JobError, QueueMessage, Storage, Worker};
use jobqueue_examples::{Failure, lesson_storage};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "texts", kind = "text.count")]
struct Count {
    text: String,
}

async fn count(job: Count) -> Result<(), JobError> {
    let most = ('a'..='z').max_by_key(|letter| job.text.matches(*letter).count());
    println!("read {} letters, most of them {:?}", job.text.len(), most.unwrap_or(' '));
    Ok(())
}

/// Returns the number of payloads in blobs. Only this lesson looks there: the name of the container may
/// change.
async fn blobs(storage: &Storage) -> Result<usize, Failure> {
    let container = ContainerName::new("jobqueue-payloads")?;
    Ok(storage.blobs().list_blobs(&container, "", None).await?.blobs.len())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let storage = lesson_storage("large").await?;
    let texts = storage.queue::<Count>().await?;
    let text = "ab".repeat(1_000_000) + &"a".repeat(1_000_000);
    texts.send(&Count { text }).await?;
    println!("sent 3000000 letters; blobs now: {}", blobs(&storage).await?);
    // `max_payload_bytes` says what a worker reads at most; the default is 32 MiB.
    let worker = Worker::builder(storage.clone()).handle(count).max_payload_bytes(4 << 20);
    let _ = worker.build()?.run_until_idle().await?;
    println!("blobs now: {}", blobs(&storage).await?);
    Ok(())
}
