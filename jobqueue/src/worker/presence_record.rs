//! The record of a running worker.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::options::PresenceSetting;
use super::state::WorkerState;
use crate::lease::LeaseRenewer;
use crate::presence::{About, ListeningQueue, Tracker, keep};

/// The interval at which a worker writes its record unless configured otherwise.
const INTERVAL: Duration = Duration::from_secs(15);
const LAST_ROUND: Duration = Duration::from_secs(5);

/// The record of a running worker. If it is dropped, the record becomes stale.
pub(super) struct Record {
    tracker: Arc<Tracker>,
    ended: CancellationToken,
    task: AbortOnDropHandle<()>,
}

impl Record {
    /// Starts the record of a worker; `None` if it keeps none.
    pub(super) fn start(state: &WorkerState, until_idle: bool) -> Option<Self> {
        let runtime = state.deliveries.storage.runtime();
        let is_test = !runtime.starts_threads();
        let interval = match state.options.presence {
            PresenceSetting::Off => return None,
            PresenceSetting::Default if until_idle || is_test => return None,
            PresenceSetting::Default => INTERVAL,
            PresenceSetting::Every(interval) => interval,
        };
        let options = state.deliveries.queue_options();
        let limits = &state.options.limits;
        let queues = state.registry.0.iter().map(|(name, handlers)| {
            limits.shown(ListeningQueue::new(name.to_string(), handlers.all_kinds()))
        });
        let about = About {
            name: options.worker.to_string(),
            queues: queues.collect(),
            slots: state.options.concurrency,
            interval,
        };
        let tracker = Arc::<Tracker>::default();
        let ended = CancellationToken::new();
        let blobs = state.deliveries.storage.blobs_apart();
        let keep = keep(blobs, runtime.clone(), about, Arc::clone(&tracker), ended.clone());
        // A thread of the library's own: a handler that blocks the worker's runtime does not make the worker look dead.
        let task = LeaseRenewer::spawn_apart(runtime, keep)
            .inspect_err(|error| tracing::debug!(%error, "the worker has no record"))
            .ok()?;
        state.deliveries.set_tracker(&tracker);
        Some(Self { tracker, ended, task: AbortOnDropHandle::new(task) })
    }

    /// Shows that the worker is stopping.
    pub(super) fn drain(&self) {
        self.tracker.drain();
    }

    pub(super) async fn end(self) {
        self.ended.cancel();
        let _ = tokio::time::timeout(LAST_ROUND, self.task).await;
    }
}
