//! Gathers lines, and writes them.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::CONTAINER;
use super::record::HistoryRecord;
use super::search::stamp;
use crate::clock::Clock;
use crate::entropy;
use crate::error::Error;
use crate::job::outcome::chain;
use crate::name::{BlobName, ContainerName};
use crate::storage::{BlobStore, PutBlob, StoreErrorKind, list_all, put_creating};
use crate::sync::lock;

/// The time between two writes.
const INTERVAL: Duration = Duration::from_secs(15);
/// From so many bytes on, lines are written before the interval is over.
const MANY: usize = 256 * 1024;
/// The most bytes that wait in memory.
const MOST: usize = 8 * 1024 * 1024;
/// The number of bytes with which a blob is full.
const FULL: usize = 512 * 1024;
/// The time for which one blob is written again and again.
const LIFE: Duration = Duration::from_secs(3600);
/// The time between two removals of what is old.
const SWEEP_EVERY: Duration = Duration::from_secs(86_400);
/// The time that the last write may take.
const LAST_WRITE: Duration = Duration::from_secs(3);

/// The lines that wait to be written.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    waiting: Mutex<Waiting>,
    many: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    lines: Vec<u8>,
    dropped: u64,
}

impl Journal {
    /// Adds a line. Drops it if too much waits.
    pub(crate) fn push(&self, record: &HistoryRecord) {
        let Ok(line) = serde_json::to_vec(record) else { return };
        let mut waiting = lock(&self.waiting);
        if waiting.lines.len() + line.len() >= MOST {
            waiting.dropped += 1;
            return;
        }
        waiting.lines.extend_from_slice(&line);
        waiting.lines.push(b'\n');
        if waiting.lines.len() >= MANY {
            drop(waiting);
            self.many.notify_one();
        }
    }

    /// Takes whole lines of at most `most` bytes, at least one.
    fn take(&self, most: usize) -> Vec<u8> {
        let mut waiting = lock(&self.waiting);
        let dropped = std::mem::take(&mut waiting.dropped);
        if dropped > 0 {
            tracing::warn!(
                dropped,
                "ended jobs are missing in the history: it could not be written for long"
            );
        }
        let whole =
            |end: usize| waiting.lines[..end].iter().rposition(|byte| *byte == b'\n').map(|at| at + 1);
        let end = match waiting.lines.len() <= most {
            true => waiting.lines.len(),
            false => whole(most).unwrap_or_else(|| {
                waiting.lines.iter().position(|byte| *byte == b'\n').map_or(waiting.lines.len(), |at| at + 1)
            }),
        };
        let rest = waiting.lines.split_off(end);
        std::mem::replace(&mut waiting.lines, rest)
    }

    fn is_empty(&self) -> bool {
        lock(&self.waiting).lines.is_empty()
    }
}

/// Writes the journal until `ended` fires, and then what is left. Removes what is older than `kept`. Errors are logged only.
pub(crate) async fn keep(
    blobs: Arc<dyn BlobStore>,
    clock: Arc<dyn Clock>,
    journal: Arc<Journal>,
    kept: Duration,
    ended: CancellationToken,
) {
    let mut writer = Writer { blobs, clock, journal, kept, open: None };
    let _ = ended.run_until_cancelled(writer.run()).await;
    if !matches!(timeout(LAST_WRITE, writer.write_all()).await, Ok(Ok(()))) {
        tracing::warn!("the newest ended jobs are missing in the history");
    }
}

/// A blob that is not full.
struct Open {
    name: BlobName,
    since: Instant,
    lines: Vec<u8>,
    /// True if lines in memory are not in the blob yet.
    is_behind: bool,
}

struct Writer {
    blobs: Arc<dyn BlobStore>,
    clock: Arc<dyn Clock>,
    journal: Arc<Journal>,
    kept: Duration,
    open: Option<Open>,
}

impl Writer {
    async fn run(&mut self) {
        let mut sweep = Instant::now();
        loop {
            let next = Instant::now() + INTERVAL;
            tokio::select! {
                biased;
                () = sleep_until(next) => {}
                () = self.journal.many.notified() => {}
            }
            if let Err(error) = self.write_all().await {
                tracing::warn!(error = %chain(&error), "the history was not written; trying again");
                sleep_until(next).await;
            }
            if sweep <= Instant::now() {
                sweep = Instant::now() + SWEEP_EVERY;
                if let Err(error) = self.sweep().await {
                    tracing::debug!(error = %chain(&error), "old history was not removed");
                }
            }
        }
    }

    async fn write_all(&mut self) -> Result<(), Error> {
        while !self.journal.is_empty() || self.open.as_ref().is_some_and(|open| open.is_behind) {
            self.write().await?;
        }
        Ok(())
    }

    async fn write(&mut self) -> Result<(), Error> {
        let is_over =
            |open: &Open| !open.is_behind && (open.lines.len() >= FULL || open.since.elapsed() >= LIFE);
        if self.open.as_ref().is_none_or(is_over) {
            self.open = Some(self.begin()?);
        }
        let Some(open) = &mut self.open else { return Ok(()) };
        if !open.is_behind {
            open.lines.extend(self.journal.take(FULL));
            open.is_behind = true;
        }
        let data = Bytes::from(open.lines.clone());
        put_creating(&*self.blobs, &open.name, data, PutBlob::new()).await?;
        open.is_behind = false;
        Ok(())
    }

    fn begin(&self) -> Result<Open, Error> {
        let now = self.clock.now();
        let id = entropy::uuid_v4().simple();
        let name = BlobName::new(ContainerName::new(CONTAINER)?, format!("{}-{id}", stamp(now)))?;
        Ok(Open { name, since: Instant::now(), lines: Vec::new(), is_behind: false })
    }

    async fn sweep(&self) -> Result<(), Error> {
        // A blob holds what ended within an hour.
        let oldest = self.clock.now().checked_sub(self.kept + LIFE).unwrap_or(SystemTime::UNIX_EPOCH);
        let oldest = stamp(oldest);
        for (blob, _) in list_all(&*self.blobs, &ContainerName::new(CONTAINER)?, "").await? {
            if *blob.name() < *oldest {
                match self.blobs.delete_blob(&blob, None).await {
                    Err(e) if e.kind() != StoreErrorKind::BlobNotFound => return Err(e.into()),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}
