//! Completes jobs: deletes the messages of jobs whose handler has finished, alone or in a batch. `settle`
//! decides which.
//!
//! Where one request for many messages costs less than many requests, the messages of jobs that finish at
//! about the same time are deleted together: while a request is in flight, the next one gathers messages.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::executor::{DeliveryReport, Executor};
use super::leased_job::LeasedJob;
use crate::error::Error;
use crate::job::outcome::{Outcome, panic_text};
use crate::lease::{BatchDeletion, LeaseError, delete_all};
use crate::queue_core::QueueCore;
use crate::sync::lock;
use crate::trace::{OpenSpan, Step, TraceContext};

/// The maximum number of messages that a request deletes. A larger number would delay the first message for
/// little gain.
const MAX_DELETIONS_PER_REQUEST: usize = 1_024;
/// The time after which a completion is recorded beside the deletion of its message. Meanwhile the process may
/// end, and a storage may deliver the message again (Service Bus three seconds after an undecided deletion).
const RECORDED_AFTER: Duration = Duration::from_secs(1);
/// The maximum number of concurrent requests: while the storage executes a request, the next is already on
/// its way.
const MAX_CONCURRENT_REQUESTS: usize = 2;

impl Executor {
    /// Returns whether the message is deleted together with others, rather than by its own delivery.
    pub(super) fn deletes_in_batch(&self, leased_job: &LeasedJob) -> bool {
        self.core.store().guarantees().commits_together && !leased_job.has_blobs()
    }

    /// Deletes the message of a finished job.
    pub(super) async fn complete(&self, leased_job: &LeasedJob) -> Result<Outcome, Error> {
        let has_blobs = leased_job.has_blobs();
        let Some(deleted) = self.deletion(leased_job, leased_job.complete()).await else {
            return Ok(Outcome::CompletedUncertain);
        };
        if has_blobs && deleted.is_ok() {
            // Another message of the job may share the blobs, for example after a producer has repeated a
            // put. It must not run without them.
            Box::pin(self.record_completion(leased_job)).await;
        }
        self.completion_outcome(leased_job, deleted).await
    }

    /// Waits for a deletion. If it takes long, records the completion beside it. Returns `None` if a shutdown
    /// cannot wait for the deletion of a job whose completion is recorded durably: its next delivery deletes
    /// the message.
    async fn deletion<T>(&self, leased_job: &LeasedJob, deletion: impl Future<Output = T>) -> Option<T> {
        let mut deletion = pin!(deletion);
        if let Ok(deleted) = timeout(RECORDED_AFTER, deletion.as_mut()).await {
            return Some(deleted);
        }
        let recording = Box::pin(self.record_completion(leased_job));
        let is_durable = tokio::select! {
            biased;
            deleted = deletion.as_mut() => return Some(deleted),
            is_durable = recording => is_durable,
        };
        let must_settle = &leased_job.core.options.settle_now;
        tokio::select! {
            biased;
            deleted = deletion => Some(deleted),
            () = must_settle.cancelled(), if is_durable => {
                leased_job.lease.abandon();
                None
            }
        }
    }

    /// Deletes the message of a finished job in one request with others. Returns `None` if the message must
    /// be deleted alone, which can take as long as its lease: the other messages do not wait for that.
    pub(super) async fn complete_with_others(
        &self,
        leased_job: &Arc<LeasedJob>,
        report: &DeliveryReport,
    ) -> Option<Result<Outcome, Error>> {
        let (done, answer) = oneshot::channel();
        let process = report.process;
        self.deletions.add(Deletion { leased_job: Arc::clone(leased_job), process, done });
        // Without durable records, a memory that ends with the worker is all that could be written meanwhile.
        let answer = match self.state.options.durable_completions {
            true => match Box::pin(self.deletion(leased_job, answer)).await {
                Some(answer) => answer,
                None => return Some(Ok(Outcome::CompletedUncertain)),
            },
            false => answer.await,
        };
        // Without an answer, the request has panicked, or was dropped with the worker, as this delivery will
        // be.
        match answer.unwrap_or(BatchDeletion::Done(Err(LeaseError::Uncertain(None)))) {
            BatchDeletion::Alone => None,
            BatchDeletion::Done(Ok(())) => Some(Ok(Outcome::Completed)),
            // Boxed, because most messages are deleted at the first request.
            BatchDeletion::Done(failed) => Some(Box::pin(self.completion_outcome(leased_job, failed)).await),
        }
    }

