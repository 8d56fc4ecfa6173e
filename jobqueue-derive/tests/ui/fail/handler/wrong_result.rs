//! A handler whose error is not JobError.

use jobqueue::{JobError, QueueMessage, Storage, Worker};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "mails", kind = "mail")]
struct Mail {}

async fn deliver(_: Mail) -> Result<(), String> {
    Ok(())
}

fn main() {
    let _: Option<JobError> = None;
    let _ = Worker::builder(Storage::memory()).handle(deliver);
}
