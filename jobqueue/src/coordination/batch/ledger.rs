//! The blobs of one batch. Each is written once and read by every process that ends a child.
//!
//! Every step can be repeated, and several processes may take it at once. A step that must happen once is a blob that
//! is created if absent, or a message whose duplicates do not run.

use std::time::Duration;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::claim::is_conflict;
use super::names::{BatchId, CHILDREN, FAN, container, group_size, is, width};
use crate::error::{Error, ErrorKind};
use crate::settings::Metadata;
use crate::storage::BlobName;
use crate::storage::{ETag, PutBlob, Storage, StoreErrorKind as K};

/// The maximum size of a marker or plan, in bytes.
pub(super) const MAX_BYTES: u64 = 32 * 1024 * 1024;
/// The metadata key on the marker of a failed child, so that a listing shows it.
pub(super) const FAILED: &str = "failed";
/// The maximum number of attempts of a request that the storage could not serve.
const TRIES: u32 = 5;

/// A sealed batch.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) children: u64,
    pub(super) queue: String,
    /// The text of the continuation's message.
    pub(super) text: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Marker {
    Done(Option<Box<RawValue>>),
    Failed {
        reason: String,
        detail: String,
    },
    /// A group whose children have all ended.
    Group,
}

#[derive(Debug)]
pub(super) struct Ledger<'a> {
    pub(super) storage: &'a Storage,
    pub(super) id: BatchId,
}

