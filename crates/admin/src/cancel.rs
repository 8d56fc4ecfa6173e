//! Cancelling jobs on any worker: a single job by its id, or all jobs of a plan.

use std::collections::BTreeSet;
use std::error::Error as _;
use std::fmt;
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use futures_util::{StreamExt, stream};
use jobqueue::__internals::{Answer, CancelRequest, Records, Requests, StoredRequest, WorkerRecord};
use jobqueue::storage::StoreError;
use jobqueue::{Error, ErrorKind, QueueName};
use jobqueue_message::times::rfc3339;
use serde::Serialize;
use tokio::time::sleep;

use super::plan::check_storage;
use super::{Action, Admin, CancelPlan, JobReference};

/// The number of concurrent requests.
const CONCURRENT_REQUESTS: usize = 16;
/// The number of consecutive failures after which no further request is made.
const MAX_FAILURES: usize = 3;
/// The longest time, on any storage, until a newly sent job certainly has a later time than the request:
/// storages round times.
const MAX_ROUNDING: Duration = Duration::from_secs(2);

/// The state of a cancellation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Cancellation {
    /// There is no request.
    None,
    /// No worker has answered the request yet.
    #[non_exhaustive]
    Requested {
        /// The operator.
        by: String,
        /// The time of the request.
        at: String,
    },
    /// The job did not run to its end: it is a dead letter with the reason `cancelled`, or its sender has
    /// cancelled it, which leaves no dead letter.
    Cancelled,
    /// The job was done before its worker noticed the request, or its handler succeeded in spite of it.
    Completed,
    /// The job is a dead letter for another reason.
    DeadLettered,
}

/// Writes the state as a sentence for people, without the full stop.
impl fmt::Display for Cancellation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "Its cancellation was not requested, or more than 30 days ago",
            Self::Requested { by, at } => {
                return write!(f, "Cancellation was requested by {by} at {at}; no worker has answered");
            }
            Self::Cancelled => "It was cancelled, by an operator or before by its sender",
            Self::Completed => "It completed before it could be cancelled",
            Self::DeadLettered => "It was dead-lettered for another reason before it could be cancelled",
        })
    }
}

/// The result of a request to cancel jobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CancelReport {
    /// The jobs.
    pub jobs: Vec<JobReference>,
    /// The number of present workers that listen to the queues of the jobs and were notified. If there are
    /// none, the request stands for the next worker that starts, including a worker that runs until it is
    /// idle, but not for a worker with [`presence(None)`](jobqueue::WorkerBuilder::presence).
    pub workers: u64,
    /// True if these are all jobs that were to be cancelled: [`CancelPlan::complete`].
    pub complete: bool,
}

impl Admin {
    /// Requests the cancellation of a waiting or running job. The job becomes a dead letter with the reason
    /// [`cancelled`](jobqueue::Reason::CANCELLED), which can be redriven or purged; its key and its batch
    /// continue as after any dead letter. [`cancellation`](Self::cancellation) returns the result.
    ///
    /// Workers read requests when they next write their [record](jobqueue::WorkerBuilder::presence), within
    /// 15 seconds by default; on a test's paused clock they write records only if
    /// [`presence`](jobqueue::WorkerBuilder::presence) was called. In a running handler the
    /// [token](jobqueue::Context::token) fires. If the handler returns a success within the cancel grace, the
    /// job completes; otherwise it is cancelled. A waiting job is cancelled when a worker next receives it,
    /// or, if it waits in a worker's memory for its turn, when that worker has read the request, and does not
    /// run: a paused queue or a delay holds up the cancellation as it holds up the job. The request stands
    /// for 30 days, for each message of the job that a repeated send may have left. A job that no worker
    /// receives within that time, because its queue is paused for longer, runs afterwards. The call does not
    /// check whether the job exists. The request does not affect a job that is sent under the same id after
    /// this call has returned: if the times of the storage have no fractions of seconds, as on Azure, the
    /// call takes two seconds.
    ///
    /// Costs four requests, and for each present worker two requests and a listing for each of its queues.
    /// Idle workers send no extra requests.
    ///
    /// # Errors
    /// [`Forbidden`](ErrorKind::Forbidden); [`Invalid`](ErrorKind::Invalid) for a name that is not allowed,
    /// or of a dead-letter queue; [`Storage`](ErrorKind::Storage) if the storage refuses: the request may
    /// stand all the same.
    ///
    /// # Cancel safety
    /// If the future is dropped, the request may or may not be made.
    pub async fn cancel(&self, job: &JobReference) -> Result<CancelReport, Error> {
        self.cancel_all(&CancelPlan::of_jobs([job.clone()])).await
    }

