//! Effects that handlers have on the outside.

use std::fmt;
use std::sync::Arc;

use super::ledger::Fact;
use super::shared::Shared;
use crate::job::JobInfo;

/// Takes note of what a handler does to the outside: an extractor, as `State<Effects>`. An effect that happens twice without a
/// cause is a finding.
#[derive(Clone)]
pub struct Effects {
    pub(super) shared: Arc<Shared>,
    pub(super) node: Arc<str>,
}

impl Effects {
    /// Notes an effect of a job.
    pub fn happened(&self, name: &str, job: &JobInfo) {
        let (name, id) = (name.into(), Arc::clone(&job.id));
        self.shared.ledger.note(&self.node, Fact::Effect { name, id });
    }
}

impl fmt::Debug for Effects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Effects").field(&self.node).finish()
    }
}
