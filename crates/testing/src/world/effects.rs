//! Effects that handlers have outside the framework.

use std::sync::Arc;

use jobqueue::JobInfo;

use super::ledger::{Fact, subject};
use super::shared::Shared;

/// Records the effects that a handler has outside the framework. Handlers take it as `State<Effects>`. An
/// effect is a finding if it happens twice in one run, or again without a cause after a run that was done.
#[derive(Debug, Clone)]
pub struct Effects {
    pub(super) shared: Arc<Shared>,
    pub(super) node: Arc<str>,
}

impl Effects {
    /// Records that a job had the effect `name`.
    pub fn happened(&self, name: &str, job: &JobInfo) {
        let (name, id) = (name.into(), subject(&job.source, &job.id));
        let (inserted, delivery) = (job.inserted, job.dequeue_count);
        self.shared.ledger.note_of(&self.node, &id, Fact::Effect { name, inserted, delivery });
    }
}