impl Ledger<'_> {
    /// Creates a blob if it is absent. Returns whether it is new, or was written by an earlier request whose answer
    /// was lost.
    pub(super) async fn create<T: Serialize>(&self, blob: &BlobName, value: &T) -> Result<bool, Error> {
        self.write(blob, value, PutBlob::if_absent()).await
    }

    pub(super) async fn replace<T: Serialize>(&self, blob: &BlobName, value: &T) -> Result<(), Error> {
        self.write(blob, value, PutBlob::new()).await.map(drop)
    }

    /// Writes a blob under the condition in `options`. Returns false if the condition is not met.
    pub(super) async fn write<T: Serialize>(
        &self,
        blob: &BlobName,
        value: &T,
        options: PutBlob,
    ) -> Result<bool, Error> {
        let data = json(value)?;
        for attempt in 1.. {
            match self.storage.blobs().put_blob(blob, data.clone(), options.clone()).await {
                Ok(_) => return Ok(true),
                Err(e) if is_conflict(&e) => return Ok(false),
                Err(e) if is(&e, K::ContainerNotFound) && attempt < TRIES => {
                    self.storage.blobs().create_container(blob.container()).await?;
                }
                Err(e) if e.is_retryable() && attempt < TRIES => pause(attempt, e.retry_after()).await,
                Err(e) => return Err(e.into()),
            }
        }
        Err(Error::new(ErrorKind::Storage, "writing the batch failed"))
    }

    pub(super) async fn read<T: DeserializeOwned>(&self, blob: &BlobName) -> Result<Option<T>, Error> {
        Ok(self.read_tagged(blob).await?.map(|(value, _)| value))
    }

    /// Reads a blob and the tag for changing it; `None` if it does not exist.
    pub(super) async fn read_tagged<T: DeserializeOwned>(
        &self,
        blob: &BlobName,
    ) -> Result<Option<(T, ETag)>, Error> {
        for attempt in 1.. {
            match self.storage.blobs().get_blob(blob, MAX_BYTES).await {
                Ok(found) => {
                    let text = "a blob of the batch is damaged; the batch cannot continue";
                    let value = serde_json::from_slice(&found.data)
                        .map_err(|e| Error::new(ErrorKind::Undecodable, text).with_source(e))?;
                    return Ok(Some((value, found.properties.etag)));
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

    /// Writes the plan, unless there is one. A listing shows the number of children.
    pub(super) async fn seal(&self, plan: &Plan) -> Result<(), Error> {
        let children = Metadata::new().with(CHILDREN, plan.children.to_string());
        let options = PutBlob::if_absent().with_metadata(children);
        self.write(&self.id.blob("plan")?, plan, options).await.map(drop)
    }

    /// Marks a child as ended, then the groups that this completes. Sends the continuation if the batch is complete.
    pub(super) async fn end_child(&self, index: u64, marker: &Marker) -> Result<(), Error> {
        let blob = self.id.marker(0, index)?;
        let mut options = PutBlob::if_absent();
        if matches!(marker, Marker::Failed { .. }) {
            options = options.with_metadata(Metadata::new().with(FAILED, "true"));
        }
        if !self.write(&blob, marker, options).await? && matches!(marker, Marker::Done(_)) {
            self.replace_failure(&blob, marker).await?;
        }
        self.climb(index).await
    }

    /// Replaces the failure of a child that was dead-lettered and is done after a redrive.
    async fn replace_failure(&self, blob: &BlobName, marker: &Marker) -> Result<(), Error> {
        match self.read_tagged::<Marker>(blob).await? {
            Some((Marker::Failed { .. }, tag)) => {
                self.write(blob, marker, PutBlob::if_match(tag)).await.map(drop)
            }
            _ => Ok(()),
        }
    }

    pub(super) async fn is_done(&self, index: u64) -> Result<bool, Error> {
        Ok(matches!(self.read(&self.id.marker(0, index)?).await?, Some(Marker::Done(_))))
    }

    /// Marks the groups above a marker as far as they are complete.
    pub(super) async fn climb(&self, index: u64) -> Result<(), Error> {
        let mut plan = None;
        let mut at = index;
        for level in 0.. {
            // Read after the marker at this level was written: if there is no plan yet, the process that seals the
            // batch later sees the marker.
            if plan.is_none() {
                plan = self.plan().await?;
            }
            let children = plan.as_ref().map(|plan| plan.children);
            if children.is_some_and(|children| index >= children) {
                return Ok(());
            }
            if let Some(plan) = &plan
                && width(plan.children, level) <= 1
            {
                return self.proceed(plan).await;
            }
            let group = at / FAN;
            if !self.is_complete(level, group, group_size(children, level, group)).await? {
                return Ok(());
            }
            self.create(&self.id.marker(level + 1, group)?, &Marker::Group).await?;
            at = group;
        }
        Ok(())
    }

    /// Marks the groups that only the sealing process can complete: the last group of each level, whose size is known
    /// only now.
    pub(super) async fn settle(&self, plan: &Plan) -> Result<(), Error> {
        if plan.children == 0 {
            return self.proceed(plan).await;
        }
        for level in 0.. {
            let width = width(plan.children, level);
            if width <= 1 {
                let top = self.is_complete(level, 0, 1).await?;
                return if top { self.proceed(plan).await } else { Ok(()) };
            }
            let group = (width - 1) / FAN;
            if self.is_complete(level, group, group_size(Some(plan.children), level, group)).await? {
                self.create(&self.id.marker(level + 1, group)?, &Marker::Group).await?;
            }
        }
        Ok(())
    }

    /// Returns whether the first `size` places of a group are all marked.
    async fn is_complete(&self, level: u32, group: u64, size: u64) -> Result<bool, Error> {
        let names = self.names(&self.id.group(level, group)).await?;
        let place = |name: &String| name.rsplit('/').next().and_then(|place| place.parse::<u64>().ok());
        let marked = names.iter().filter_map(place).filter(|place| *place < size).count();
        Ok(marked as u64 >= size)
    }

    /// Returns all blob names with a prefix.
    pub(super) async fn names(&self, prefix: &str) -> Result<Vec<String>, Error> {
        names(self.storage, prefix).await
    }
}

pub(super) async fn names(storage: &Storage, prefix: &str) -> Result<Vec<String>, Error> {
    let container = container()?;
    let mut all = Vec::new();
    let mut next: Option<String> = None;
    let mut attempt = 0;
    loop {
        attempt += 1;
        match storage.blobs().list_blobs(&container, prefix, next.as_deref()).await {
            Ok(page) => {
                all.extend(page.blobs.into_iter().map(|(name, _)| name));
                (next, attempt) = (page.next, 0);
                if next.is_none() {
                    return Ok(all);
                }
            }
            Err(e) if is(&e, K::ContainerNotFound) => return Ok(all),
            Err(e) if e.is_retryable() && attempt < TRIES => pause(attempt, e.retry_after()).await,
            Err(e) => return Err(e.into()),
        }
    }
}

fn json<T: Serialize>(value: &T) -> Result<Bytes, Error> {
    let data = serde_json::to_vec(value);
    data.map(Bytes::from)
        .map_err(|e| Error::new(ErrorKind::Invalid, "a result cannot be written as JSON").with_source(e))
}

async fn pause(attempt: u32, asked: Option<Duration>) {
    tokio::time::sleep(asked.unwrap_or(Duration::from_millis(100) * attempt)).await;
}
