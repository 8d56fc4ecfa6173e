//! The runs that a worker's record shows to operators.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::state::DeliveryState;
use crate::job::JobInfo;
use crate::presence::{Run, Tracker};

/// A run that the worker's record shows until this is dropped.
pub(super) struct RunRecord<'a> {
    tracker: &'a Tracker,
    pub(super) run: Arc<Run>,
}

impl<'a> RunRecord<'a> {
    /// Records that a handler starts; `None` if the worker keeps no record.
    pub(super) fn begin(
        state: &'a DeliveryState,
        job: &Arc<JobInfo>,
        started: Instant,
        lease: Duration,
    ) -> Option<Self> {
        let tracker = &**state.tracker()?;
        Some(Self { tracker, run: tracker.begin(job, started, lease) })
    }

    /// Resolves when an operator cancels the job.
    pub(super) async fn cancelled(&self) {
        self.tracker.cancelled(&self.run).await;
    }
}

impl Drop for RunRecord<'_> {
    fn drop(&mut self) {
        self.tracker.end(&self.run);
    }
}
