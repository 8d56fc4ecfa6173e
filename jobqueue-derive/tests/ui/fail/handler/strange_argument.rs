//! A handler that asks for something that is no extractor.

use jobqueue::{JobError, QueueMessage, Storage, Worker};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "mails", kind = "mail")]
struct Mail {}

async fn deliver(_: Mail, _: u32) -> Result<(), JobError> {
    Ok(())
}

fn main() {
    let _ = Worker::builder(Storage::memory()).handle(deliver);
}