    /// Returns the job's outcome for the result of the deletion.
    async fn completion_outcome(
        &self,
        leased_job: &LeasedJob,
        deleted: Result<(), LeaseError>,
    ) -> Result<Outcome, Error> {
        match deleted {
            Ok(()) => Ok(Outcome::Completed),
            Err(LeaseError::Uncertain(_) | LeaseError::Refused(_)) => {
                Box::pin(self.record_completion(leased_job)).await;
                Ok(Outcome::CompletedUncertain)
            }
            Err(error) => Err(error.into()),
        }
    }
}

pub(crate) struct Deletions {
    core: Arc<QueueCore>,
    /// The worker's tasks. Its shutdown waits for them.
    tasks: TaskTracker,
    /// Fires when these tasks must be dropped.
    abort: CancellationToken,
    pending: Mutex<PendingDeletions>,
}

#[derive(Default)]
struct PendingDeletions {
    deletions: Vec<Deletion>,
    /// The number of tasks that are sending requests.
    requests: usize,
}

struct Deletion {
    leased_job: Arc<LeasedJob>,
    /// The trace context in which the handler has run.
    process: Option<TraceContext>,
    done: oneshot::Sender<BatchDeletion>,
}

impl Deletions {
    pub(crate) fn new(core: &Arc<QueueCore>, tasks: &TaskTracker, abort: &CancellationToken) -> Arc<Self> {
        Arc::new(Self {
            core: Arc::clone(core),
            tasks: tasks.clone(),
            abort: abort.clone(),
            pending: Mutex::default(),
        })
    }

    fn add(self: &Arc<Self>, deletion: Deletion) {
        {
            let mut pending = lock(&self.pending);
            pending.deletions.push(deletion);
            if pending.requests == MAX_CONCURRENT_REQUESTS {
                return;
            }
            pending.requests += 1;
        }
        let this = Arc::clone(self);
        // If a request panics, only its own deletions are uncertain: the task goes on with the pending ones.
        let requests = async move {
            let sent = async {
                while let Err(panic) = AssertUnwindSafe(this.send_requests()).catch_unwind().await {
                    let (queue, panic) = (&this.core.name, panic_text(&*panic));
                    crate::log::error!(%queue, panic, "a common request for deletions panicked");
                }
            };
            let _ = this.abort.run_until_cancelled(Box::pin(sent)).await;
        };
        drop(self.core.runtime().spawn(self.tasks.track_future(requests)));
    }

    /// Sends requests until no deletion is pending.
    async fn send_requests(&self) {
        loop {
            let deletions: Vec<_> = {
                let mut pending = lock(&self.pending);
                let count = pending.deletions.len().min(MAX_DELETIONS_PER_REQUEST);
                if count == 0 {
                    pending.requests -= 1;
                    return;
                }
                pending.deletions.drain(..count).collect()
            };
            let deleted = self.request(&deletions).await;
            for (Deletion { done, .. }, deleted) in deletions.into_iter().zip(deleted) {
                drop(done.send(deleted));
            }
        }
    }

    async fn request(&self, deletions: &[Deletion]) -> Vec<BatchDeletion> {
        let leases: Vec<_> =
            deletions.iter().map(|deletion| Arc::clone(&deletion.leased_job.lease)).collect();
        let mut span = self.span(deletions);
        let deleted = span.run(pin!(delete_all(&leases))).await;
        let error = deleted.iter().find_map(|deleted| match deleted {
            BatchDeletion::Alone | BatchDeletion::Done(Ok(())) => None,
            BatchDeletion::Done(Err(LeaseError::Uncertain(_) | LeaseError::Refused(_))) => Some("uncertain"),
            BatchDeletion::Done(Err(LeaseError::Lost | LeaseError::Closed)) => Some("lease_lost"),
        });
        span.end(Some(Outcome::Completed.as_str()), error);
        deleted
    }

    /// Starts the tracer's span of a request.
    fn span(&self, deletions: &[Deletion]) -> OpenSpan {
        let observers = self.core.observers();
        if !observers.trace() {
            return OpenSpan::none();
        }
        if let [alone] = deletions {
            return alone.leased_job.settle_span(alone.process);
        }
        // If the handler did not run, the job belongs to its sender's trace.
        let context = |deletion: &Deletion| deletion.process.or_else(|| deletion.leased_job.sender().0);
        let contexts: Vec<_> = deletions.iter().filter_map(context).collect();
        observers.span(|| Step::Settle {
            queue: &self.core.name,
            id: None,
            messages: deletions.len(),
            process: None,
            messages_of: &contexts,
        })
    }
}
