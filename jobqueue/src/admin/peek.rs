//! Jobs that wait, as raw data.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, stream};

use super::job::Stored;
use super::queues::not_found;
use super::{Action, Admin, JobState, RawCheckpoint, RawJob, RawPayload};
use crate::claim_check::ClaimChecks;
use crate::delivery;
use crate::delivery::{Incoming, Kinds, LeasedJob};
use crate::envelope::StoredReference;
use crate::error::{Error, ErrorKind};
use crate::job::outcome::chain;
use crate::message::MessageDefaults;
use crate::storage::MAX_MESSAGES;
use crate::storage::QueueName;

/// The most messages that [`Admin::inspect`] holds at once.
const MAX_INSPECTED: usize = 10_000;
/// The number of messages that are put back at once.
const RELEASED_AT_ONCE: usize = 16;

impl Admin {
    /// Looks at up to 32 visible messages of a queue without changing anything: more, no storage shows. Costs one request.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) if there is no such queue; [`Storage`](ErrorKind::Storage) when it cannot be read.
    ///
    /// # Cancel safety
    /// It only reads.
    pub async fn peek(&self, queue: &str) -> Result<Vec<RawJob>, Error> {
        let name = QueueName::new(queue)?;
        let peeked = self.storage.queues().peek(&name, MAX_MESSAGES).await;
        let peeked = peeked.map_err(|error| not_found(error, &name))?;
        Ok(peeked
            .iter()
            .map(|message| RawJob::read(queue, JobState::Waiting, Stored::from(message)))
            .collect())
    }

    /// Looks at up to `limit` visible messages, at most 10,000, by receiving them and putting them back: where a
    /// [`peek`](Self::peek) shows 32, this shows all. Workers do not see the messages meanwhile. Their dequeue count rises by one; the
    /// delivery is not counted as one of the job, so that no bound comes nearer; of a message that is not an event it is.
    ///
    /// Costs one request for 32 messages, and one for each to put it back. [`stop_when`](Self::stop_when) ends it early.
    ///
    /// # Errors
    /// [`Forbidden`](ErrorKind::Forbidden) unless [`Action::Inspect`] is allowed; [`NotFound`](ErrorKind::NotFound);
    /// [`Storage`](ErrorKind::Storage) when the queue cannot be read.
    ///
    /// # Cancel safety
    /// If the future is dropped, messages that it held come back when their leases are over.
    pub async fn inspect(&self, queue: &str, limit: usize) -> Result<Vec<RawJob>, Error> {
        let summary = |jobs: &Vec<RawJob>| format!("{} messages were received and put back", jobs.len());
        self.act(Action::Inspect, format!("queue {queue}"), self.receive_and_put_back(queue, limit), summary)
            .await
    }

    async fn receive_and_put_back(&self, queue: &str, limit: usize) -> Result<Vec<RawJob>, Error> {
        let core = self.open(queue).await?;
        let limit = limit.min(MAX_INSPECTED);
        let settings = core.settings();
        let (mut jobs, mut held, mut seen) = (Vec::new(), Vec::<LeasedJob>::new(), HashSet::new());
        let mut failure = None;
        while jobs.len() < limit && !self.stop.is_cancelled() {
            let count = u32::try_from(limit - jobs.len()).unwrap_or(u32::MAX).min(MAX_MESSAGES);
            let (received, requested) = match core.get(count, &settings).await {
                Ok(received) => received,
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            };
            if received.messages.is_empty() {
                break;
            }
            for leased in received.messages {
                if seen.insert(leased.message.id.clone()) {
                    jobs.push(RawJob::read(queue, JobState::Waiting, Stored::from(&leased)));
                }
                let incoming = Incoming { leased, requested, settings: Arc::clone(&settings) };
                held.push(delivery::lease_only(&core, incoming, &AnyKind));
            }
        }
        let release = async |leased_job: LeasedJob| {
            if let Err(error) = leased_job.release_uncounted(std::time::Duration::ZERO).await {
                tracing::warn!(%queue, error = %chain(&error), "a message stays invisible until its lease is over");
            }
        };
        stream::iter(held).for_each_concurrent(RELEASED_AT_ONCE, release).await;
        failure.map_or(Ok(jobs), |error| Err(error.into()))
    }

    /// Reads the payload of a job, from its blob if it is in one. Costs a request then.
    ///
    /// # Errors
    /// [`Undecodable`](ErrorKind::Undecodable) when the blob is gone, changed or larger than 32 MiB; [`Storage`](ErrorKind::Storage)
    /// when it cannot be read.
    ///
    /// # Cancel safety
    /// It only reads.
    pub async fn payload(&self, job: &RawJob) -> Result<RawPayload, Error> {
        match &job.payload {
            RawPayload::Blob(reference) => Ok(RawPayload::read(&self.blob(job, reference.stored()).await?)),
            inline => Ok(inline.clone()),
        }
    }

    /// Reads the checkpoint of a job, from its blob if it is in one. `None` if it has none.
    ///
    /// # Errors
    /// As [`payload`](Self::payload).
    ///
    /// # Cancel safety
    /// It only reads.
    pub async fn checkpoint(&self, job: &RawJob) -> Result<Option<RawCheckpoint>, Error> {
        match &job.checkpoint {
            Some(RawCheckpoint::Blob(reference)) => {
                let data = self.blob(job, reference.stored()).await?;
                Ok(Some(RawCheckpoint::read(&String::from_utf8_lossy(&data))))
            }
            inline => Ok(inline.clone()),
        }
    }

    /// Fails as [`payload`](Self::payload) if the job's blob is gone or has another length, without reading it.
    pub(super) async fn check_payload(&self, job: &RawJob) -> Result<(), Error> {
        let RawPayload::Blob(reference) = &job.payload else { return Ok(()) };
        let (checks, queue) = self.claim_checks(job)?;
        let checked = checks.check(&queue, &known(reference.stored())?).await;
        checked.map_err(crate::queue_core::payload_error)
    }

    async fn blob(&self, job: &RawJob, reference: Option<StoredReference>) -> Result<Bytes, Error> {
        let (checks, queue) = self.claim_checks(job)?;
        let read = checks.load(&queue, &known(reference)?).await;
        read.map_err(crate::queue_core::payload_error)
    }

    /// Returns what reads the blobs of a job, and the queue that they belong to.
    fn claim_checks(&self, job: &RawJob) -> Result<(ClaimChecks, QueueName), Error> {
        let queue = QueueName::new(&job.queue)?;
        let checks = ClaimChecks::new(
            Arc::clone(self.storage.blobs()),
            self.storage.runtime().clone(),
            crate::claim_check::DEFAULT_MAX_PAYLOAD_BYTES,
        )?;
        Ok((checks, if job.state == JobState::Dead { queue.dead_letter()? } else { queue }))
    }
}

fn known(reference: Option<StoredReference>) -> Result<StoredReference, Error> {
    let text = "the reference is not one of this framework";
    reference.ok_or_else(|| Error::new(ErrorKind::Invalid, text))
}

struct AnyKind;

impl Kinds for AnyKind {
    fn of_raw(&self) -> Option<&'static str> {
        None
    }

    fn knows(&self, _: &str) -> bool {
        true
    }

    fn defaults(&self, _: &str) -> MessageDefaults {
        MessageDefaults::new()
    }

    fn unknown(&self) -> &'static str {
        "it is of no kind"
    }
}
