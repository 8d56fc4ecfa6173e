//! A handler that keeps an Rc across an await.

use jobqueue::{JobError, QueueMessage, Storage, Worker};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "mails", kind = "mail")]
struct Mail {}

async fn deliver(_: Mail) -> Result<(), JobError> {
    let count = std::rc::Rc::new(1);
    std::future::ready(()).await;
    drop(count);
    Ok(())
}

fn main() {
    let _ = Worker::builder(Storage::memory()).handle(deliver);
}
