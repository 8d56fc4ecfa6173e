//! The blobs of one batch: written once each, read by whoever ends something.
//!
//! Every step may be repeated and may be done by several at once; what must happen once is a blob created if absent, or
//! a message whose duplicates are not admitted.

use std::time::Duration;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::names::{BatchId, FAN, container, group_size, is, width};
use crate::error::{Error, ErrorKind};
use crate::name::{BlobName, QueueName};
use crate::settings::metadata::Metadata;
use crate::storage::{MessageId, PutBlob, PutMessage, Storage, StoreErrorKind as K};

/// The most bytes of a marker or plan.
const MAX_BYTES: u64 = 32 * 1024 * 1024;
/// Metadata of the marker of a child that failed, so that a listing tells.
pub(super) const FAILED: &str = "failed";
/// How often a request is tried that the storage could not serve.
const TRIES: u32 = 5;

/// What a sealed batch is.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) children: u64,
    /// Where the continuation goes.
    pub(super) queue: String,
    /// The continuation as it is put.
    pub(super) text: String,
}

/// How a child ended.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Marker {
    Done(Option<Box<RawValue>>),
    Failed {
        reason: String,
        detail: String,
    },
    /// A group: all below it is done.
    Group,
}

#[derive(Debug)]
pub(super) struct Ledger<'a> {
    pub(super) storage: &'a Storage,
    pub(super) id: BatchId,
}

