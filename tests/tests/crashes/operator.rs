//! The process that redrives dead letters at any time.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jobqueue::QueueMessage;
use jobqueue::dead_letters::{DeadLetter, DeadLetterOptions};
use rand::RngExt;
use rusqlite::params;

use super::jobs::{Join, Order, Slice, Task};
use super::process::Process;

/// Redrives dead letters, some at a time, until it is killed.
pub async fn operate(process: &Arc<Process>) {
    loop {
        let (limit, wait) = {
            let mut random = process.random();
            (random.random_range(1..20), random.random_range(50..600))
        };
        redrive_all(process, limit).await;
        tokio::time::sleep(Duration::from_millis(wait)).await;
    }
}

/// Redrives up to this number of dead letters of each queue. Returns the number.
pub async fn redrive_all(process: &Arc<Process>, limit: u64) -> usize {
    redrive::<Task>(process, limit).await
        + redrive::<Order>(process, limit).await
        + redrive::<Slice>(process, limit).await
        + redrive::<Join>(process, limit).await
}

async fn redrive<M: QueueMessage>(process: &Arc<Process>, limit: u64) -> usize {
    let queue = process.storage.queue::<M>().await.unwrap();
    let book = Arc::clone(process);
    let note = move |letter: &DeadLetter| {
        book.ledger.note("redrive", 0, &letter.id);
        true
    };
    let options = DeadLetterOptions::new().filter(note).limit(limit);
    let Ok(report) = queue.dead_letters().unwrap().redrive(options).await else { return 0 };
    for id in &report.moved {
        process.ledger.note("redriven", 0, id);
    }
    report.moved.len()
}

/// Makes dead letters visible that a killed operator held, and that would be visible again after ten minutes.
/// Nobody else receives from these queues.
pub fn release_letters(folder: &Path) {
    let Ok(connection) = rusqlite::Connection::open(folder.join("jobs.db")) else { return };
    connection.busy_timeout(Duration::from_secs(30)).unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as i64;
    let release = "UPDATE jobqueue_lease SET until = ?1 WHERE until > ?1
        AND id >> 42 IN (SELECT id FROM jobqueue_queue WHERE name LIKE '%-poison')";
    // Before the first operator there are no tables.
    let _ = connection.execute(release, params![now]);
    let _ = connection.execute("UPDATE jobqueue_queue SET due = 0", []);
}
