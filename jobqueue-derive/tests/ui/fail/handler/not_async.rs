//! A handler that is not async.

use jobqueue::{JobError, QueueMessage, Storage, Worker};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "mails", kind = "mail")]
struct Mail {}

fn deliver(_: Mail) -> Result<(), JobError> {
    Ok(())
}

fn main() {
    let _ = Worker::builder(Storage::memory()).handle(deliver);
}
