//! A SQLite storage with one queue, for tests of its file.

use std::path::Path;

use jobqueue::QueueName;
use jobqueue::Storage;
use jobqueue::settings::Metadata;
use jobqueue::sqlite::Options;

/// Returns the name of the queue.
pub fn queue() -> QueueName {
    "queue".parse().unwrap()
}

/// Opens the storage, and creates its queue if it is missing.
pub async fn open(path: &Path) -> Storage {
    let storage = Storage::open(Options::new(path)).await.unwrap();
    storage.queues().create_queue(&queue(), &Metadata::new()).await.unwrap();
    storage
}
