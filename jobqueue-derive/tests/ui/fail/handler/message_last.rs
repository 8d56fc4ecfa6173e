//! A handler whose message is not its first argument.

use jobqueue::{JobError, QueueMessage, Storage, Worker};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "mails", kind = "mail")]
struct Mail {}

async fn deliver(_: jobqueue::Context, _: Mail) -> Result<(), JobError> {
    Ok(())
}

fn main() {
    let _ = Worker::builder(Storage::memory()).handle(deliver);
}
