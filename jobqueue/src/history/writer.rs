//! Writes what has ended into segments, and removes old ones.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::chunk::time;
use super::journal::Journal;
use super::summary::summarise;
use super::{FULL, LIFE, names};
use crate::clock::Clock;
use crate::error::Error;
use crate::job::outcome::chain;
use crate::name::BlobName;
use crate::storage::{BlobStore, PutBlob, StoreErrorKind, put_creating};

/// The time between two writes.
const INTERVAL: Duration = Duration::from_secs(15);
/// The time between two removals of what is old.
const SWEEP_EVERY: Duration = Duration::from_secs(86_400);
/// The time that the last write may take.
const LAST_WRITE: Duration = Duration::from_secs(3);
/// The pause before the last write is tried again.
const RETRY: Duration = Duration::from_millis(200);

/// Writes the journal until `ended` fires, and then what is left. Removes what is older than `kept`. Errors are logged only.
pub(crate) async fn keep(
    blobs: Arc<dyn BlobStore>,
    clock: Arc<dyn Clock>,
    journal: Arc<Journal>,
    kept: Duration,
    ended: CancellationToken,
) {
    let mut writer = Writer { blobs, clock, journal, kept, open: None, closed: None };
    let _ = ended.run_until_cancelled(writer.run()).await;
    if timeout(LAST_WRITE, writer.finish()).await.is_err() {
        tracing::warn!("the newest ended jobs are missing in the history");
    }
}

/// A segment that is not full.
struct Open {
    name: BlobName,
    since: Instant,
    data: Bytes,
    /// The earliest and the latest end.
    span: (i64, i64),
    /// True if what is in memory is not in the blob yet.
    is_behind: bool,
}

impl Open {
    fn is_over(&self) -> bool {
        // What waited for long, because the storage could not be reached, spans more than a segment without a summary promises.
        let is_long = time(self.span.1).duration_since(time(self.span.0)).is_ok_and(|span| span >= LIFE);
        self.data.len() >= FULL || self.since.elapsed() >= LIFE || is_long
    }
}

struct Writer {
    blobs: Arc<dyn BlobStore>,
    clock: Arc<dyn Clock>,
    journal: Arc<Journal>,
    kept: Duration,
    open: Option<Open>,
    /// A summary that is not written yet.
    closed: Option<(BlobName, Bytes)>,
}

impl Writer {
    async fn run(&mut self) {
        let mut sweep = Instant::now();
        loop {
            let next = Instant::now() + INTERVAL;
            tokio::select! {
                biased;
                () = sleep_until(next) => {}
                () = self.journal.many() => {}
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

    /// Writes what waits, and the summary of a segment that is full or old.
    async fn write_all(&mut self) -> Result<(), Error> {
        loop {
            self.write_open().await?;
            self.write_closed().await?;
            if self.open.as_ref().is_some_and(Open::is_over) {
                self.close()?;
                self.write_closed().await?;
            }
            let Some((chunk, span)) = self.journal.take() else { return Ok(()) };
            // The clock was set back: the name of the open segment promises that nothing in it ended earlier.
            if self.open.as_ref().is_some_and(|open| span.0 < open.span.0) {
                self.close()?;
            }
            self.add(chunk, span)?;
        }
    }

    /// Writes what is left, and ends the segment; tries until it is done.
    async fn finish(&mut self) {
        while let Err(error) = self.write_rest().await {
            tracing::debug!(error = %chain(&error), "the newest history was not written; trying again");
            sleep(RETRY).await;
        }
    }

    async fn write_rest(&mut self) -> Result<(), Error> {
        self.write_all().await?;
        self.close()?;
        self.write_closed().await
    }

    /// Adds a chunk to the open segment. Nothing may be lost from here on.
    fn add(&mut self, chunk: Vec<u8>, (first, last): (i64, i64)) -> Result<(), Error> {
        let data = match self.open.take() {
            Some(open) => {
                let span = (open.span.0, open.span.1.max(last));
                let data = Bytes::from([&open.data[..], &chunk].concat());
                Open { data, span, is_behind: true, ..open }
            }
            None => Open {
                name: names::segment(time(first))?,
                since: Instant::now(),
                data: Bytes::from(chunk),
                span: (first, last),
                is_behind: true,
            },
        };
        self.open = Some(data);
        Ok(())
    }

    async fn write_open(&mut self) -> Result<(), Error> {
        let Some(open) = self.open.as_mut().filter(|open| open.is_behind) else { return Ok(()) };
        put_creating(&*self.blobs, &open.name, open.data.clone(), PutBlob::new()).await?;
        open.is_behind = false;
        Ok(())
    }

    /// Ends the open segment, which is written: its summary is to be written next.
    fn close(&mut self) -> Result<(), Error> {
        let Some(open) = self.open.take() else { return Ok(()) };
        let summary = names::summary(&open.name, time(open.span.1))?;
        self.closed = Some((summary, Bytes::from(summarise(&open.data))));
        Ok(())
    }

    async fn write_closed(&mut self) -> Result<(), Error> {
        let Some((name, summary)) = &self.closed else { return Ok(()) };
        put_creating(&*self.blobs, name, summary.clone(), PutBlob::new()).await?;
        self.closed = None;
        Ok(())
    }

    async fn sweep(&self) -> Result<(), Error> {
        let now = self.clock.now();
        let oldest = names::stamp(now.checked_sub(self.kept).unwrap_or(std::time::SystemTime::UNIX_EPOCH));
        for segment in names::segments(&*self.blobs).await? {
            if segment.last < oldest {
                // The summary goes first: nobody would find one whose segment is gone.
                for blob in segment.summary.iter().chain([&segment.blob]) {
                    match self.blobs.delete_blob(blob, None).await {
                        Err(e) if e.kind() != StoreErrorKind::BlobNotFound => return Err(e.into()),
                        _ => {}
                    }
                }
            }
        }
        Ok(())
    }
}
