//! The running workers and their jobs.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jobqueue::__internals::{FoundWorker, Records, WorkerRecord};
use jobqueue::Error;
use jobqueue_message::envelope::RAW_KIND;
use serde::Serialize;

use super::Admin;
use super::in_time::in_time;
use super::text::short_duration;

/// The seconds by which a worker's record may be late.
const RECORD_GRACE: f64 = 5.0;
/// Older records are read in part, so that their number would not rise while processes go on dying.
const RECENT_SECONDS: f64 = 3_600.0;

/// A worker, as its record in the storage shows it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct WorkerOverview {
    /// The worker's own record.
    #[serde(flatten)]
    pub record: WorkerRecord,
    /// The seconds since the record was written, by the storage's clock.
    pub age_seconds: f64,
    /// True if the record has not been written for three intervals: the worker has died, or cannot reach the
    /// storage. Its jobs run on other workers once their leases have ended.
    pub stale: bool,
}

impl WorkerOverview {
    /// Returns the age of the record as text, such as `7s ago`: the worker's jobs and counts are of that time.
    pub fn age_text(&self) -> String {
        age_text(self.age_seconds)
    }

    /// Returns whether the record is late by its interval, so that the worker may have died. It is
    /// [stale](Self::stale) after three intervals.
    pub fn is_late(&self) -> bool {
        self.age_seconds > self.record.interval_seconds + RECORD_GRACE
    }

    /// Returns whether the worker is present, or its record became [stale](Self::stale) within the last hour.
    pub fn is_recent(&self) -> bool {
        self.age_seconds - 3.0 * self.record.interval_seconds <= RECENT_SECONDS
    }
}

/// Returns a sentence for operators if no worker writes its record any more, although a record became stale
/// within the last hour. The records do not show whether the workers have died: a storage that accepts no
/// writes has the same effect. An older record is of a worker that died before others ended in order.
pub fn silence(workers: &[WorkerOverview]) -> Option<String> {
    let newest = workers.iter().map(|worker| worker.age_seconds).min_by(f64::total_cmp)?;
    (workers.iter().all(|worker| worker.stale) && workers.iter().any(WorkerOverview::is_recent)).then(|| {
        format!(
            "the last record of a worker was written {}: the workers have died, or cannot write; `jobqueue doctor` \
             says whether the storage accepts writes",
            age_text(newest)
        )
    })
}

impl Admin {
    /// Returns the workers that are present, in order of host, process and name. Costs one request to list,
    /// which on Azure is billed as a write, and one for each worker.
    ///
    /// Workers without a [record](jobqueue::WorkerBuilder::presence) are not included.
    ///
    /// # Errors
    /// [`Storage`](jobqueue::ErrorKind::Storage) if the records cannot be read, or not within 8 seconds, or if
    /// those of present workers have more than 256 MiB together, as of some 9,000 workers with 64 running
    /// jobs each.
    pub async fn workers(&self) -> Result<Vec<WorkerOverview>, Error> {
        Ok(self.all_workers().await?.into_iter().filter(|worker| !worker.stale).collect())
    }

    /// Returns whether a present worker with a [record](jobqueue::WorkerBuilder::presence) listens to the
    /// queue. Costs the same as [`workers`](Self::workers).
    ///
    /// # Errors
    /// As [`workers`](Self::workers).
    pub async fn is_served(&self, queue: &str) -> Result<bool, Error> {
        Ok(self.workers().await?.iter().any(|worker| worker.record.listens_to(queue)))
    }

    /// Returns whether present workers listen to the queue, but none of them has a handler for jobs of the
    /// kind. Costs the same as [`workers`](Self::workers).
    ///
    /// # Errors
    /// As [`workers`](Self::workers).
    pub async fn is_unknown_kind(&self, queue: &str, kind: &str) -> Result<bool, Error> {
        Ok(is_unknown(queue, kind, &self.workers().await?))
    }

