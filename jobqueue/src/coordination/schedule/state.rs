//! The progress of a schedule: a small blob that only a process with its latest version can change.

use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind};
use crate::name::{BlobName, ContainerName, NameError};
use crate::storage::{BlobStore, Condition, ETag, PutBlob, StoreErrorKind};

const MAX_BYTES: u64 = 4096;

pub(super) fn name(schedule: &str) -> Result<BlobName, NameError> {
    BlobName::new(ContainerName::new(super::CONTAINER)?, schedule)
}

/// The stored form. Times are milliseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Stored {
    /// Every slot up to this time is done.
    done: i64,
    /// A slot that is about to be sent.
    pending: Option<i64>,
}

/// The state as it was last read or written.
#[derive(Debug)]
pub(super) struct State {
    blobs: Arc<dyn BlobStore>,
    name: BlobName,
    tag: ETag,
    pub(super) done: Timestamp,
    pub(super) pending: Option<Timestamp>,
}

impl State {
    /// Reads the state. A new schedule begins `now`.
    pub(super) async fn load(
        blobs: &Arc<dyn BlobStore>,
        name: &BlobName,
        now: Timestamp,
    ) -> Result<Self, Error> {
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
                    return Ok(Self { blobs, name, tag, done: moment(stored.done)?, pending });
                }
                Err(e) if e.kind() == StoreErrorKind::ContainerNotFound => {
                    blobs.create_container(name.container()).await?;
                }
                Err(e) if e.kind() == StoreErrorKind::BlobNotFound => {
                    let stored = Stored { done: now.as_millisecond(), pending: None };
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

    async fn write(&mut self, done: Timestamp, pending: Option<Timestamp>) -> Result<(), Error> {
        let stored =
            Stored { done: done.as_millisecond(), pending: pending.map(|slot| slot.as_millisecond()) };
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
