//! Connects a worker with the journal of ended jobs.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::builder::WorkerBuilder;
use super::shared::Shared;
use crate::history::{Journal, keep};
use crate::job::JobInfo;
use crate::job::outcome::Outcome;
use crate::lease::LeaseRenewer;
use crate::task;

/// The time that the last write may take.
const LAST_ROUND: Duration = Duration::from_secs(5);

impl WorkerBuilder {
    /// Keeps a journal of the jobs that have ended, completed or dead-lettered, for this time: at least an hour. Operators search it by
    /// [`Admin::history`](crate::admin::Admin::history). Off by default.
    ///
    /// The journal is written every 15 seconds while jobs end, into blobs of the container `jobqueue-history` of 1 MiB, about 18,000 jobs, or
    /// what ended within an hour: on Azure at most 5,760 writes a day and worker, and two more for each blob. A worker that is killed
    /// loses what has ended since the last write. What cannot be written is logged, and no job waits for it.
    pub fn history(mut self, kept: impl Into<Option<Duration>>) -> Self {
        self.options.history = kept.into().map(|kept| kept.max(Duration::from_secs(3600)));
        self
    }
}

/// The journal of a running worker.
pub(super) struct RunningJournal {
    ended: CancellationToken,
    task: AbortOnDropHandle<()>,
}

impl RunningJournal {
    /// Starts the journal of a worker; `None` if it keeps none.
    pub(super) fn start(shared: &Arc<Shared>) -> Option<Self> {
        let kept = shared.options.history?;
        let options = shared.channel_options();
        let renewer = options.renewer.clone().map_or_else(LeaseRenewer::process, Ok);
        let renewer = renewer.inspect_err(|error| tracing::warn!(%error, "no history is kept")).ok()?;
        let journal = Arc::new(Journal::new(&options.worker, Arc::clone(&options.clock)));
        let ended = CancellationToken::new();
        shared.set_journal(&journal);
        let keep = keep(shared.storage.blobs_apart(), options.clock, journal, kept, ended.clone());
        Some(Self { ended, task: AbortOnDropHandle::new(task::spawn_on(renewer.runtime(), keep)) })
    }

    /// Writes what is left.
    pub(super) async fn end(self) {
        self.ended.cancel();
        let _ = tokio::time::timeout(LAST_ROUND, self.task).await;
    }
}

impl Shared {
    /// Notes the end of a delivery in the journal, if it is the end of its job.
    pub(super) fn note_end(
        &self,
        job: Option<&JobInfo>,
        outcome: &Outcome,
        ran: Duration,
        error: Option<&str>,
    ) {
        if let (Some(journal), Some(job)) = (self.journal(), job) {
            journal.push(job, outcome, ran, error);
        }
    }
}
