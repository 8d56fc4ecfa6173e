//! A handler of a type that does not derive `QueueMessage`.

use jobqueue::{JobError, Storage, Worker};

struct Mail {}

async fn deliver(_: Mail) -> Result<(), JobError> {
    Ok(())
}

fn main() {
    let _ = Worker::builder(Storage::memory()).handle(deliver);
}
