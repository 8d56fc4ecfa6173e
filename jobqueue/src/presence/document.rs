//! The blob of a worker: its record, and the notifications of operators. This module makes no request.
//!
//! | state | the worker writes | an operator notifies |
//! |---|---|---|
//! | none: not written yet, or removed by a sweep | → its record | – |
//! | written by the worker | → its new record, the same notifications | → one more notification, *alive* at the last write |
//! | written by an operator | → its new record, the same notifications, which it compares with the number that it knows | → one more notification |
//! | stale: the worker has not written for three intervals | → its new record | stays |

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::record::WorkerRecord;
use crate::json_blob::Edit;

/// A worker's blob: its record, which only the worker writes, and the notifications from operators.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct WorkerDocument {
    #[serde(flatten)]
    pub(super) record: WorkerRecord,
    /// The number of times that an operator asked the worker to read the requests.
    #[serde(default)]
    pub(super) notifications: u64,
    /// The time of the worker's own last write, by the storage's clock, if an operator wrote the blob last: a
    /// notification is no sign of life.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) alive: Option<SystemTime>,
}

impl WorkerDocument {
    /// Writes the worker's record. Returns the number of notifications, or `None` if the blob did not exist.
    pub(super) fn written(found: Option<Self>, record: &WorkerRecord) -> Edit<Self, Option<u64>> {
        let before = found.map(|found| found.notifications);
        let (record, notifications) = (record.clone(), before.unwrap_or_default());
        Edit::Write(Self { record, notifications, alive: None }, before)
    }

    /// Notifies a worker that is present at `now` and selected by `concerns`. Returns the number of
    /// notifications made. `modified` is the time of the last write.
    pub(super) fn notified(
        found: Option<Self>,
        modified: SystemTime,
        now: SystemTime,
        concerns: impl Fn(&WorkerRecord) -> bool,
    ) -> Edit<Self, u64> {
        let Some(Self { record, notifications, alive }) = found else { return Edit::Keep(0) };
        let alive = alive.unwrap_or(modified);
        if is_stale(&record, alive, now) || !concerns(&record) {
            return Edit::Keep(0);
        }
        Edit::Write(Self { record, notifications: notifications + 1, alive: Some(alive) }, 1)
    }
}

pub(super) fn is_stale(record: &WorkerRecord, modified: SystemTime, now: SystemTime) -> bool {
    let seconds = record.interval_seconds.clamp(0.001, 86_400.0);
    let life = Duration::from_secs_f64(seconds * 3.0) + rounding(modified);
    now.duration_since(modified).is_ok_and(|age| age > life)
}

/// Returns the time by which a storage may have rounded `time` down. Azure returns whole seconds: HTTP dates
/// have no fractions.
pub(super) fn rounding(time: SystemTime) -> Duration {
    let since_epoch = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    if since_epoch.subsec_nanos() == 0 { Duration::from_secs(1) } else { Duration::ZERO }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(draining: bool) -> WorkerRecord {
        let json = serde_json::json!({"id": "a", "name": "w", "host": "h", "pid": 1, "version": "0", "started": "", "written": "",
            "interval_seconds": 15.0, "queues": [], "slots": 1, "draining": draining, "running": [],
            "running_total": 0, "counters": []});
        serde_json::from_value(json).unwrap()
    }

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn written(found: Option<WorkerDocument>, draining: bool) -> (WorkerDocument, Option<u64>) {
        match WorkerDocument::written(found, &record(draining)) {
            Edit::Write(document, before) => (document, before),
            Edit::Keep(_) => panic!("a worker writes each of its records"),
        }
    }

    #[test]
    fn worker_and_operators_preserve_each_others_writes() {
        let (new, before) = written(None, false);
        assert_eq!(before, None);
        assert_eq!(new.notifications, 0);
        assert_eq!(new.alive, None);
        let notify =
            |found, modified, now| match WorkerDocument::notified(found, at(modified), at(now), |_| true) {
                Edit::Write(document, 1) => Some(document),
                Edit::Keep(0) => None,
                _ => panic!("the result is not the number of notifications made"),
            };
        let once = notify(Some(new.clone()), 100, 120).unwrap();
        assert_eq!(once.notifications, 1);
        assert_eq!(once.alive, Some(at(100)));
        // The operator's write is no sign of life.
        let twice = notify(Some(once.clone()), 120, 140).unwrap();
        assert_eq!(twice.notifications, 2);
        assert_eq!(twice.alive, Some(at(100)));
        assert!(notify(Some(twice.clone()), 140, 147).is_none(), "stale");
        assert!(notify(None, 100, 120).is_none());
        assert!(matches!(WorkerDocument::notified(Some(new), at(100), at(120), |_| false), Edit::Keep(0)));
        let (next, before) = written(Some(twice), true);
        assert_eq!(before, Some(2));
        assert_eq!(next.notifications, 2);
        assert_eq!(next.alive, None);
        assert!(next.record.draining);
    }
}
