//! A handler with a state that the worker cannot copy for each job.

use jobqueue::{JobError, QueueMessage, State, Storage, Worker};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "mails", kind = "mail")]
struct Mail {}

struct Database;

async fn deliver(_: Mail, _: State<Database>) -> Result<(), JobError> {
    Ok(())
}

fn main() {
    let _ = Worker::builder(Storage::memory()).handle(deliver);
}
