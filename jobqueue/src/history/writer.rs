//! Writes the entries of the buffer into a journal, and removes old entries. Knows nothing of jobs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::buffer::JournalBuffer;
use crate::job::outcome::chain;
use crate::storage::{JournalEntry, JournalStore, StoreError, StoreErrorKind};

/// The time between two writes.
const WRITE_INTERVAL: Duration = Duration::from_secs(15);
/// The time between two removals of old entries.
const EXPIRE_INTERVAL: Duration = Duration::from_secs(86_400);
/// The maximum time of the last write, retries included.
const LAST_WRITE_TIMEOUT: Duration = Duration::from_secs(3);
/// The pause before a retry of the last write.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// Writes the journal until `ended` fires, and then the remaining entries. Removes entries older than
/// `retention`. Errors are only logged.
pub(crate) async fn run_journal_writer(
    journal: Arc<dyn JournalStore>,
    buffer: Arc<JournalBuffer>,
    retention: Duration,
    ended: CancellationToken,
) {
    let mut writer = JournalWriter { journal: Arc::clone(&journal), buffer, unwritten: VecDeque::new() };
    let run = async { tokio::join!(writer.run(), expire(&*journal, retention)) };
    let _ = ended.run_until_cancelled(run).await;
    if timeout(LAST_WRITE_TIMEOUT, writer.finish()).await.is_err() {
        crate::log::warn!("the newest ended jobs are missing in the journal");
    }
}

struct JournalWriter {
    journal: Arc<dyn JournalStore>,
    buffer: Arc<JournalBuffer>,
    /// The appends that were taken from the buffer and are not written yet.
    unwritten: VecDeque<Arc<[JournalEntry]>>,
}

impl JournalWriter {
    async fn run(&mut self) {
        loop {
            let next = Instant::now() + WRITE_INTERVAL;
            tokio::select! {
                biased;
                () = sleep_until(next) => {}
                () = self.buffer.full() => {}
            }
            if let Err(error) = self.write().await {
                crate::log::warn!(error = %chain(&error), "the journal was not written; trying again");
                sleep_until(next).await;
            }
        }
    }

    /// Writes the entries that wait now, in appends of limited size. Jobs that end during the write wait for
    /// the next write: each append rewrites a segment, so a loop until the buffer is empty would not end on a
    /// busy worker. While an append fails, further entries stay in the buffer, which is limited.
    async fn write(&mut self) -> Result<(), StoreError> {
        self.append_unwritten().await?;
        self.unwritten.extend(self.buffer.take());
        self.append_unwritten().await
    }

    /// Writes the taken appends. Drops an append that the storage refuses permanently, because others wait
    /// behind it.
    async fn append_unwritten(&mut self) -> Result<(), StoreError> {
        while let Some(entries) = self.unwritten.front() {
            match self.journal.append(Arc::clone(entries)).await {
                Err(error) if refuses_entries(&error) => {
                    let lost = entries.len();
                    crate::log::warn!(lost, error = %chain(&error), "the journal refuses ended jobs; they are missing in it");
                }
                answer => answer?,
            }
            self.unwritten.pop_front();
        }
        Ok(())
    }

    /// Writes the remaining entries after the last job has ended. Retries until all are written.
    async fn finish(&mut self) {
        while let Err(error) = self.write().await {
            crate::log::debug!(error = %chain(&error), "the newest entries were not written; trying again");
            sleep(RETRY_PAUSE).await;
        }
    }
}

/// Returns whether the storage will refuse the same entries again.
pub(super) fn refuses_entries(error: &StoreError) -> bool {
    matches!(error.kind(), StoreErrorKind::TooLarge | StoreErrorKind::InvalidInput) && !error.is_ambiguous()
}

/// Removes old entries soon after the start, and then every day.
async fn expire(journal: &dyn JournalStore, retention: Duration) {
    let mut next = Instant::now() + WRITE_INTERVAL;
    loop {
        sleep_until(next).await;
        next += EXPIRE_INTERVAL;
        if let Err(error) = journal.expire(retention).await {
            crate::log::debug!(error = %chain(&error), "old entries of the journal were not removed");
        }
    }
}