    /// Requests the cancellation of all jobs of a plan, like [`cancel`](Self::cancel) for a single job. Costs
    /// two requests for each job, and the other requests once.
    ///
    /// # Errors
    /// As [`cancel`](Self::cancel), and [`Invalid`](ErrorKind::Invalid) for a plan of another storage. Once
    /// three requests in a row have failed, the call begins no others. If some were made, the text says how
    /// many, and if no worker was notified of them; the plan can be executed again.
    /// [`Conflict`](ErrorKind::Conflict) if the token of [`stop_when`](Self::stop_when) fired before all were
    /// made.
    ///
    /// # Cancel safety
    /// If the future is dropped, some requests may be made, and no worker may be notified of them.
    pub async fn cancel_all(&self, plan: &CancelPlan) -> Result<CancelReport, Error> {
        let work = async {
            check_storage(plan.storage.as_deref(), self)?;
            // Checks all requests before the first is made.
            let requests: Vec<_> =
                plan.jobs.iter().map(|job| self.cancel_request(job)).collect::<Result<_, _>>()?;
            let all = requests.len();
            let (made, wait, failure) = self.make_requests(requests).await;
            let notified = match wait {
                // The storage takes no requests: notifications would fail as well, after all their retries.
                None => Ok(0),
                Some(wait) => self.notify(plan, wait).await,
            };
            let mut text = match failure {
                Some(_) => format!(
                    "{made} of {all} jobs: their cancellation was requested; for {} it may not be",
                    all - made
                ),
                None => "the cancellation was requested".to_owned(),
            };
            if notified.is_err() {
                text.push_str("; workers that run were not notified");
            }
            match (failure, notified) {
                (Some(error), Ok(_)) if all == 1 => Err(error),
                (Some(error), _) | (None, Err(error)) => {
                    Err(Error::new(error.kind(), text).with_source(error))
                }
                (None, Ok(workers)) => {
                    Ok(CancelReport { jobs: plan.jobs.clone(), workers, complete: plan.complete })
                }
            }
        };
        let summary = |report: &CancelReport| format!("requested from {} workers", report.workers);
        self.act(Action::Cancel, plan.target(), work, summary).await
    }

    /// Notifies the workers of the plan's queues of the requests. Returns no earlier than after `wait`: a job
    /// that is sent afterwards has another time than the requests.
    async fn notify(&self, plan: &CancelPlan, wait: Duration) -> Result<u64, Error> {
        let distinct = sleep(wait);
        let records = Records::new(Arc::clone(self.storage.blobs()), self.storage.runtime().clone());
        let queues: BTreeSet<&str> = plan.jobs.iter().map(|job| job.queue.as_str()).collect();
        let listens = |record: &_| queues.iter().any(|queue| WorkerRecord::listens_to(record, queue));
        let notified = records.notify(self.clock().now(), listens).await;
        distinct.await;
        notified
    }