impl Ledger<'_> {
    /// Writes a blob if there is none; tells whether it is new (or was written by a request that got no answer).
    pub(super) async fn create<T: Serialize>(&self, blob: &BlobName, value: &T) -> Result<bool, Error> {
        self.write(blob, json(value)?, &PutBlob::if_absent()).await
    }

    pub(super) async fn replace<T: Serialize>(&self, blob: &BlobName, value: &T) -> Result<(), Error> {
        self.write(blob, json(value)?, &PutBlob::new()).await.map(drop)
    }

    async fn write(&self, blob: &BlobName, data: Bytes, options: &PutBlob) -> Result<bool, Error> {
        for attempt in 1.. {
            match self.storage.blobs().put_blob(blob, data.clone(), options.clone()).await {
                Ok(_) => return Ok(true),
                Err(e) if is(&e, K::BlobAlreadyExists) => return Ok(false),
                Err(e) if is(&e, K::ContainerNotFound) && attempt < TRIES => {
                    self.storage.blobs().create_container(blob.container()).await?;
                }
                Err(e) if e.is_retryable() && attempt < TRIES => pause(attempt, e.retry_after()).await,
                Err(e) => return Err(e.into()),
            }
        }
        Err(Error::new(ErrorKind::Storage, "the batch could not be written"))
    }

    pub(super) async fn read<T: DeserializeOwned>(&self, blob: &BlobName) -> Result<Option<T>, Error> {
        for attempt in 1.. {
            match self.storage.blobs().get_blob(blob, MAX_BYTES).await {
                Ok(found) => {
                    let read = serde_json::from_slice(&found.data);
                    let text = "a blob of the batch is not what was written; the batch cannot go on";
                    return read
                        .map(Some)
                        .map_err(|e| Error::new(ErrorKind::Undecodable, text).with_source(e));
                }
                Err(e) if is(&e, K::BlobNotFound) || is(&e, K::ContainerNotFound) => return Ok(None),
                Err(e) if e.is_retryable() && attempt < TRIES => pause(attempt, e.retry_after()).await,
                Err(e) => return Err(e.into()),
            }
        }
        Ok(None)
    }

    pub(super) async fn remove(&self, blob: &BlobName) -> Result<(), Error> {
        match self.storage.blobs().delete_blob(blob, None).await {
            Err(e) if !is(&e, K::BlobNotFound) && !is(&e, K::ContainerNotFound) => Err(e.into()),
            _ => Ok(()),
        }
    }

    pub(super) async fn plan(&self) -> Result<Option<Plan>, Error> {
        self.read(&self.id.blob("plan")?).await
    }

    /// Makes `message` the one that counts for `who`, unless another one does already.
    pub(super) async fn elect(&self, who: &str, message: &MessageId) -> Result<bool, Error> {
        let blob = self.id.blob(&format!("claim/{who}"))?;
        if self.create(&blob, &message.as_str()).await? {
            return Ok(true);
        }
        let elected: Option<String> = self.read(&blob).await?;
        Ok(elected.is_none_or(|elected| elected == message.as_str()))
    }

    /// Lets another message count for `who`: this one goes to the dead letters and comes back as a new one.
    pub(super) async fn step_down(&self, who: &str) -> Result<(), Error> {
        self.remove(&self.id.blob(&format!("claim/{who}"))?).await
    }

    /// Marks a child as ended, the groups that this completes, and sends the continuation if it completes all.
    pub(super) async fn end_child(&self, index: u64, marker: &Marker) -> Result<(), Error> {
        let mut options = PutBlob::if_absent();
        if matches!(marker, Marker::Failed { .. }) {
            options = options.with_metadata(Metadata::new().with(FAILED, "true"));
        }
        self.write(&self.id.marker(0, index)?, json(marker)?, &options).await?;
        self.climb(index).await
    }

    /// Goes up from a marker as far as groups are complete.
    async fn climb(&self, index: u64) -> Result<(), Error> {
        let mut plan = None;
        let mut at = index;
        for level in 0.. {
            // Read after the marker at this level is written: if there is no plan yet, whoever seals the batch later
            // sees the marker.
            if plan.is_none() {
                plan = self.plan().await?;
            }
            let children = plan.as_ref().map(|plan| plan.children);
            if let Some(plan) = &plan
                && width(plan.children, level) <= 1
            {
                return self.proceed(plan).await;
            }
            let group = at / FAN;
            if self.marked(level, group).await? < group_size(children, level, group) {
                return Ok(());
            }
            self.create(&self.id.marker(level + 1, group)?, &Marker::Group).await?;
            at = group;
        }
        Ok(())
    }

    /// What only the one who seals can see: the last group of each level, whose size nobody knew before.
    pub(super) async fn settle(&self, plan: &Plan) -> Result<(), Error> {
        if plan.children == 0 {
            return self.proceed(plan).await;
        }
        for level in 0.. {
            let width = width(plan.children, level);
            if width <= 1 {
                let top = self.id.group(level, 0);
                return if self.names(&top).await?.is_empty() { Ok(()) } else { self.proceed(plan).await };
            }
            let group = (width - 1) / FAN;
            if self.marked(level, group).await? >= group_size(Some(plan.children), level, group) {
                self.create(&self.id.marker(level + 1, group)?, &Marker::Group).await?;
            }
        }
        Ok(())
    }

    async fn marked(&self, level: u32, group: u64) -> Result<u64, Error> {
        Ok(self.names(&self.id.group(level, group)).await?.len() as u64)
    }

    /// All names below a prefix.
    pub(super) async fn names(&self, prefix: &str) -> Result<Vec<String>, Error> {
        names(self.storage, prefix).await
    }

    /// Sends the continuation. Twice if the process dies between the two steps, or if two children end at once; then
    /// one of the two messages is elected when they are delivered, and the other deleted.
    async fn proceed(&self, plan: &Plan) -> Result<(), Error> {
        let sent = self.id.blob("sent")?;
        if self.read::<bool>(&sent).await?.is_some() {
            return Ok(());
        }
        let queue = QueueName::new(&plan.queue)?;
        self.storage.queues().put(&queue, PutMessage::new(plan.text.clone())).await?;
        self.create(&sent, &true).await.map(drop)
    }
}

pub(super) async fn names(storage: &Storage, prefix: &str) -> Result<Vec<String>, Error> {
    let container = container()?;
    let mut all = Vec::new();
    let mut next: Option<String> = None;
    loop {
        match storage.blobs().list_blobs(&container, prefix, next.as_deref()).await {
            Ok(page) => {
                all.extend(page.blobs.into_iter().map(|(name, _)| name));
                next = page.next;
            }
            Err(e) if is(&e, K::ContainerNotFound) => return Ok(all),
            Err(e) => return Err(e.into()),
        }
        if next.is_none() {
            return Ok(all);
        }
    }
}

fn json<T: Serialize>(value: &T) -> Result<Bytes, Error> {
    let data = serde_json::to_vec(value);
    data.map(Bytes::from)
        .map_err(|e| Error::new(ErrorKind::Invalid, "a result has no JSON form").with_source(e))
}

async fn pause(attempt: u32, asked: Option<Duration>) {
    tokio::time::sleep(asked.unwrap_or(Duration::from_millis(100) * attempt)).await;
}
