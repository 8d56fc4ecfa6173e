//! The maintenance of a storage: sweeping, and measuring the clock skew.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use jobqueue::Error;
use jobqueue::maintenance::{SweepOptions, SweepReport, sweep};
use jobqueue::storage::{BlobName, ContainerName, PutBlob};
use jobqueue_storage::put_creating;
use serde::Serialize;

use super::event::ActionTarget;
use super::text::seconds;
use super::{Action, Admin};

/// The difference between the clock of this process and that of the storage.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ClockSkew {
    /// The size of the difference.
    #[serde(rename = "seconds", serialize_with = "seconds")]
    pub by: Duration,
    /// True if the clock of this process is ahead.
    pub ahead: bool,
    /// The error of the measurement: half the time of the request, and the second to which a storage may
    /// round.
    #[serde(rename = "uncertain_seconds", serialize_with = "seconds")]
    pub uncertain: Duration,
}

impl Admin {
    /// Removes blobs that no job can need any more, like [`sweep`]. With [`dry_run`](SweepOptions::dry_run)
    /// it only counts them, which is always allowed.
    ///
    /// # Errors
    /// [`Forbidden`](jobqueue::ErrorKind::Forbidden); [`Storage`](jobqueue::ErrorKind::Storage) if a listing
    /// or the count of a queue fails.
    ///
    /// # Cancel safety
    /// As [`sweep`].
    pub async fn sweep(&self, options: SweepOptions) -> Result<SweepReport, Error> {
        if options.is_dry_run() {
            return sweep(&self.storage, options).await;
        }
        let target = ActionTarget { selection: options.to_string(), ..ActionTarget::from("storage") };
        let work = sweep(&self.storage, options);
        let summary = |report: &SweepReport| {
            let SweepReport { seen, removed, bytes, failed, without_queue, .. } = report;
            format!(
                "{removed} of {seen} blobs removed ({bytes} bytes), {failed} failed, {without_queue} left \
                 without their queue"
            )
        };
        self.act(Action::Sweep, target, work, summary).await
    }

    /// Measures the difference between the clock of this process and the storage's: writes a small blob next
    /// to the records of workers, and removes it. Needs [`Action::Inspect`]. Costs two requests.
    ///
    /// # Errors
    /// [`Forbidden`](jobqueue::ErrorKind::Forbidden); [`Storage`](jobqueue::ErrorKind::Storage) if the blob
    /// cannot be written or removed.
    ///
    /// # Cancel safety
    /// If the future is dropped, the blob may remain for a day, until a worker removes it.
    pub async fn clock_skew(&self) -> Result<ClockSkew, Error> {
        if !self.access.allows(Action::Inspect) {
            return Err(self.forbidden(Action::Inspect));
        }
        let name = format!("clock-{}", self.storage.runtime().uuid_v4().simple());
        let blob = BlobName::new(ContainerName::new(jobqueue::__internals::WORKERS)?, name)?;
        let blobs = self.storage.blobs();
        let before = self.clock().now();
        let written = put_creating(&**blobs, &blob, Bytes::from_static(b"{}"), PutBlob::new()).await?;
        let after = self.clock().now();
        blobs.delete_blob(&blob, None).await?;
        Ok(ClockSkew::of(before, after, written.modified))
    }
}

impl ClockSkew {
    fn of(before: SystemTime, after: SystemTime, storage: SystemTime) -> Self {
        let took = after.duration_since(before).unwrap_or_default();
        let here = before + took / 2;
        let (ahead, by) = match here.duration_since(storage) {
            Ok(by) => (true, by),
            Err(behind) => (false, behind.duration()),
        };
        Self { by, ahead, uncertain: took / 2 + Duration::from_secs(1) }
    }

    /// Returns whether the clocks differ by more than the error of the measurement.
    pub fn is_certain(&self) -> bool {
        self.by > self.uncertain
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skew_has_its_direction_and_error() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let ahead = ClockSkew::of(at(100), at(104), at(72));
        assert_eq!(ahead.by.as_secs(), 30);
        assert_eq!(ahead.uncertain.as_secs(), 3);
        assert!(ahead.ahead);
        assert!(ahead.is_certain());
        let behind = ClockSkew::of(at(100), at(100), at(101));
        assert_eq!(behind.by.as_secs(), 1);
        assert!(!behind.ahead);
        assert!(!behind.is_certain());
    }
}
