//! The effects that handlers have outside the framework.

use std::sync::Arc;

use jobqueue::JobInfo;

use super::ledger::{Fact, subject};
use super::shared::Shared;

/// Records a handler's effects outside the framework. It is an extractor: `State<Effects>`. An effect that happens
/// twice in one run, or again after a run that was done, without a cause, is a finding.
#[derive(Debug, Clone)]
pub struct Effects {
    pub(super) shared: Arc<Shared>,
    pub(super) node: Arc<str>,
}

impl Effects {
    /// Records an effect of a job.
    pub fn happened(&self, name: &str, job: &JobInfo) {
        let (name, id) = (name.into(), subject(&job.source, &job.id));
        let (inserted, delivery) = (job.inserted, job.dequeue_count);
        self.shared.ledger.note_of(&self.node, &id, Fact::Effect { name, inserted, delivery });
    }
}
