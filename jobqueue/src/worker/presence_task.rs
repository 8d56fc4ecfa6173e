//! The task that writes the record of a running worker.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::background::BackgroundTask;
use super::options::PresenceSetting;
use super::state::WorkerState;
use crate::lease::LeaseRenewer;
use crate::presence::{Tracker, WorkerFacts, read_once, run_record_writer};

/// The interval at which a worker writes its record unless configured otherwise.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(15);

/// Starts the task that writes the record of a running worker and reads the requests to cancel jobs. If the
/// task is dropped, the record becomes stale. For a worker that runs until it is idle, the task by default
/// only reads the requests, once. Returns `None` if the worker does neither.
pub(super) fn start_record(state: &WorkerState, until_idle: bool) -> Option<BackgroundTask> {
    let runtime = state.delivery_state.storage.runtime();
    let is_test = !runtime.starts_threads();
    let interval = match state.options.presence {
        PresenceSetting::Off => return None,
        PresenceSetting::Default if is_test => return None,
        PresenceSetting::Default => (!until_idle).then_some(DEFAULT_INTERVAL),
        PresenceSetting::Every(interval) => Some(interval),
    };
    let facts = interval.map(|every| facts_of(state, every));
    let listening = facts.as_ref().map(|facts| facts.queues.as_slice()).unwrap_or_default();
    let (tracker, ended) = (Arc::new(Tracker::handling(listening)), CancellationToken::new());
    let (tracked, end) = (Arc::clone(&tracker), ended.clone());
    let blobs = state.delivery_state.storage.detached_blobs();
    // On the lease renewer's thread: a handler that blocks the worker's runtime does not make the worker look
    // dead.
    let task = match facts {
        Some(facts) => {
            let write = run_record_writer(blobs, runtime.clone(), facts, tracked, end);
            LeaseRenewer::spawn_detached(runtime, write)
        }
        None => {
            let queues = state.registry.0.keys().map(ToString::to_string).collect();
            LeaseRenewer::spawn_detached(runtime, read_once(blobs, runtime.clone(), queues, tracked, end))
        }
    };
    let task = task.inspect_err(|error| crate::log::debug!(%error, "the worker has no record")).ok()?;
    drop(state.delivery_state.tracker.set(tracker));
    Some(BackgroundTask::new(ended, task))
}

fn facts_of(state: &WorkerState, interval: Duration) -> WorkerFacts {
    let slots = state.options.concurrency;
    WorkerFacts {
        name: state.delivery_state.queue_options().worker.to_string(),
        queues: state.options.limits.record_entries(slots, &state.registry),
        slots,
        interval,
    }
}
