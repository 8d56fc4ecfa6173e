//! Waiting jobs as raw data.

use bytes::Bytes;
use jobqueue::__internals::{check_blob, load_blob};
use jobqueue::storage::{LeasedMessage, MAX_MESSAGES, QueueName};
use jobqueue::{Error, ErrorKind};
use jobqueue_message::envelope::StoredReference;

use super::job::Stored;
use super::membership::Memberships;
use super::queues::not_found;
use super::{Action, Admin, JobState, RawJob, RawPayload};

/// The most messages that [`Admin::inspect`] reads. It leases them all at once.
pub const MAX_INSPECTED: usize = 10_000;

impl Admin {
    /// Returns up to 32 visible messages of a queue without changing anything; storages show no more. A
    /// forged history is not shown, because no worker reads it. Costs one request, and one for each batch
    /// that the jobs name; on Service Bus up to five, and in a queue with sessions a read of a blob for each
    /// message.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) if there is no such queue; [`Storage`](ErrorKind::Storage) if it
    /// cannot be read.
    pub async fn peek(&self, queue: &str) -> Result<Vec<RawJob>, Error> {
        let mut jobs = self.peek_without_batches(queue).await?;
        Memberships::default().prove(&self.storage, &mut jobs, None).await?;
        Ok(jobs)
    }

    /// Like [`peek`](Self::peek), without proving to which batches the jobs belong.
    pub(super) async fn peek_without_batches(&self, queue: &str) -> Result<Vec<RawJob>, Error> {
        let name = QueueName::new(queue)?;
        let peeked = self.storage.queues().peek(&name, MAX_MESSAGES).await;
        let peeked = peeked.map_err(|error| not_found(error, &name))?;
        let read = |stored| RawJob::read(queue, JobState::Waiting, stored, name.is_dead_letter());
        Ok(peeked.iter().map(Stored::from).map(read).collect())
    }

    /// Returns up to `limit` visible messages, at most 10,000, by receiving them and putting them back: a
    /// [`peek`](Self::peek) shows 32, this shows all that can be received. If the storage keeps the order of
    /// a key itself (SQLite, PostgreSQL, and Service Bus with sessions), only the first job of each key in
    /// order can be received; [`peek`](Self::peek), and on databases [`jobs`](Self::jobs), also show the jobs
    /// behind it. Workers do not see the messages during the call. The dequeue count of each rises by one,
    /// but the delivery does not count as a delivery of the job, so that no limit comes nearer. For a message
    /// that is not an event it does count.
    ///
    /// Costs one request for 32 messages, one for each message to put it back, and one for each batch that
    /// the jobs name. [`stop_when`](Self::stop_when) ends it early.
    ///
    /// # Errors
    /// [`Forbidden`](ErrorKind::Forbidden) unless [`Action::Inspect`] is allowed;
    /// [`NotFound`](ErrorKind::NotFound); [`Storage`](ErrorKind::Storage) if a request for messages fails
    /// three times in a row or is throttled for 30 seconds, or if one that failed otherwise may have hidden
    /// some until their lease is over.
    ///
    /// # Cancel safety
    /// If the future is dropped, the messages that it has leased come back when their leases end.
    pub async fn inspect(&self, queue: &str, limit: usize) -> Result<Vec<RawJob>, Error> {
        let summary = |jobs: &Vec<RawJob>| format!("{} messages were received and put back", jobs.len());
        self.act(Action::Inspect, format!("queue {queue}"), self.receive_and_put_back(queue, limit), summary)
            .await
    }

    async fn receive_and_put_back(&self, queue: &str, limit: usize) -> Result<Vec<RawJob>, Error> {
        let (mut jobs, opened) = (Vec::new(), self.open(queue).await?);
        let is_letter = QueueName::new(queue)?.is_dead_letter();
        let collect = |leased: &LeasedMessage| {
            jobs.push(RawJob::read(queue, JobState::Waiting, Stored::from(leased), is_letter));
        };
        opened.inspect(limit.min(MAX_INSPECTED), &self.stop, collect).await?;
        Memberships::default().prove(&self.storage, &mut jobs, None).await?;
        Ok(jobs)
    }

    /// Reads the payload of a job. Costs a request if the payload is in a blob.
    ///
    /// # Errors
    /// [`Undecodable`](ErrorKind::Undecodable) if the blob is gone, changed or larger than 32 MiB;
    /// [`Storage`](ErrorKind::Storage) if it cannot be read.
    pub async fn payload(&self, job: &RawJob) -> Result<RawPayload, Error> {
        match &job.payload {
            RawPayload::Blob(reference) => {
                let data = self.blob(job, reference.stored()).await?;
                Ok(RawPayload::of_blob(job.content_type.as_deref(), data))
            }
            inline => Ok(inline.clone()),
        }
    }

    /// Reads the checkpoint of a job. Costs a request if the checkpoint is in a blob.
    ///
    /// # Errors
    /// As [`payload`](Self::payload).
    pub async fn checkpoint(&self, job: &RawJob) -> Result<RawPayload, Error> {
        match &job.checkpoint {
            RawPayload::Blob(reference) => Ok(RawPayload::read(&self.blob(job, reference.stored()).await?)),
            inline => Ok(inline.clone()),
        }
    }

    /// Fails like [`payload`](Self::payload) if the job's blob is gone or has another length, without reading
    /// the blob.
    pub(super) async fn check_payload(&self, job: &RawJob) -> Result<(), Error> {
        let RawPayload::Blob(reference) = &job.payload else { return Ok(()) };
        check_blob(&self.storage, &blob_queue(job)?, &valid_reference(reference.stored())?).await
    }

    async fn blob(&self, job: &RawJob, reference: Option<StoredReference>) -> Result<Bytes, Error> {
        load_blob(&self.storage, &blob_queue(job)?, &valid_reference(reference)?).await
    }
}

/// Returns the queue to which the blobs of a job belong.
fn blob_queue(job: &RawJob) -> Result<QueueName, Error> {
    let queue = QueueName::new(&job.queue)?;
    Ok(if job.state == JobState::Dead { queue.dead_letter()? } else { queue })
}

fn valid_reference(reference: Option<StoredReference>) -> Result<StoredReference, Error> {
    let text = "the reference is not one of this framework";
    reference.ok_or_else(|| Error::new(ErrorKind::Invalid, text))
}
