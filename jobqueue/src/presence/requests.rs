//! Requests to cancel jobs, and the answers to them. Each request and each answer is a blob. A worker reads
//! the requests when its record counts one more notification.
//!
//! | state of a job | an operator requests | a worker answers `Cancelled` or `DeadLettered` | a worker answers `Completed` |
//! |---|---|---|---|
//! | none | → requested | – | – |
//! | requested | → requested, by this operator and at this time | → answered so | → completed |
//! | answered so | → requested: the operator removes the answer first | → answered so: another message of the job has ended | → completed |
//! | completed | → requested: the operator removes the answer first | stays completed | stays completed |
//!
//! A sweep removes requests and answers after 30 days. If the operator's process dies between the removal of
//! an answer and the request, the operator repeats the request. A worker that did not get the reply to its
//! answer writes the same answer again.

use std::collections::BTreeMap;
use std::future::ready;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::document::rounding;
use super::store::readable;
use crate::error::{Error, ErrorKind};
use crate::job::outcome::{Outcome, Reason, printable};
use crate::json_blob::{Edit, JsonBlob, Known, Version};
use crate::runtime::Runtime;
use crate::storage::{
    BlobName, BlobProperties, BlobStore, ContainerName, Listed, Metadata, StoreErrorKind as Kind, Tries,
    delete_if_present, list_all,
};
use jobqueue_storage::fast::hex::{read_hex, to_hex};

const CONTAINER: &str = "jobqueue-cancellations";
/// The maximum size in bytes of a request or an answer.
const MAX_BYTES: u64 = 16 * 1024;
/// The metadata key of the operator, whose UTF-8 bytes are in hexadecimal, so that a listing names the
/// operator.
const OPERATOR: &str = "by";
const MAX_OPERATOR_CHARS: usize = 200;
/// The maximum number of concurrent listings, answers or removals.
pub(super) const MAX_CONCURRENT_CALLS: usize = 32;
/// The time after which a request and its answer expire. It is longer than a message can be delayed without a
/// hop. It bounds the number of requests for jobs that do not exist. A pause of a queue may outlast it.
const REQUEST_LIFE: Duration = Duration::from_secs(30 * 86_400);

/// A request to cancel a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelRequest {
    /// The queue of the job.
    pub queue: String,
    /// The id of the job.
    pub id: String,
    /// The sender of the job; `None` for a job of any sender.
    #[serde(default)]
    pub source: Option<String>,
    /// The operator.
    pub by: String,
}

/// A request, as far as a listing shows it.
#[derive(Debug)]
pub(super) struct ListedRequest {
    /// The time of the request, by the storage's clock.
    pub(super) made: SystemTime,
    /// The operator, if the request names one.
    pub(super) by: Option<String>,
}

/// The requests of several queues, by queue.
pub(super) type RequestsByQueue = BTreeMap<String, QueueRequests>;

/// The requests of a queue, by the key of the job.
#[derive(Debug, Default)]
pub(super) struct QueueRequests(BTreeMap<String, ListedRequest>);

impl QueueRequests {
    /// Returns the request to cancel a job of this sender or of any sender, and its key. Ignores a request
    /// from before the insertion of the message: it concerned an earlier life of the job, for example before
    /// a redrive.
    pub(super) fn find(
        &self,
        id: &str,
        source: &str,
        inserted: SystemTime,
    ) -> Option<(String, &ListedRequest)> {
        [Some(source), None].into_iter().find_map(|source| {
            let key = job_key(id, source);
            let found = self.0.get(&key).filter(|request| is_of_this_life(request.made, inserted))?;
            Some((key, found))
        })
    }
}

/// Returns whether a request concerns the message that was inserted at `inserted`, and not an earlier life of
/// the job. Allows for rounding: storages round both times, in different ways.
pub fn is_of_this_life(made: SystemTime, inserted: SystemTime) -> bool {
    inserted <= made + rounding(made)
}

/// A request in the storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRequest {
    /// The request.
    pub request: CancelRequest,
    /// The time of the request, by the storage's clock.
    pub made: SystemTime,
}

