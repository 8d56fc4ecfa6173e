//! Work that runs beside the pollers for as long as the worker does: schedules, and the tasks that write the
//! worker's journal and its record.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::state::WorkerState;
use crate::delivery::DeliveryState;
use crate::error::Error;
use crate::history::{self, JournalBuffer, run_journal_writer};
use crate::lease::LeaseRenewer;
use crate::message::QueueMessage;
use crate::queue_core::{Queue, QueueOf};
use crate::storage::Storage;

/// The maximum time for the last writes of a task after the worker's handlers have ended.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) type Background =
    Box<dyn FnOnce(BackgroundContext) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

/// The part of a worker that schedules may use.
#[cfg_attr(not(feature = "schedule"), allow(dead_code, reason = "only schedules need it"))]
pub(crate) struct BackgroundContext {
    delivery_state: Arc<DeliveryState>,
    /// Fires when the worker stops. The worker then waits for the background work to end.
    pub(crate) stop: CancellationToken,
}

#[cfg_attr(not(feature = "schedule"), allow(dead_code, reason = "only schedules need it"))]
impl BackgroundContext {
    pub(super) fn new(delivery_state: &Arc<DeliveryState>, stop: CancellationToken) -> Self {
        Self { delivery_state: Arc::clone(delivery_state), stop }
    }

    pub(crate) fn storage(&self) -> &Storage {
        &self.delivery_state.storage
    }

    /// Opens the queue of `M` with the worker's options.
    pub(crate) async fn queue<M: QueueMessage>(&self) -> Result<Queue<M>, Error> {
        Ok(Queue::of(self.delivery_state.core(QueueOf::of::<M>()).await?))
    }
}

/// A task that outlives the worker's handlers and writes once more at its end. Dropping it aborts the task.
pub(super) struct BackgroundTask {
    ended: CancellationToken,
    task: AbortOnDropHandle<()>,
}

impl BackgroundTask {
    /// Wraps a task that ends when `ended` fires.
    pub(super) fn new(ended: CancellationToken, task: JoinHandle<()>) -> Self {
        Self { ended, task: AbortOnDropHandle::new(task) }
    }

    /// Ends the task, and waits up to [`FLUSH_TIMEOUT`] for its last writes.
    pub(super) async fn end(self) {
        self.ended.cancel();
        let _ = tokio::time::timeout(FLUSH_TIMEOUT, self.task).await;
    }
}

pub(super) fn start_journal(state: &WorkerState) -> Option<BackgroundTask> {
    let retention = state.options.journal_retention?;
    let storage = &state.delivery_state.storage;
    let worker = state.delivery_state.queue_options().worker;
    let buffer = Arc::new(JournalBuffer::new(&worker, storage.runtime().clone()));
    let ended = CancellationToken::new();
    // Over separate connections: a lock on the journal's table, for example by an operator who creates an
    // index, must hold up no leader.
    let journal = history::open(&storage.stores().detached());
    let write = run_journal_writer(journal, Arc::clone(&buffer), retention, ended.clone());
    let task = LeaseRenewer::spawn_detached(storage.runtime(), write)
        .inspect_err(|error| crate::log::warn!(%error, "no history is kept"))
        .ok()?;
    drop(state.journal.set(buffer));
    Some(BackgroundTask::new(ended, task))
}
