//! The records of all workers in the storage.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::{StreamExt, TryStreamExt, stream};

use super::document::{WorkerDocument, is_stale};
use super::record::WorkerRecord;
use crate::error::{Error, ErrorKind};
use crate::json_blob::{JsonBlob, Known};
use crate::runtime::Runtime;
use crate::storage::{
    BlobName, BlobProperties, BlobStore, ContainerName, Listed, Storage, StoreError, StoreErrorKind as Kind,
    delete_if_present, list_all, time_by_listing,
};

/// The container of the records.
pub const CONTAINER: &str = "jobqueue-workers";
const MAX_BYTES: u64 = 8 * 1024 * 1024;
/// The age since the last write after which a sweep removes a record.
const SWEEP_AFTER: Duration = Duration::from_secs(86_400);
/// The maximum total size of the records that are read, as listed: some 9,000 workers with 64 running jobs
/// each.
const MAX_TOTAL_BYTES: u64 = 256 * 1024 * 1024;
/// The age since the last write up to which records are recent.
const RECENT_AGE: Duration = Duration::from_secs(3_600);
/// The maximum number of older records that are read: of workers that write rarely, and of some workers that
/// are gone.
const MAX_OLDER: usize = 100;
/// The number of recent stale records after which no further stale records are read.
const MAX_STALE: usize = 2_000;
/// The number of records that are read before stale records are counted again.
const READ_STEP: usize = 500;
/// The number of records that are read concurrently.
const CONCURRENT_READS: usize = 32;

/// The records of the workers of a storage.
#[derive(Debug, Clone)]
pub struct Records {
    blobs: Arc<dyn BlobStore>,
    runtime: Runtime,
}

/// A record in the storage.
#[derive(Debug, Clone)]
pub struct FoundWorker {
    /// The record.
    pub record: WorkerRecord,
    /// The time of the worker's last write at the time of the listing, by the storage's clock.
    pub modified: SystemTime,
}

impl FoundWorker {
    /// Returns whether the worker has not written the record for three intervals.
    pub fn is_stale(&self, now: SystemTime) -> bool {
        is_stale(&self.record, self.modified, now)
    }
}

impl Records {
    /// Returns the records in these blobs.
    pub fn new(blobs: Arc<dyn BlobStore>, runtime: Runtime) -> Self {
        Self { blobs, runtime }
    }

    pub(super) fn document(&self, blob: BlobName) -> JsonBlob<WorkerDocument> {
        JsonBlob::new(&self.blobs, &self.runtime, blob, MAX_BYTES)
    }

    /// Returns the records, including stale records, and the storage's time, if the storage returns it. Reads
    /// the record of each present worker. A worker that is gone may leave a record for a day; reads only some
    /// of these. Costs a listing, and a request per record.
    ///
    /// # Errors
    /// The records cannot be read, or those of workers that may be present are too large together: figures of
    /// a part of the workers would be wrong.
    pub async fn all(&self) -> Result<(Vec<FoundWorker>, Option<SystemTime>), Error> {
        let listed = self.recent().await?;
        let now = listed.now.unwrap_or_else(|| self.runtime.now());
        let (mut found, mut bytes) = (Vec::<FoundWorker>::new(), 0);
        for step in listed.blobs.chunks(READ_STEP) {
            bytes += step.iter().map(|(_, properties)| properties.length).sum::<u64>();
            let stale = found.iter().filter(|worker| worker.is_stale(now)).count();
            let is_enough = stale >= MAX_STALE || bytes > MAX_TOTAL_BYTES;
            if is_enough && step.iter().all(|(_, next)| is_gone(&found, next.modified, now)) {
                break;
            }
            if bytes > MAX_TOTAL_BYTES {
                let text = format!(
                    "the records of {} workers have more than {} MiB together, so that not all were read",
                    listed.blobs.len(),
                    MAX_TOTAL_BYTES / 1024 / 1024
                );
                return Err(Error::new(ErrorKind::Storage, text));
            }
            found.extend(self.read(step).await?);
        }
        Ok((found, listed.now))
    }

    async fn read(&self, listed: &[(BlobName, BlobProperties)]) -> Result<Vec<FoundWorker>, StoreError> {
        let read = |blob: BlobName, modified: SystemTime| async move {
            let read = readable(self.document(blob).read().await)?.flatten();
            Ok::<_, StoreError>(read.map(|found| {
                let WorkerDocument { record, alive, .. } = found.value;
                FoundWorker { record, modified: alive.unwrap_or(modified) }
            }))
        };
        let reads: Vec<_> = listed.iter().map(|(blob, found)| read(blob.clone(), found.modified)).collect();
        let all: Vec<_> = stream::iter(reads).buffer_unordered(CONCURRENT_READS).try_collect().await?;
        Ok(all.into_iter().flatten().collect())
    }

