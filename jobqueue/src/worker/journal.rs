//! Starts and ends the task that writes the journal of a worker's ended jobs.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::state::WorkerState;
use crate::delivery::DeliveryState;
use crate::history::{self, JournalBuffer, run_journal_writer};
use crate::lease::LeaseRenewer;

const LAST_ROUND: Duration = Duration::from_secs(5);

pub(super) struct RunningJournal {
    ended: CancellationToken,
    task: AbortOnDropHandle<()>,
}

impl RunningJournal {
    /// Starts the journal of a worker; `None` if it keeps none.
    pub(super) fn start(state: &WorkerState) -> Option<Self> {
        let kept = state.options.history?;
        let DeliveryState { storage, .. } = &*state.delivery_state;
        let runtime = storage.runtime();
        let worker = state.delivery_state.queue_options().worker;
        let buffer = Arc::new(JournalBuffer::new(&worker, runtime.clone()));
        let ended = CancellationToken::new();
        // With connections of its own: a lock on its table, as of an operator who makes an index, must hold up no leader.
        let journal = history::open(&storage.stores().detached());
        let write = run_journal_writer(journal, Arc::clone(&buffer), kept, ended.clone());
        let task = LeaseRenewer::spawn_apart(runtime, write)
            .inspect_err(|error| crate::log::warn!(%error, "no history is kept"))
            .ok()?;
        state.set_journal(&buffer);
        Some(Self { ended, task: AbortOnDropHandle::new(task) })
    }

    pub(super) async fn end(self) {
        self.ended.cancel();
        let _ = tokio::time::timeout(LAST_ROUND, self.task).await;
    }
}
