//! The progress of a schedule: a small JSON document that its leader and operators change.
//!
//! The leader changes its progress only if it is the one that it knows, so that a former leader cannot undo the work of
//! its successor. The operators' requests are stored beside it and survive the leader's writes.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::timetable::Timetable;
use crate::error::{Error, ErrorKind};
use crate::json_blob::{Edit, JsonBlob, Known, Version};
use crate::storage::{BlobName, ContainerName, NameError};
use crate::storage::{Storage, StoreError, StoreErrorKind};

const MAX_BYTES: u64 = 4096;

pub(super) fn name(schedule: &str) -> Result<BlobName, NameError> {
    BlobName::new(ContainerName::new(super::CONTAINER)?, schedule)
}

pub(super) fn document(storage: &Storage, name: &BlobName) -> JsonBlob<Stored> {
    JsonBlob::new(storage.blobs(), storage.runtime(), name.clone(), MAX_BYTES)
}

/// The stored form. Times are milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stored {
    /// Every slot up to this time is done.
    pub(super) done: i64,
    /// A slot that is about to be sent.
    pub(super) pending: Option<i64>,
    /// The schedule's job and times, for operators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) about: Option<About>,
    /// True if an operator has paused the schedule.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) paused: bool,
    /// The time at which an operator has asked for a job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) triggered: Option<i64>,
}

/// The job of a schedule, and the times at which it is sent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    pub queue: Option<String>,
    pub kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_ms: Option<i64>,
}

impl About {
    pub(super) fn timetable(&self) -> Option<Timetable> {
        match (&self.cron, &self.zone, self.every_ms) {
            (Some(cron), Some(zone), _) => Timetable::cron(cron, zone).ok(),
            (_, _, Some(millis)) => Timetable::every(Duration::from_millis(u64::try_from(millis).ok()?)).ok(),
            _ => None,
        }
    }

    fn fits(&self) -> bool {
        serde_json::to_vec(self).is_ok_and(|json| json.len() as u64 <= MAX_BYTES / 2)
    }
}

/// The state as it was last read or written.
#[derive(Debug)]
pub(super) struct ScheduleState {
    document: JsonBlob<Stored>,
    version: Version<Stored>,
    pub(super) done: Timestamp,
    pub(super) pending: Option<Timestamp>,
    pub(super) paused: bool,
    pub(super) triggered: Option<Timestamp>,
}

impl ScheduleState {
    /// Reads the state. A new schedule begins `now`. Updates the description of the schedule if it differs.
    pub(super) async fn load(
        storage: &Storage,
        name: &BlobName,
        now: Timestamp,
        about: &About,
    ) -> Result<Self, Error> {
        let about = Some(about).filter(|about| about.fits()).cloned();
        let document = document(storage, name);
        let tell = |stored: Option<Stored>| match stored {
            Some(stored) if stored.about == about => Edit::Keep(()),
            Some(stored) => Edit::Write(Stored { about: about.clone(), ..stored }, ()),
            None => {
                let (done, about) = (now.as_millisecond(), about.clone());
                Edit::Write(Stored { done, pending: None, about, paused: false, triggered: None }, ())
            }
        };
        let loaded = document.change(Known::Nothing, tell).await.map_err(unreadable)?;
        let version = loaded.version.ok_or_else(|| {
            Error::new(ErrorKind::Storage, "the state of a schedule was deleted while it was read")
                .with_retryable(true)
        })?;
        Self::new(document, version)
    }

    fn new(document: JsonBlob<Stored>, version: Version<Stored>) -> Result<Self, Error> {
        let Stored { done, pending, triggered, paused, .. } = version.value;
        let moment =
            |millis| Timestamp::from_millisecond(millis).map_err(|e| damaged(document.name()).with_source(e));
        let (done, pending) = (moment(done)?, pending.map(moment).transpose()?);
        let triggered = triggered.map(moment).transpose()?;
        Ok(Self { document, version, done, pending, paused, triggered })
    }

    /// Records that `slot` is about to be sent.
    pub(super) async fn begin(self, slot: Timestamp) -> Result<Self, Error> {
        let pending = Some(slot.as_millisecond());
        self.write(|stored| Stored { pending, ..stored }).await
    }

    /// Records that everything up to `slot` is done.
    pub(super) async fn finish(self, slot: Timestamp) -> Result<Self, Error> {
        let done = slot.max(self.done).as_millisecond();
        self.write(|stored| Stored { done, pending: None, ..stored }).await
    }

    /// Records that the job that an operator has asked for was sent.
    pub(super) async fn triggered(self) -> Result<Self, Error> {
        self.write(|stored| Stored { triggered: None, ..stored }).await
    }

    /// Changes the state, on condition that no other process has changed the progress of the schedule.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) if another leader has, or if the state was deleted.
    async fn write(self, change: impl Fn(Stored) -> Stored) -> Result<Self, Error> {
        let (done, pending) = (self.version.value.done, self.version.value.pending);
        let edit = |stored: Option<Stored>| match stored {
            Some(stored) if (stored.done, stored.pending) == (done, pending) => {
                Edit::Write(change(stored), true)
            }
            _ => Edit::Keep(false),
        };
        let written = self.document.change(Known::Version(self.version), edit).await.map_err(unreadable)?;
        match written.version {
            Some(version) if written.result => Self::new(self.document, version),
            _ => {
                let text = "another process has changed the progress of the schedule";
                Err(Error::new(ErrorKind::Conflict, text).with_retryable(true))
            }
        }
    }
}

/// Returns the error of a state that cannot be read or written.
pub(super) fn unreadable(error: StoreError) -> Error {
    if error.kind() != StoreErrorKind::Corrupt {
        return error.into();
    }
    Error::new(ErrorKind::Undecodable, "the state of a schedule is damaged; delete it").with_source(error)
}

fn damaged(name: &BlobName) -> Error {
    Error::new(ErrorKind::Undecodable, format!("the state of the schedule in `{name}` is damaged; delete it"))
}