    /// Makes the requests, and begins no others once three in a row have failed or the token of this view
    /// has fired. Returns the number of requests that were made, the first error, and the wait after which
    /// newly sent jobs certainly have another time than the requests. The wait is `None` if certainly no
    /// request was made.
    async fn make_requests(&self, requests: Vec<CancelRequest>) -> (usize, Option<Duration>, Option<Error>) {
        let make = |request: CancelRequest| async move { self.requests().make(&request).await };
        let (all, gives_up) = (requests.len(), AtomicBool::new(false));
        let goes_on = || !self.stop.is_cancelled() && !gives_up.load(Ordering::Relaxed);
        let requests = stream::iter(requests).take_while(|_| ready(goes_on()));
        let mut answers = requests.map(make).buffer_unordered(CONCURRENT_REQUESTS);
        let (mut made, mut wait, mut failure, mut failed_in_a_row) = (0, None, None, 0);
        // The requests that are under way are awaited: the storage may have taken them.
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(distinct) => (made, wait, failed_in_a_row) = (made + 1, wait.max(Some(distinct)), 0),
                Err(error) => {
                    wait = wait.max(may_stand(&error).then_some(MAX_ROUNDING));
                    failure.get_or_insert(error);
                    failed_in_a_row += 1;
                    if failed_in_a_row >= MAX_FAILURES {
                        gives_up.store(true, Ordering::Relaxed);
                    }
                }
            }
        }
        if failure.is_none() && made < all {
            failure = Some(Error::new(ErrorKind::Conflict, "it was stopped by a request"));
        }
        (made, wait, failure)
    }

    fn cancel_request(&self, job: &JobReference) -> Result<CancelRequest, Error> {
        if job.id.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "the id of the job is empty"));
        }
        Self::check_home(&job.queue)?;
        Ok(CancelRequest {
            queue: QueueName::new(&job.queue)?.to_string(),
            id: job.id.clone(),
            source: job.source.clone(),
            by: self.operator.to_string(),
        })
    }

    /// Returns the result of the last cancellation request for a job. Results are kept for 30 days. Costs
    /// four requests; if the reference names no sender, two listings and a request for each blob found.
    ///
    /// # Errors
    /// [`Storage`](ErrorKind::Storage) if the storage cannot be read.
    pub async fn cancellation(&self, job: &JobReference) -> Result<Cancellation, Error> {
        let found = self.cancellation_at(job).await?;
        Ok(found.map_or(Cancellation::None, |(cancellation, _)| cancellation))
    }

    /// Returns the result of the last request and the time of that request, by the storage's clock. If only
    /// an answer is left, returns the time of the answer.
    pub(super) async fn cancellation_at(
        &self,
        job: &JobReference,
    ) -> Result<Option<(Cancellation, SystemTime)>, Error> {
        let queue = QueueName::new(&job.queue)?;
        let (request, answer) = self.requests().of(queue.as_str(), &job.id, job.source.as_deref()).await?;
        let made = request.as_ref().map(|stored| stored.made);
        let is_open = |stored: &StoredRequest| answer.is_none_or(|(_, at)| stored.made > at);
        if let Some(StoredRequest { request, made }) = request.filter(is_open) {
            return Ok(Some((Cancellation::Requested { by: request.by, at: rfc3339(made) }, made)));
        }
        let answered = |(answer, at)| {
            let cancellation = match answer {
                Answer::Cancelled => Cancellation::Cancelled,
                Answer::Completed => Cancellation::Completed,
                Answer::DeadLettered => Cancellation::DeadLettered,
            };
            (cancellation, made.unwrap_or(at))
        };
        Ok(answer.map(answered))
    }

    pub(super) fn requests(&self) -> Requests {
        Requests::new(Arc::clone(self.storage.blobs()), self.storage.runtime().clone())
    }
}

/// Returns whether a request may have been stored although its response was lost.
fn may_stand(error: &Error) -> bool {
    let mut next = error.source();
    while let Some(cause) = next {
        if cause.downcast_ref::<StoreError>().is_some_and(StoreError::is_ambiguous) {
            return true;
        }
        next = cause.source();
    }
    false
}