    /// Returns all workers, including those whose records are stale. Records are removed a day after their
    /// last write. If a crash loop leaves thousands of records, only the newest of these are read: those of
    /// the last hour until 2,000 are stale, and 100 older ones. The record of each present worker is read.
    ///
    /// The age of a record is the time since its last write by the storage's clock, which the storages of
    /// this crate return with the list of the records. For another storage that does not, this process's
    /// clock is used, unless a record is newer.
    ///
    /// # Errors
    /// As [`workers`](Self::workers).
    pub async fn all_workers(&self) -> Result<Vec<WorkerOverview>, Error> {
        Ok(self.workers_at().await?.0)
    }

    /// Returns all workers and the storage's time.
    pub(super) async fn workers_at(&self) -> Result<(Vec<WorkerOverview>, SystemTime), Error> {
        let records = Records::new(Arc::clone(self.storage.blobs()), self.storage.runtime().clone());
        let (found, listed) = in_time(records.all()).await?;
        let newest = found.iter().map(|found| found.modified).max();
        let now = listed.unwrap_or_else(|| newest.unwrap_or(SystemTime::UNIX_EPOCH).max(self.clock().now()));
        let overview = |found: FoundWorker| {
            let age = now.duration_since(found.modified).unwrap_or_default();
            WorkerOverview {
                stale: found.is_stale(now),
                age_seconds: (age.as_secs_f64() * 1e3).round() / 1e3,
                record: found.record,
            }
        };
        let mut workers: Vec<_> = found.into_iter().map(overview).collect();
        workers.sort_by(|one, other| {
            let key = |worker: &WorkerOverview| {
                let WorkerRecord { host, pid, name, id, .. } = &worker.record;
                (host.clone(), *pid, name.clone(), id.clone())
            };
            key(one).cmp(&key(other))
        });
        Ok((workers, now))
    }
}

/// Returns the age of a record as text.
pub(super) fn age_text(seconds: f64) -> String {
    Duration::try_from_secs_f64(seconds)
        .map_or_else(|_| "an unknown time ago".to_owned(), |age| format!("{} ago", short_duration(age)))
}

/// Returns whether some present workers listen to the queue, but none of these accepts jobs of the kind.
pub(super) fn is_unknown(queue: &str, kind: &str, workers: &[WorkerOverview]) -> bool {
    let present = workers.iter().filter(|worker| !worker.stale);
    let mut listening =
        present.flat_map(|worker| &worker.record.queues).filter(|listening| listening.name == queue);
    // A worker decodes a raw payload as the only kind of its queue, or refuses it at once.
    let has_handler = kind.is_empty() || kind == RAW_KIND;
    listening.clone().next().is_some() && !has_handler && !listening.any(|listening| listening.takes(kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stale(interval_seconds: f64, age_seconds: f64) -> WorkerOverview {
        let record = serde_json::json!({
            "id": "1", "name": "w", "host": "h", "pid": 1, "version": "0", "started": "2026-01-01T00:00:00Z",
            "written": "2026-01-01T00:00:00Z", "interval_seconds": interval_seconds, "slots": 1, "draining": false,
            "queues": [], "running": [], "running_total": 0, "counters": []
        });
        WorkerOverview { record: serde_json::from_value(record).unwrap(), age_seconds, stale: true }
    }

    // round 35 f, C2: with an interval of 20 minutes, no record was ever both stale and of the last hour.
    #[test]
    fn record_is_recent_for_an_hour_after_it_has_become_stale() {
        for interval in [15.0, 1_200.0, 3_600.0] {
            let (died, older) =
                (stale(interval, 3.0 * interval + 60.0), stale(interval, 3.0 * interval + 3_660.0));
            assert!(died.is_recent() && !older.is_recent());
            assert_eq!(silence(std::slice::from_ref(&older)), None);
            assert!(silence(&[older, died]).is_some());
        }
    }
}