/// The way a job ended after a request to cancel it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The job is a dead letter with the reason `cancelled`, or was cancelled by its sender.
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
            Outcome::DeadLettered(reason) => Some(Self::of_reason(reason)),
            _ => None,
        }
    }

    pub(super) fn of_reason(reason: &Reason) -> Self {
        if *reason == Reason::CANCELLED { Self::Cancelled } else { Self::DeadLettered }
    }

    /// Decides whether this answer replaces the stored one: a completion stays.
    fn after(self, found: Option<Self>) -> Edit<Self, ()> {
        if found == Some(Self::Completed) { Edit::Keep(()) } else { Edit::Write(self, ()) }
    }
}

/// The requests and answers in a storage.
#[derive(Debug, Clone)]
pub struct Requests {
    blobs: Arc<dyn BlobStore>,
    runtime: Runtime,
}

impl Requests {
    /// Returns the requests and answers in these blobs.
    pub fn new(blobs: Arc<dyn BlobStore>, runtime: Runtime) -> Self {
        Self { blobs, runtime }
    }

    fn document<T>(&self, blob: BlobName) -> JsonBlob<T> {
        JsonBlob::new(&self.blobs, &self.runtime, blob, MAX_BYTES)
    }

    /// Stores a request, and replaces an earlier request for the same job of the same sender. Returns the
    /// time after which another job sent under the same id certainly has a later time, despite the storage's
    /// rounding.
    pub async fn make(&self, request: &CancelRequest) -> Result<Duration, Error> {
        let answer = request.name("answers")?;
        // The answer may be from an earlier life of the job.
        delete_if_present(&*self.blobs, &answer).await?;
        let by = |request: &CancelRequest| {
            Metadata::new().with(OPERATOR, to_hex(printable(&request.by, MAX_OPERATOR_CHARS).as_bytes()))
        };
        let document = self.document(request.name("requests")?).with_metadata(by);
        let made = document.replace(request, self.tries()).await.map_err(|error| match error.kind() {
            Kind::TooLarge => Error::new(ErrorKind::Invalid, "the id of the job, or its sender, is too long"),
            _ => error.into(),
        })?;
        Ok(rounding(made) * 2)
    }

    /// Stores the answer to a request. The request stays: a repeated send may have left another message of
    /// the job. The end of that message does not replace a completion.
    pub(super) async fn answer(&self, queue: &str, key: &str, answer: Answer) -> Result<(), Error> {
        let document = self.document(blob("answers", queue, key)?);
        if readable(document.change(Known::Absent, |found| answer.after(found)).await)?.is_none() {
            document.replace(&answer, self.tries()).await?;
        }
        Ok(())
    }

    /// Returns the request for a job, and the answer with its time, if they exist. Without a source, returns
    /// the request and the answer for the job of any sender, which costs two listings.
    pub async fn of(
        &self,
        queue: &str,
        id: &str,
        source: Option<&str>,
    ) -> Result<(Option<StoredRequest>, Option<(Answer, SystemTime)>), Error> {
        // In this order: a worker writes an answer only after the request exists.
        let request = self.newest::<CancelRequest>("requests", queue, id, source).await?;
        let answer = self.newest::<Answer>("answers", queue, id, source).await?;
        let stored = request.map(|(request, made)| StoredRequest { request, made });
        Ok((stored, answer))
    }

