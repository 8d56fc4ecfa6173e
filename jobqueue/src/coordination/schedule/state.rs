//! The progress of a schedule: a small blob that only a process with its latest version can change.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::timetable::Timetable;
use crate::error::{Error, ErrorKind};
use crate::name::{BlobName, ContainerName, NameError};
use crate::storage::{BlobStore, Condition, ETag, PutBlob, StoreErrorKind};

pub(super) const MAX_BYTES: u64 = 4096;

pub(super) fn name(schedule: &str) -> Result<BlobName, NameError> {
    BlobName::new(ContainerName::new(super::CONTAINER)?, schedule)
}

/// The stored form. Times are milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stored {
    /// Every slot up to this time is done.
    pub(super) done: i64,
    /// A slot that is about to be sent.
    pub(super) pending: Option<i64>,
    /// What the schedule sends and when, for operators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) about: Option<About>,
    /// True if an operator has paused the schedule.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) paused: bool,
    /// The time at which an operator has asked for a job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) triggered: Option<i64>,
}

/// What a schedule sends and when.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct About {
    pub(crate) queue: Option<String>,
    pub(crate) kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cron: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) zone: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) every_ms: Option<i64>,
}

impl About {
    /// Returns the timetable, if it can be read.
    pub(super) fn timetable(&self) -> Option<Timetable> {
        match (&self.cron, &self.zone, self.every_ms) {
            (Some(cron), Some(zone), _) => Timetable::cron(cron, zone).ok(),
            (_, _, Some(millis)) => Timetable::every(Duration::from_millis(u64::try_from(millis).ok()?)).ok(),
            _ => None,
        }
    }

    /// Returns whether a state has room for it.
    fn fits(&self) -> bool {
        serde_json::to_vec(self).is_ok_and(|json| json.len() as u64 <= MAX_BYTES / 2)
    }
}

/// The state as it was last read or written.
#[derive(Debug)]
pub(super) struct State {
    blobs: Arc<dyn BlobStore>,
    name: BlobName,
    tag: ETag,
    pub(super) done: Timestamp,
    pub(super) pending: Option<Timestamp>,
    about: Option<About>,
    pub(super) paused: bool,
    pub(super) triggered: Option<Timestamp>,
}

impl State {
    /// Reads the state. A new schedule begins `now`. Writes down what the schedule is, if the state says something else.
    pub(super) async fn load(
        blobs: &Arc<dyn BlobStore>,
        name: &BlobName,
        now: Timestamp,
        about: &About,
    ) -> Result<Self, Error> {
        let about = Some(about).filter(|about| about.fits()).cloned();
        for _ in 0..4 {
            match blobs.get_blob(name, MAX_BYTES).await {
                Ok(blob) => {
                    let stored: Stored =
                        serde_json::from_slice(&blob.data).map_err(|e| damaged(name).with_source(e))?;
                    let moment = |millis| {
                        Timestamp::from_millisecond(millis).map_err(|e| damaged(name).with_source(e))
                    };
                    let pending = stored.pending.map(moment).transpose()?;
                    let (blobs, name, tag) = (Arc::clone(blobs), name.clone(), blob.properties.etag);
                    let (done, paused) = (moment(stored.done)?, stored.paused);
                    let triggered = stored.triggered.map(moment).transpose()?;
                    let is_told = stored.about == about;
                    let mut state = Self { blobs, name, tag, done, pending, about, paused, triggered };
                    if !is_told {
                        state.write(done, pending).await?;
                    }
                    return Ok(state);
                }
                Err(e) if e.kind() == StoreErrorKind::ContainerNotFound => {
                    blobs.create_container(name.container()).await?;
                }
                Err(e) if e.kind() == StoreErrorKind::BlobNotFound => {
                    let (done, about) = (now.as_millisecond(), about.clone());
                    let stored = Stored { done, pending: None, about, paused: false, triggered: None };
                    match blobs.put_blob(name, encode(stored)?, PutBlob::if_absent()).await {
                        Err(e) if e.kind() != StoreErrorKind::BlobAlreadyExists && !e.is_ambiguous() => {
                            return Err(e.into());
                        }
                        _ => {}
                    }
                }
                Err(e) => return Err(e.into()),
            }
        }
        Err(Error::new(ErrorKind::Storage, "the state of a schedule keeps being deleted")
            .with_retryable(true))
    }

    /// Records that `slot` is about to be sent.
    pub(super) async fn begin(&mut self, slot: Timestamp) -> Result<(), Error> {
        self.write(self.done, Some(slot)).await
    }

    /// Records that everything up to `slot` is done.
    pub(super) async fn finish(&mut self, slot: Timestamp) -> Result<(), Error> {
        self.write(slot.max(self.done), None).await
    }

    /// Records that the job that an operator has asked for was sent.
    pub(super) async fn triggered(&mut self) -> Result<(), Error> {
        self.triggered = None;
        self.write(self.done, self.pending).await
    }

    async fn write(&mut self, done: Timestamp, pending: Option<Timestamp>) -> Result<(), Error> {
        let stored = Stored {
            done: done.as_millisecond(),
            pending: pending.map(Timestamp::as_millisecond),
            about: self.about.clone(),
            paused: self.paused,
            triggered: self.triggered.map(Timestamp::as_millisecond),
        };
        let options = PutBlob::new().with_condition(Condition::IfMatch(self.tag.clone()));
        self.tag = self.blobs.put_blob(&self.name, encode(stored)?, options).await?.etag;
        (self.done, self.pending) = (done, pending);
        Ok(())
    }
}

fn encode(stored: Stored) -> Result<Bytes, Error> {
    let encoded = serde_json::to_vec(&stored);
    let failed =
        |e| Error::new(ErrorKind::Invalid, "the state of a schedule cannot be written").with_source(e);
    encoded.map(Bytes::from).map_err(failed)
}

fn damaged(name: &BlobName) -> Error {
    Error::new(ErrorKind::Undecodable, format!("the state of the schedule in `{name}` is damaged; delete it"))
}