    /// Lists all recent records and up to [`MAX_OLDER`] older records, newest first.
    async fn recent(&self) -> Result<Listed, Error> {
        let mut listed = self.list().await?;
        listed.blobs.sort_by_key(|(_, properties)| std::cmp::Reverse(properties.modified));
        let newest = listed.blobs.first().map(|(_, properties)| properties.modified);
        let since = listed.now.or(newest).and_then(|now| now.checked_sub(RECENT_AGE));
        let recent =
            listed.blobs.iter().take_while(|(_, found)| since.is_none_or(|since| found.modified >= since));
        listed.blobs.truncate(recent.count() + MAX_OLDER);
        Ok(listed)
    }

    async fn list(&self) -> Result<Listed, Error> {
        Ok(list_all(&*self.blobs, &ContainerName::new(CONTAINER)?, "").await?)
    }

    /// Makes each present worker that `concerns` selects read the requests, and returns their number. Decides
    /// by the storage's time which workers are present, or by `now` if the storage returns none.
    pub async fn notify(
        &self,
        now: SystemTime,
        concerns: impl Fn(&WorkerRecord) -> bool,
    ) -> Result<u64, Error> {
        let listed = self.recent().await?;
        let now = listed.now.unwrap_or(now);
        let concerns = &concerns;
        let touches = listed.blobs.into_iter().map(|(blob, properties)| async move {
            let notify = |found| WorkerDocument::notified(found, properties.modified, now, concerns);
            let touched = readable(self.document(blob).change(Known::Nothing, notify).await)?;
            Ok::<u64, StoreError>(touched.map_or(0, |changed| changed.result))
        });
        let notified: Vec<u64> =
            stream::iter(touches).buffer_unordered(CONCURRENT_READS).try_collect().await?;
        Ok(notified.into_iter().sum())
    }

    pub(super) async fn remove(&self, blob: &BlobName) -> Result<(), StoreError> {
        self.blobs.delete_blob(blob, None).await
    }

    /// Removes the records of workers that died long ago. Uses the storage's time, or `now` if the storage
    /// returns none.
    pub(super) async fn sweep(&self, now: SystemTime) -> Result<(), Error> {
        let listed = self.list().await?;
        let now = listed.now.unwrap_or(now);
        for (blob, properties) in listed.blobs {
            if now.duration_since(properties.modified).is_ok_and(|age| age > SWEEP_AFTER) {
                // Another worker may have just removed it.
                delete_if_present(&*self.blobs, &blob).await?;
            }
        }
        Ok(())
    }
}

/// Returns whether the worker of a record that was written at `modified` is certainly gone, if its interval is
/// no longer than the intervals of the workers that were found.
fn is_gone(found: &[FoundWorker], modified: SystemTime, now: SystemTime) -> bool {
    !found.is_empty() && found.iter().all(|worker| is_stale(&worker.record, modified, now))
}

/// Returns `None` for a record of another form: of an incompatible version, or of another program.
pub(super) fn readable<T>(found: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(e) if matches!(e.kind(), Kind::Corrupt | Kind::TooLarge) => Ok(None),
        Err(e) => Err(e),
    }
}

pub(super) fn name(id: &str) -> Result<BlobName, Error> {
    Ok(BlobName::new(ContainerName::new(CONTAINER)?, id)?)
}

/// Returns the storage's time: `answered`, from an answer about a queue, or else the time of a listing.
/// Returns `None` if neither contains a time.
///
/// # Errors
/// The blobs cannot be listed.
pub async fn storage_time(
    storage: &Storage,
    answered: Option<SystemTime>,
) -> Result<Option<SystemTime>, Error> {
    if answered.is_some() {
        return Ok(answered);
    }
    Ok(time_by_listing(&**storage.blobs(), &ContainerName::new(CONTAINER)?).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(modified: SystemTime, interval_seconds: f64) -> FoundWorker {
        let json = serde_json::json!({"id": "a", "name": "w", "host": "h", "pid": 1, "version": "0", "started": "", "written": "",
            "interval_seconds": interval_seconds, "queues": [], "slots": 1, "draining": false, "running": [],
            "running_total": 0, "counters": []});
        FoundWorker { record: serde_json::from_value(json).unwrap(), modified }
    }

    #[test]
    fn time_that_was_rounded_to_seconds_makes_no_record_stale() {
        let whole = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        let age = Duration::from_millis;
        // The worker writes every 200 ms; this write was at up to 1000.999 s.
        assert!(!found(whole, 0.2).is_stale(whole + age(1_500)));
        assert!(found(whole, 0.2).is_stale(whole + age(1_601)));
        assert!(found(whole, 15.0).is_stale(whole + age(46_001)));
        let exact = whole + age(1);
        assert!(!found(exact, 0.2).is_stale(exact + age(600)));
        assert!(found(exact, 0.2).is_stale(exact + age(601)));
    }
}
