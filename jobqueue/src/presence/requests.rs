//! Requests to cancel jobs, and the answers to them. Each is a blob. A worker reads the requests when its
//! record counts one more notification.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::{Error, ErrorKind};
use crate::job::outcome::Outcome;
use crate::storage::{BlobName, ContainerName};
use crate::storage::{
    BlobProperties, BlobStore, Listed, PutBlob, StoreErrorKind as Kind, delete_if_present, list_all,
    put_creating,
};
use jobqueue_storage::fast::hex::to_hex;

const CONTAINER: &str = "jobqueue-cancellations";
/// The most bytes of a request or an answer.
const MAX_BYTES: u64 = 16 * 1024;
/// The most requests that are read at the same time.
const READS_AT_ONCE: usize = 32;
/// The time after which a request and its answer expire. It is longer than a message can be delayed without a hop.
const LIFE: Duration = Duration::from_secs(30 * 86_400);

/// A request to cancel a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelRequest {
    /// The queue of the job.
    pub queue: String,
    /// The id of the job.
    pub id: String,
    /// The sender of the job; `None` for the job of any sender.
    #[serde(default)]
    pub source: Option<String>,
    /// The operator.
    pub by: String,
}

/// A request as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRequest {
    /// The request.
    pub request: CancelRequest,
    /// The time at which it was made, by the storage's clock.
    pub made: SystemTime,
}

/// The way a job ended after a request to cancel it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The job is a dead letter with the reason `cancelled`.
    Cancelled,
    /// The job completed before it noticed the request, or in spite of it.
    Completed,
    /// The job is a dead letter for another reason.
    DeadLettered,
}

impl Answer {
    /// Returns the answer for an outcome; `None` if the job may run again.
    pub(super) fn of(outcome: &Outcome) -> Option<Self> {
        match outcome {
            // A duplicate is deleted because the job was done before.
            Outcome::Completed | Outcome::CompletedUncertain | Outcome::Duplicate => Some(Self::Completed),
            Outcome::DeadLettered(reason) if *reason == crate::job::outcome::Reason::CANCELLED => {
                Some(Self::Cancelled)
            }
            Outcome::DeadLettered(_) => Some(Self::DeadLettered),
            _ => None,
        }
    }
}

/// The requests in a storage, and their answers.
#[derive(Debug, Clone)]
pub struct Requests {
    blobs: Arc<dyn BlobStore>,
}

impl Requests {
    /// Returns the requests in these blobs.
    pub fn new(blobs: Arc<dyn BlobStore>) -> Self {
        Self { blobs }
    }

    /// Stores a request. It replaces an earlier one for the same job of the same sender.
    pub async fn make(&self, request: &CancelRequest) -> Result<(), Error> {
        let answer = request.name("answers")?;
        // That of an earlier life of the job.
        delete_if_present(&*self.blobs, &answer).await?;
        self.put(&request.name("requests")?, request).await
    }

    /// Stores the answer to a request, which stays: a repeated send may have left another message of the job. A completion is not
    /// replaced by the end of that message.
    pub(super) async fn answer(&self, request: &CancelRequest, answer: Answer) -> Result<(), Error> {
        let name = request.name("answers")?;
        match self.get(&name).await? {
            Some((Answer::Completed, _)) => Ok(()),
            _ => self.put(&name, &answer).await,
        }
    }

    /// Returns the request for a job, and the answer with its time, if they exist. Without a sender those of any sender's job,
    /// which costs two listings.
    pub async fn of(
        &self,
        queue: &str,
        id: &str,
        source: Option<&str>,
    ) -> Result<(Option<StoredRequest>, Option<(Answer, SystemTime)>), Error> {
        // In this order: a worker answers a request that is there.
        let request = self.newest::<CancelRequest>("requests", queue, id, source).await?;
        let answer = self.newest::<Answer>("answers", queue, id, source).await?;
        let stored = request.map(|(request, made)| StoredRequest { request, made });
        Ok((stored, answer))
    }

