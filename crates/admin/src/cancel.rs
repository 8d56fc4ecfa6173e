//! Cancelling a job by its id, from anywhere.

use std::sync::Arc;
use std::time::SystemTime;

use jobqueue::__internals::{Answer, CancelRequest, Records, Requests, StoredRequest};
use jobqueue::{Error, ErrorKind, QueueName};
use serde::Serialize;
use tokio::time::sleep;

use super::event::Deed;
use super::text::time;
use super::{Action, Admin, JobReference};

/// The state of a cancellation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Cancellation {
    /// There is no request.
    None,
    /// No worker has answered the request yet.
    Requested {
        /// The operator.
        by: String,
        /// The time of the request.
        at: String,
    },
    /// The job did not run to its end: it is a dead letter with the reason `cancelled`.
    Cancelled,
    /// The job was done before its worker noticed, or its handler succeeded all the same.
    Completed,
    /// The job is a dead letter for another reason.
    DeadLettered,
}

/// The result of a request to cancel a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CancelReport {
    /// The job.
    pub job: JobReference,
    /// The number of present workers that listen to the queue and were notified. If there are none, the request stands for the next
    /// that starts, also for one that runs until it is idle, but not for one with
    /// [`presence(None)`](jobqueue::WorkerBuilder::presence).
    pub workers: u64,
}

impl Admin {
    /// Requests the cancellation of a waiting or running job. The job becomes a dead letter with the reason
    /// [`cancelled`](jobqueue::Reason::CANCELLED), which can be redriven or purged; its key and its batch continue as
    /// after any dead letter. [`cancellation`](Self::cancellation) returns the result.
    ///
    /// Workers learn of it at their next [record](jobqueue::WorkerBuilder::presence), within 15 seconds by default. A handler that
    /// runs finds its [token](jobqueue::Context::token) fired; what it returns within the cancel grace holds if it is a success, and
    /// otherwise the job is cancelled. A job that waits is cancelled when a worker next receives it: a paused queue or a delay holds the
    /// cancellation up as it does the job, and the job does not run. The request stands for 30 days, against each message of the job that a
    /// repeated send may have left. Whether there is such a job is not
    /// checked. It does not concern a job that is sent under the same id after this call has returned: where the storage's times have no
    /// fractions of seconds, as on Azure, the call takes two seconds.
    ///
    /// Costs four requests, and for each present worker two and a listing for each of its queues. Idle workers send no extra requests.
    ///
    /// # Errors
    /// [`Forbidden`](ErrorKind::Forbidden); [`Invalid`](ErrorKind::Invalid) for a name that is not allowed;
    /// [`Storage`](ErrorKind::Storage) when the storage refuses: the request may stand all the same.
    ///
    /// # Cancel safety
    /// If the future is dropped, the request may or may not be made.
    pub async fn cancel(&self, job: &JobReference) -> Result<CancelReport, Error> {
        let work = async {
            let queue = QueueName::new(&job.queue)?;
            if job.id.is_empty() {
                return Err(Error::new(ErrorKind::Invalid, "the id of the job is empty"));
            }
            let request = CancelRequest {
                queue: queue.to_string(),
                id: job.id.clone(),
                source: job.source.clone(),
                by: self.operator.to_string(),
            };
            let distinct = sleep(self.requests().make(&request).await?);
            let records = Records::new(Arc::clone(self.storage.blobs()), self.storage.runtime().clone());
            let workers = records.notify(self.clock().now(), |record| record.listens_to(&job.queue)).await?;
            // A job that is sent from now on has another time than the request.
            distinct.await;
            Ok(CancelReport { job: job.clone(), workers })
        };
        let summary = |report: &CancelReport| format!("requested from {} workers", report.workers);
        self.act(Action::Cancel, Deed::of_job(job), work, summary).await
    }

    /// Returns the result of the last cancellation request for a job. Results are kept for 30 days. Costs four requests, or two listings
    /// and a request for each if the reference names no sender.
    ///
    /// # Errors
    /// [`Storage`](ErrorKind::Storage) when the storage cannot be read.
    ///
    /// # Cancel safety
    /// It only reads.
    pub async fn cancellation(&self, job: &JobReference) -> Result<Cancellation, Error> {
        Ok(self.cancellation_at(job).await?.0)
    }

    /// Returns the result of the last request, and when it was answered.
    pub(super) async fn cancellation_at(
        &self,
        job: &JobReference,
    ) -> Result<(Cancellation, Option<SystemTime>), Error> {
        let queue = QueueName::new(&job.queue)?;
        let (request, answer) = self.requests().of(queue.as_str(), &job.id, job.source.as_deref()).await?;
        let is_open = |stored: &StoredRequest| answer.is_none_or(|(_, at)| stored.made > at);
        if let Some(stored) = request.filter(is_open) {
            return Ok((Cancellation::Requested { by: stored.request.by, at: time(stored.made) }, None));
        }
        let Some((answer, at)) = answer else { return Ok((Cancellation::None, None)) };
        let cancellation = match answer {
            Answer::Cancelled => Cancellation::Cancelled,
            Answer::Completed => Cancellation::Completed,
            Answer::DeadLettered => Cancellation::DeadLettered,
        };
        Ok((cancellation, Some(at)))
    }

    fn requests(&self) -> Requests {
        Requests::new(Arc::clone(self.storage.blobs()))
    }
}
