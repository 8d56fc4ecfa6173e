//! The requests that read and change the state of a schedule.

use jiff::Timestamp;

use super::record::{MAX_BYTES, ScheduleDescription, Stored};
use crate::error::{Error, ErrorKind};
use crate::json_blob::{JsonBlob, Known, Version};
use crate::storage::{BlobName, ContainerName, NameError, Storage, StoreError, StoreErrorKind};

pub(super) fn name(schedule: &str) -> Result<BlobName, NameError> {
    BlobName::new(ContainerName::new(super::CONTAINER)?, schedule)
}

pub(super) fn document(storage: &Storage, name: &BlobName) -> JsonBlob<Stored> {
    JsonBlob::new(storage.blobs(), storage.runtime(), name.clone(), MAX_BYTES)
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
    /// Reads the state. A new schedule begins `now`. Updates the stored description if it differs from
    /// `about`.
    pub(super) async fn load(
        storage: &Storage,
        name: &BlobName,
        now: Timestamp,
        about: &ScheduleDescription,
    ) -> Result<Self, Error> {
        let document = document(storage, name);
        let describe = |found| Stored::described(found, about, now);
        let loaded = document.change(Known::Nothing, describe).await.map_err(unreadable)?;
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

    /// Changes the state, on condition that no other process has changed the progress of the schedule.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) if another process has changed it, or if the state was deleted.
    pub(super) async fn write(self, change: impl Fn(Stored) -> Stored) -> Result<Self, Error> {
        let known = self.version.value.clone();
        let edit = |found| Stored::led(found, &known, &change);
        let written = self.document.change(Known::Version(self.version), edit).await.map_err(unreadable)?;
        match written.version {
            Some(version) if written.result && written.is_latest => Self::new(self.document, version),
            _ => {
                let text = "another process has changed the progress of the schedule";
                Err(Error::new(ErrorKind::Conflict, text).with_retryable(true))
            }
        }
    }
}

/// Returns the error for a state that cannot be read or written.
pub(super) fn unreadable(error: StoreError) -> Error {
    if !is_damaged(&error) {
        return error.into();
    }
    Error::new(ErrorKind::Undecodable, "the state of a schedule is damaged; delete it").with_source(error)
}

/// Returns whether the error says that the blob is not a valid state of a schedule.
pub(super) fn is_damaged(error: &StoreError) -> bool {
    matches!(error.kind(), StoreErrorKind::Corrupt | StoreErrorKind::TooLarge)
}

fn damaged(name: &BlobName) -> Error {
    Error::new(ErrorKind::Undecodable, format!("the state of the schedule in `{name}` is damaged; delete it"))
}
