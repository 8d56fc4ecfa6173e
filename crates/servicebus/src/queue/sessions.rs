//! The sessions that a handle keeps for its queues.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::super::session::Pool;
use jobqueue_storage::QueueName;

/// The sessions of the queues of a handle.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    /// The queues of which it is known whether they require sessions; shared with handles that were detached.
    pub(super) required: Arc<Mutex<HashMap<QueueName, bool>>>,
    pub(super) pools: Mutex<HashMap<QueueName, Arc<Pool>>>,
}

impl Sessions {
    pub(super) fn detached(&self) -> Self {
        Self { required: Arc::clone(&self.required), pools: Mutex::default() }
    }
}
