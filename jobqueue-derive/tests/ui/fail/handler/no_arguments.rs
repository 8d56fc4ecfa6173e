//! A handler without a message.

use jobqueue::{JobError, QueueMessage, Storage, Worker};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "mails", kind = "mail")]
struct Mail {}

async fn deliver() -> Result<(), JobError> {
    let _ = Mail {};
    Ok(())
}

fn main() {
    let _ = Worker::builder(Storage::memory()).handle(deliver);
}