    /// Returns the newest record of a job with its time: one for its sender, or one for the job of any sender.
    async fn newest<T: serde::de::DeserializeOwned>(
        &self,
        folder: &str,
        queue: &str,
        id: &str,
        source: Option<&str>,
    ) -> Result<Option<(T, SystemTime)>, Error> {
        let blobs = match source {
            Some(_) => vec![name(folder, queue, id, source)?, name(folder, queue, id, None)?],
            None => {
                let listed = self.list(name(folder, queue, id, None)?.name()).await?.blobs;
                listed.into_iter().map(|(blob, _)| blob).collect()
            }
        };
        let mut newest = None::<(T, SystemTime)>;
        for blob in blobs {
            if let Some((value, properties)) = self.get(&blob).await?
                && newest.as_ref().is_none_or(|(_, other)| *other <= properties.modified)
            {
                newest = Some((value, properties.modified));
            }
        }
        Ok(newest)
    }

    /// Returns all requests for jobs of these queues. Costs a listing, and a request for each that is not `known`.
    ///
    /// There is no maximum: a job whose request is left out would run although it is cancelled.
    pub(super) async fn all(
        &self,
        queues: &HashSet<&str>,
        known: &BTreeMap<BlobName, StoredRequest>,
    ) -> Result<BTreeMap<BlobName, StoredRequest>, Error> {
        let listed = self.list("requests/").await?.blobs.into_iter();
        let ours =
            listed.filter(|(blob, _)| blob.name().split('/').nth(1).is_some_and(|of| queues.contains(of)));
        let read = ours.map(|(blob, BlobProperties { modified: made, .. })| async move {
            let stored = match known.get(&blob).filter(|stored| stored.made == made) {
                Some(stored) => Some(stored.clone()),
                None => self.get(&blob).await?.map(|(request, _)| StoredRequest { request, made }),
            };
            Ok::<_, Error>(stored.map(|stored| (blob, stored)))
        });
        let read: Vec<_> = stream::iter(read).buffered(READS_AT_ONCE).try_collect().await?;
        Ok(read.into_iter().flatten().collect())
    }

    /// Removes expired requests and answers, by the storage's time, or by `now` if it does not tell it.
    pub(super) async fn sweep(&self, now: SystemTime) -> Result<(), Error> {
        for prefix in ["requests/", "answers/"] {
            let listed = self.list(prefix).await?;
            let now = listed.now.unwrap_or(now);
            for (blob, properties) in listed.blobs {
                if now.duration_since(properties.modified).is_ok_and(|age| age > LIFE) {
                    self.blobs.delete_blob(&blob, None).await?;
                }
            }
        }
        Ok(())
    }

    async fn list(&self, prefix: &str) -> Result<Listed, Error> {
        Ok(list_all(&*self.blobs, &ContainerName::new(CONTAINER)?, prefix).await?)
    }

    async fn put<T: Serialize>(&self, blob: &BlobName, value: &T) -> Result<(), Error> {
        let json = serde_json::to_vec(value);
        let json =
            json.map_err(|e| Error::new(ErrorKind::Invalid, "the request has no JSON form").with_source(e))?;
        if json.len() as u64 > MAX_BYTES {
            return Err(Error::new(ErrorKind::Invalid, "the id of the job, or its sender, is too long"));
        }
        put_creating(&*self.blobs, blob, Bytes::from(json), PutBlob::new()).await?;
        Ok(())
    }

    /// Reads a blob; `None` if there is none, or if another program has written it.
    async fn get<T: serde::de::DeserializeOwned>(
        &self,
        blob: &BlobName,
    ) -> Result<Option<(T, BlobProperties)>, Error> {
        match self.blobs.get_blob(blob, MAX_BYTES).await {
            Ok(found) => Ok(serde_json::from_slice(&found.data).ok().map(|value| (value, found.properties))),
            Err(e) if e.is_missing_blob() || e.kind() == Kind::TooLarge => Ok(None),
            Err(e) => Err(e.into()),
        }
    }
}

impl CancelRequest {
    fn name(&self, folder: &str) -> Result<BlobName, Error> {
        name(folder, &self.queue, &self.id, self.source.as_deref())
    }
}

/// Returns the name of a blob for a job. Producers choose ids and senders, so the name has digests of them; that of the id is first, so
/// that the jobs of all senders with one id are listed together.
fn name(folder: &str, queue: &str, id: &str, source: Option<&str>) -> Result<BlobName, Error> {
    let digest = |text: &str| -> String { to_hex(&Sha256::digest(text)) };
    let sender = source.map(|source| format!("-{}", digest(source))).unwrap_or_default();
    let name = format!("{folder}/{queue}/{}{sender}", digest(id));
    Ok(BlobName::new(ContainerName::new(CONTAINER)?, name)?)
}
