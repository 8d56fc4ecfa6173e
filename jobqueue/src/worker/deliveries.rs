//! The deliveries of one queue. Each runs as a task of its own. The messages of those that are done at about the same time are
//! deleted together, where the storage does that at less cost: while one request is under way, the next gathers.
//!
//! Knows when deliveries begin and end; knows nothing of what happens in between, nor of how many there may be.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::circuit::{Change, Circuit};
use super::event::Event;
use super::poller::Done;
use super::registry::QueueHandlers;
use super::run::{self, Delivered};
use super::settle::{self, Finished};
use super::shared::Shared;
use crate::job::JobInfo;
use crate::job::outcome::Outcome;
use crate::queue::{LeasedJob, QueueCore};
use crate::settings::QueueSettings;
use crate::storage::LeasedMessage;
use crate::sync::lock;
use crate::task;

/// The most messages to delete by one request: more would delay the first for little gain.
const MAX_TOGETHER: usize = 1_024;
/// The most requests under way: while the storage does one, the next waits at its door.
const MAX_REQUESTS: usize = 2;

/// What the deliveries of a queue share.
pub(super) struct Deliveries {
    pub(super) shared: Arc<Shared>,
    pub(super) core: Arc<QueueCore>,
    pub(super) queue_handlers: Arc<QueueHandlers>,
    pub(super) circuit: Arc<Circuit>,
    /// Fires when nothing more is to be begun.
    pub(super) stop: CancellationToken,
    /// Fires when handlers are to be dropped where they are.
    pub(super) abort: CancellationToken,
    pub(super) tasks: TaskTracker,
    pub(super) to_delete: Mutex<ToDelete>,
}

/// What waits for its deletion.
#[derive(Default)]
pub(super) struct ToDelete {
    completions: Vec<Completion>,
    /// How many tasks are deleting.
    requests: usize,
}

/// A delivery whose handler is done and whose message is yet to be deleted.
pub(super) struct Completion {
    leased_job: Arc<LeasedJob>,
    job: Arc<JobInfo>,
    ran: Duration,
    /// Declared last, dropped last: with it the job is over.
    done: Done,
}

impl Deliveries {
    /// Runs a leased message to its end, in a task of its own. After the worker was told to stop it is put back instead.
    pub(super) fn start(
        self: &Arc<Self>,
        leased: LeasedMessage,
        requested: Instant,
        settings: Arc<QueueSettings>,
        done: Done,
    ) {
        let (deliveries, stopped) = (Arc::clone(self), self.stop.is_cancelled());
        task::spawn_tracked(&self.tasks, async move {
            // Declared first, dropped last: also when the delivery is dropped in the middle.
            let done = done;
            if stopped {
                // Boxed as what comes next, and for the same reason.
                return Box::pin(run::put_back(&deliveries, leased, requested, settings)).await;
            }
            // Boxed, so that what is wrapped around it, spawned and moved from place to place is small.
            let deliver = Box::pin(run::deliver(&deliveries, leased, requested, settings, &done));
            match deliveries.abort.run_until_cancelled(deliver).await {
                None => {}
                Some(Delivered::Finished(finished)) => deliveries.conclude(finished),
                Some(Delivered::Done { leased_job, job, ran }) => {
                    deliveries.complete(Completion { leased_job, job, ran, done });
                }
            }
        });
    }

    /// Whether the message is deleted together with others, and so not by its delivery. One whose lease is over is deleted at
    /// once, before somebody else can get it: also this worker, which has a slot free now.
    pub(super) fn delete_together(&self, leased_job: &LeasedJob) -> bool {
        self.core.store().commits_together() && leased_job.lease.loss().is_none() && !leased_job.has_blobs()
    }

    fn to_delete(&self) -> MutexGuard<'_, ToDelete> {
        lock(&self.to_delete)
    }

    fn complete(self: &Arc<Self>, completion: Completion) {
        let mut to_delete = self.to_delete();
        to_delete.completions.push(completion);
        if to_delete.requests < MAX_REQUESTS {
            to_delete.requests += 1;
            drop(to_delete);
            let deliveries = Arc::clone(self);
            task::spawn_tracked(&self.tasks, async move {
                let delete = Box::pin(deliveries.delete_waiting());
                deliveries.abort.run_until_cancelled(delete).await;
            });
        }
    }

    /// Deletes until nothing waits any more. One that is dropped ends with the worker, whose messages come back.
    async fn delete_waiting(&self) {
        loop {
            let completions = {
                let mut to_delete = self.to_delete();
                let count = to_delete.completions.len().min(MAX_TOGETHER);
                if count == 0 {
                    to_delete.requests -= 1;
                    return;
                }
                to_delete.completions.drain(..count).collect::<Vec<_>>()
            };
            let done = completions.iter().map(|one| (&*one.leased_job, &*one.job));
            let settled = settle::complete_all(&self.shared, done).await;
            for (Completion { leased_job, job, ran, done }, settled) in completions.into_iter().zip(settled) {
                self.conclude(settle::finished(&leased_job, Some(job), settled, ran, None));
                drop((leased_job, done));
            }
        }
    }

    /// Tells what became of a delivery.
    fn conclude(&self, finished: Finished) {
        let Finished { job, outcome, ran, error } = finished;
        let queue = &self.core.name;
        self.shared.report().count(&outcome);
        match &outcome {
            Outcome::Completed => {}
            Outcome::DeadLettered(reason) => {
                tracing::warn!(%queue, job = job.as_ref().map(|j| &*j.id), %reason, error, "message dead-lettered");
            }
            Outcome::Retried(wait) => {
                let attempt = job.as_ref().map(|job| job.attempt);
                tracing::warn!(%queue, job = job.as_ref().map(|j| &*j.id), attempt, ?wait, error, "attempt failed; the job is tried again");
            }
            _ => {
                let name = outcome.name();
                tracing::debug!(%queue, job = job.as_ref().map(|j| &*j.id), outcome = name, error, "delivery ended");
            }
        }
        self.shared.events.tell(|| Event::Finished {
            job: job.clone(),
            queue: queue.clone(),
            outcome: outcome.clone(),
            ran,
            error,
        });
        match self.circuit.record(job.as_ref().map(|job| &job.id), &outcome) {
            Some(Change::Opened(retry_in)) => {
                tracing::warn!(%queue, ?retry_in, "everything on this queue fails; fetching pauses");
                self.shared.events.tell(|| Event::CircuitOpened { queue: queue.clone(), retry_in });
            }
            Some(Change::Closed) => {
                tracing::info!(%queue, "jobs succeed again");
                self.shared.events.tell(|| Event::CircuitClosed { queue: queue.clone() });
            }
            None => {}
        }
    }
}