    /// Returns the newest request or answer for a job with its time: for the job of this sender, or of any
    /// sender.
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
            if let Some(Version { value, modified, .. }) =
                readable(self.document(blob).read().await)?.flatten()
                && newest.as_ref().is_none_or(|(_, other)| *other <= modified)
            {
                newest = Some((value, modified));
            }
        }
        Ok(newest)
    }

    /// Returns all requests for jobs of these queues. Costs a listing per queue.
    pub(super) async fn list_for(&self, queues: Vec<String>) -> Result<RequestsByQueue, Error> {
        let of_queue =
            |queue: String| async move { Ok::<_, Error>((queue.clone(), self.of_queue(&queue).await?)) };
        let listed = stream::iter(queues.into_iter().map(of_queue)).buffered(MAX_CONCURRENT_CALLS);
        listed.try_filter(|(_, requests)| ready(!requests.0.is_empty())).try_collect().await
    }

    /// Returns all requests for jobs of a queue. Costs a listing.
    ///
    /// The number is not limited: a job whose request was left out would run although it is cancelled.
    async fn of_queue(&self, queue: &str) -> Result<QueueRequests, Error> {
        let prefix = format!("requests/{queue}/");
        let listed = self.list(&prefix).await?.blobs.into_iter().filter_map(|(blob, properties)| {
            let key = blob.name().strip_prefix(&prefix)?.to_owned();
            Some((key, ListedRequest { made: properties.modified, by: operator(&properties) }))
        });
        Ok(QueueRequests(listed.collect()))
    }

    /// Removes expired requests and answers. Uses the storage's time, or `now` if the storage returns none.
    pub(super) async fn sweep(&self, now: SystemTime) -> Result<(), Error> {
        for prefix in ["requests/", "answers/"] {
            let listed = self.list(prefix).await?;
            let now = listed.now.unwrap_or(now);
            let is_over = |at| now.duration_since(at).is_ok_and(|age| age > REQUEST_LIFE);
            let expired = listed.blobs.iter().filter(|(_, properties)| is_over(properties.modified));
            let removals: Vec<_> = expired.map(|(blob, _)| delete_if_present(&*self.blobs, blob)).collect();
            stream::iter(removals).buffer_unordered(MAX_CONCURRENT_CALLS).try_collect::<()>().await?;
        }
        Ok(())
    }

    async fn list(&self, prefix: &str) -> Result<Listed, Error> {
        Ok(list_all(&*self.blobs, &ContainerName::new(CONTAINER)?, prefix).await?)
    }

    /// Returns a single attempt: the caller repeats the write.
    fn tries(&self) -> Tries {
        Tries::brief(&self.runtime, 0, 0)
    }
}

impl CancelRequest {
    fn name(&self, folder: &str) -> Result<BlobName, Error> {
        name(folder, &self.queue, &self.id, self.source.as_deref())
    }
}

fn name(folder: &str, queue: &str, id: &str, source: Option<&str>) -> Result<BlobName, Error> {
    blob(folder, queue, &job_key(id, source))
}

fn blob(folder: &str, queue: &str, key: &str) -> Result<BlobName, Error> {
    Ok(BlobName::new(ContainerName::new(CONTAINER)?, format!("{folder}/{queue}/{key}"))?)
}

/// Returns the key of a job within its queue. Producers choose ids and senders, so the key consists of
/// digests. The digest of the id comes first, so that one prefix lists the jobs of all senders with this id.
pub(super) fn job_key(id: &str, source: Option<&str>) -> String {
    let digest = |text: &str| -> String { to_hex(&Sha256::digest(text)) };
    let sender = source.map(|source| format!("-{}", digest(source))).unwrap_or_default();
    digest(id) + &sender
}

fn operator(request: &BlobProperties) -> Option<String> {
    let digits = request.metadata.get(OPERATOR)?.as_bytes().chunks(2);
    let bytes: Option<Vec<u8>> = digits.map(|pair| read_hex::<1>(pair).map(|[byte]| byte)).collect();
    String::from_utf8(bytes?).ok()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::storage::{Call, Operation, Storage, StoreError};
    use jobqueue_storage::{Intercepted, Interceptor};

    /// Delays the first write.
    #[derive(Debug, Default)]
    struct SlowFirstWrite(AtomicBool);

    impl Interceptor for SlowFirstWrite {
        async fn call<T: Send>(
            &self,
            call: Call<'_>,
            perform: impl Future<Output = Result<T, StoreError>> + Send,
        ) -> Result<T, StoreError> {
            if call.operation == Operation::PutBlob && !self.0.swap(true, Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            perform.await
        }
    }

    /// Two messages of one job end on two workers at the same time.
    #[tokio::test(start_paused = true)]
    async fn slower_answer_does_not_hide_a_completion() {
        let (storage, runtime) = (Storage::memory(), Runtime::new());
        let blobs = Intercepted::blobs(Arc::clone(storage.blobs()), &Arc::new(SlowFirstWrite::default()));
        let (requests, key) = (Requests::new(blobs, runtime), job_key("7", None));
        let slower = requests.answer("tasks", &key, Answer::Cancelled);
        let (slower, faster) = tokio::join!(slower, requests.answer("tasks", &key, Answer::Completed));
        slower.and(faster).unwrap();
        let (_, answer) = requests.of("tasks", "7", None).await.unwrap();
        assert_eq!(answer.map(|(answer, _)| answer), Some(Answer::Completed));
    }
}
