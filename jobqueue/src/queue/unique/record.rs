//! The record of one key, and the conditional writes that change it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::{Error, ErrorKind};
use crate::name::{BlobName, ContainerName};
use crate::queue::queue_core::QueueCore;
use crate::queue::unreceived::{Unreceived, millis};
use crate::settings::metadata::Metadata;
use crate::storage::{BlobStore, Condition, ETag, MessageRef, PutBlob, StoreError, StoreErrorKind};

/// The container of the records.
const CONTAINER: &str = "jobqueue-unique";
const MAX_BYTES: u64 = 4096;

/// Who has sent, and until when that holds. Times are milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// The job's id.
    pub(super) id: String,
    /// Whether the message is stored.
    sent: bool,
    /// Until when the sender may take to send.
    pending_until: u64,
    /// The end of the window.
    until: u64,
    /// The message as it was stored, so that it can be taken back; `None` if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message: Option<Unreceived>,
    /// Whether the message has a place in the order of its key, to be given up when it is taken back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) in_order: bool,
}

impl Record {
    pub(super) fn pending(id: String, now: SystemTime, pending: Duration, window: Duration) -> Self {
        let (pending_until, until) = (millis(now + pending), millis(now + window));
        Self { id, sent: false, pending_until, until, message: None, in_order: false }
    }

    /// The message is stored, and can be taken back if it is known.
    pub(super) fn into_sent(self, message: Option<&MessageRef>) -> Self {
        Self { sent: true, message: message.map(Unreceived::from), ..self }
    }

    /// Whether the message has a place in the order of its key.
    pub(super) fn in_order(self, in_order: bool) -> Self {
        Self { in_order, ..self }
    }

    /// There is no message: free for the next.
    pub(super) fn into_void(self) -> Self {
        Self { sent: true, until: 0, message: None, ..self }
    }
}

/// What came of claiming a key.
#[derive(Debug)]
pub(super) enum Claim {
    /// To be sent under the record's id.
    Owned(Record, ETag),
    /// Sent by another.
    Joined { id: String },
}

/// What is known under a key when something is to be taken back.
#[derive(Debug)]
pub(super) enum Standing {
    /// It was sent; others wait now as they do for a sender.
    Held(Record, ETag, MessageRef),
    /// There is nothing that could be taken back.
    Nothing,
    /// Another is at it.
    Busy,
}

#[derive(Debug)]
pub(super) struct Records {
    blobs: Arc<dyn BlobStore>,
    name: BlobName,
}

impl Records {
    pub(super) fn new(core: &QueueCore, kind: &str, key: &str) -> Result<Self, Error> {
        let mut hash = Sha256::new();
        for part in [kind, key] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let digest: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        let name = BlobName::new(ContainerName::new(CONTAINER)?, format!("{}/{digest}", core.name))?;
        Ok(Self { blobs: Arc::clone(core.storage.blobs()), name })
    }

    /// Tries to claim; `None` if another is about to send or was faster.
    pub(super) async fn claim(&self, mine: Record, now: SystemTime) -> Result<Option<Claim>, Error> {
        match self.write(&mine, Condition::IfAbsent).await {
            Ok(tag) => return Ok(Some(Claim::Owned(mine, tag))),
            Err(e)
                if matches!(e.kind(), StoreErrorKind::BlobAlreadyExists | StoreErrorKind::LeaseIdMissing) => {
            }
            // Perhaps written: reading tells.
            Err(e) if e.is_ambiguous() => {}
            Err(e) => return Err(unavailable(e)),
        }
        let Some((found, tag)) = self.read().await? else { return Ok(None) };
        let now = millis(now);
        if !found.sent && found.id == mine.id {
            return Ok(Some(Claim::Owned(found, tag)));
        }
        let next = match (found.sent, now < found.until, now < found.pending_until) {
            (true, true, _) => return Ok(Some(Claim::Joined { id: found.id })),
            (false, _, true) => return Ok(None),
            // Its sender died; whether it has sent is unknown, so the id stays.
            (false, _, false) => Record { id: found.id, ..mine },
            (true, false, _) => mine,
        };
        match self.write(&next, Condition::IfMatch(tag)).await {
            Ok(tag) => Ok(Some(Claim::Owned(next, tag))),
            // A sweep may hold the record for a moment, and remove it.
            Err(e)
                if e.is_ambiguous()
                    || matches!(
                        e.kind(),
                        StoreErrorKind::ConditionNotMet
                            | StoreErrorKind::LeaseIdMissing
                            | StoreErrorKind::BlobNotFound
                    ) =>
            {
                Ok(None)
            }
            Err(e) => Err(unavailable(e)),
        }
    }

