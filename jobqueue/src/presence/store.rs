//! The records of all workers in the storage.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use jiff::Timestamp;

use super::record::WorkerRecord;
use crate::error::Error;
use crate::storage::{BlobName, ContainerName};
use crate::storage::{
    BlobProperties, BlobStore, ETag, Listed, PutBlob, StoreError, StoreErrorKind as Kind, list_with_time,
    put_creating,
};

pub(crate) const CONTAINER: &str = "jobqueue-workers";
/// The most bytes of a record.
const MAX_BYTES: u64 = 8 * 1024 * 1024;
/// The time since the last write after which a record is removed.
const SWEPT: Duration = Duration::from_secs(86_400);
/// The number of tries to rewrite a record that its worker writes at the same time. The last try is unconditional.
const NOTIFY_TRIES: u32 = 5;

#[derive(Debug, Clone)]
pub(crate) struct Records {
    blobs: Arc<dyn BlobStore>,
}

/// A record as it was found.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) record: WorkerRecord,
    /// The time of its last write, by the storage's clock.
    pub(crate) modified: SystemTime,
}

impl Found {
    /// Returns whether the record was not written for three intervals.
    pub(crate) fn is_stale(&self, now: SystemTime) -> bool {
        let seconds = self.record.interval_seconds.clamp(0.001, 86_400.0);
        let life = Duration::from_secs_f64(seconds * 3.0) + rounding(self.modified);
        now.duration_since(self.modified).is_ok_and(|age| age > life)
    }
}

impl Records {
    pub(crate) fn new(blobs: Arc<dyn BlobStore>) -> Self {
        Self { blobs }
    }

    /// Returns all records, including stale ones, and the storage's time, if it returns one. Costs a listing, and a
    /// request for each record.
    pub(crate) async fn all(&self) -> Result<(Vec<Found>, Option<SystemTime>), Error> {
        let mut all = Vec::new();
        let listed = self.list().await?;
        for (blob, _) in listed.blobs {
            all.extend(self.read(&blob).await?.map(|(found, _)| found));
        }
        Ok((all, listed.now))
    }

    async fn list(&self) -> Result<Listed, Error> {
        Ok(list_with_time(&*self.blobs, &ContainerName::new(CONTAINER)?, "").await?)
    }

    /// Makes each present worker for which `concerns` is true read the requests: writes its record again, unchanged. `now` is the time by
    /// which workers are present if the storage does not tell its own.
    pub(crate) async fn notify(
        &self,
        now: SystemTime,
        concerns: impl Fn(&WorkerRecord) -> bool,
    ) -> Result<u64, Error> {
        let mut notified = 0;
        let listed = self.list().await?;
        let now = listed.now.unwrap_or(now);
        for (blob, _) in listed.blobs {
            for left in (0..NOTIFY_TRIES).rev() {
                let Some((found, etag)) = self.read(&blob).await? else { break };
                if found.is_stale(now) || !concerns(&found.record) {
                    break;
                }
                // A worker that writes between all reads and writes would never be notified. Its next conditional write
                // detects this one.
                let options = if left > 0 { PutBlob::if_match(etag) } else { PutBlob::new() };
                match self.write(&blob, &found.record, options).await {
                    Ok(_) => {
                        notified += 1;
                        break;
                    }
                    // Its worker was faster.
                    Err(e) if matches!(e.kind(), Kind::ConditionNotMet | Kind::BlobNotFound) => {}
                    Err(e) => return Err(e.into()),
                }
            }
        }
        Ok(notified)
    }

    async fn read(&self, blob: &BlobName) -> Result<Option<(Found, ETag)>, Error> {
        let found = match self.blobs.get_blob(blob, MAX_BYTES).await {
            Ok(found) => found,
            Err(e) if matches!(e.kind(), Kind::BlobNotFound | Kind::ContainerNotFound | Kind::TooLarge) => {
                return Ok(None);
            }
            Err(e) => return Err(e.into()),
        };
        // Of a version whose records have another form, or of another program.
        let Ok(record) = serde_json::from_slice(&found.data) else { return Ok(None) };
        let found = (Found { record, modified: found.properties.modified }, found.properties.etag);
        Ok(Some(found))
    }

    pub(super) async fn write(
        &self,
        blob: &BlobName,
        record: &WorkerRecord,
        options: PutBlob,
    ) -> Result<BlobProperties, StoreError> {
        let json = serde_json::to_vec(record);
        let json =
            json.map_err(|e| StoreError::new(Kind::InvalidInput, "write record", blob).with_source(e))?;
        put_creating(&*self.blobs, blob, Bytes::from(json), options).await
    }

    pub(super) async fn tag(&self, blob: &BlobName) -> Result<Option<ETag>, StoreError> {
        match self.blobs.blob_properties(blob).await {
            Ok(properties) => Ok(Some(properties.etag)),
            Err(e) if matches!(e.kind(), Kind::BlobNotFound | Kind::ContainerNotFound) => Ok(None),
            Err(e) => Err(e),
        }
    }

    pub(super) async fn remove(&self, blob: &BlobName) -> Result<(), StoreError> {
        self.blobs.delete_blob(blob, None).await
    }

    /// Removes the records of workers that died long ago, by the storage's time, or by `now` if it does not tell it.
    pub(super) async fn sweep(&self, now: SystemTime) -> Result<(), Error> {
        let listed = self.list().await?;
        let now = listed.now.unwrap_or(now);
        for (blob, properties) in listed.blobs {
            if now.duration_since(properties.modified).is_ok_and(|age| age > SWEPT) {
                self.remove(&blob).await?;
            }
        }
        Ok(())
    }
}

/// Returns the time by which a storage may have rounded this one down. Azure returns whole seconds: HTTP dates have no
/// fractions.
fn rounding(time: SystemTime) -> Duration {
    let since_epoch = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    if since_epoch.subsec_nanos() == 0 { Duration::from_secs(1) } else { Duration::ZERO }
}

pub(super) fn name(id: &str) -> Result<BlobName, Error> {
    Ok(BlobName::new(ContainerName::new(CONTAINER)?, id)?)
}

/// Returns a time as RFC 3339 with milliseconds.
pub(super) fn time(time: SystemTime) -> String {
    let timestamp = Timestamp::try_from(time).unwrap_or_default();
    jiff::fmt::temporal::DateTimePrinter::new().precision(Some(3)).timestamp_to_string(&timestamp)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(modified: SystemTime, interval_seconds: f64) -> Found {
        let json = serde_json::json!({"id": "a", "name": "w", "host": "h", "pid": 1, "version": "0", "started": "", "written": "",
            "interval_seconds": interval_seconds, "queues": [], "slots": 1, "draining": false, "running": [],
            "running_total": 0, "counters": []});
        Found { record: serde_json::from_value(json).unwrap(), modified }
    }

    #[test]
    fn time_that_was_rounded_to_seconds_makes_no_record_stale() {
        let whole = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        let age = Duration::from_millis;
        // Written at up to 1000.999 s by a worker that writes every 200 ms.
        assert!(!found(whole, 0.2).is_stale(whole + age(1_500)));
        assert!(found(whole, 0.2).is_stale(whole + age(1_601)));
        assert!(found(whole, 15.0).is_stale(whole + age(46_001)));
        let exact = whole + age(1);
        assert!(!found(exact, 0.2).is_stale(exact + age(600)));
        assert!(found(exact, 0.2).is_stale(exact + age(601)));
    }
}