    /// Holds a key under which something was sent, for at most `pending`.
    pub(super) async fn hold(&self, now: SystemTime, pending: Duration) -> Result<Standing, Error> {
        let Some((found, tag)) = self.read().await? else { return Ok(Standing::Nothing) };
        let (this, until) = (millis(now), millis(now + pending));
        match (found.sent, this < found.until, this < found.pending_until) {
            (true, true, _) => {}
            (false, _, true) => return Ok(Standing::Busy),
            (true, false, _) | (false, _, false) => return Ok(Standing::Nothing),
        }
        let Some(stored) = found.message.clone() else { return Ok(Standing::Nothing) };
        let held = Record { sent: false, pending_until: until, ..found };
        match self.write(&held, Condition::IfMatch(tag)).await {
            Ok(tag) => Ok(Standing::Held(held, tag, stored.message())),
            Err(e)
                if matches!(e.kind(), StoreErrorKind::ConditionNotMet | StoreErrorKind::LeaseIdMissing) =>
            {
                Ok(Standing::Busy)
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Says what came of it. If that fails the record stays pending, and the next sender sends under the same id.
    pub(super) async fn finish(&self, record: Record, tag: ETag) {
        for _ in 0..2 {
            match self.write(&record, Condition::IfMatch(tag.clone())).await {
                Ok(_) => return,
                Err(e) if e.is_ambiguous() || e.is_retryable() => {}
                Err(error) => {
                    tracing::debug!(%error, "the record of unique work was changed by another");
                    return;
                }
            }
        }
        tracing::warn!(record = %self.name, "unique work was sent and could not be recorded; it may be sent again under the same id");
    }

    async fn write(&self, record: &Record, condition: Condition) -> Result<ETag, StoreError> {
        let data = serde_json::to_vec(record).map_err(|e| {
            StoreError::new(StoreErrorKind::InvalidInput, "write unique record", &self.name).with_source(e)
        })?;
        // For a sweep: when the record means nothing any more.
        let expires = (record.until.max(record.pending_until) / 1000 + 1).to_string();
        let metadata = Metadata::new().with("expires", expires);
        let options = PutBlob::new().with_condition(condition).with_metadata(metadata);
        let data = Bytes::from(data);
        match self.blobs.put_blob(&self.name, data.clone(), options.clone()).await {
            Err(e) if e.kind() == StoreErrorKind::ContainerNotFound => {
                self.blobs.create_container(self.name.container()).await?;
                Ok(self.blobs.put_blob(&self.name, data, options).await?.etag)
            }
            written => Ok(written?.etag),
        }
    }

    async fn read(&self) -> Result<Option<(Record, ETag)>, Error> {
        let blob = match self.blobs.get_blob(&self.name, MAX_BYTES).await {
            Ok(blob) => blob,
            Err(e)
                if matches!(e.kind(), StoreErrorKind::BlobNotFound | StoreErrorKind::ContainerNotFound) =>
            {
                return Ok(None);
            }
            Err(e) => return Err(unavailable(e)),
        };
        let record = serde_json::from_slice(&blob.data).map_err(|e| {
            let text = format!("the record `{}` of unique work is damaged; delete it", self.name);
            Error::new(ErrorKind::Undecodable, text).with_source(e)
        })?;
        Ok(Some((record, blob.properties.etag)))
    }
}

fn unavailable(error: StoreError) -> Error {
    let retryable = error.is_retryable();
    Error::new(ErrorKind::Rejected, "nothing was sent: the key of unique work could not be claimed")
        .with_retryable(retryable)
        .with_source(error)
}
