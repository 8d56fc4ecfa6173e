//! Connects the worker with the hooks of coordination: neither of them knows the other.

use std::sync::Arc;

use crate::coordination::batch::Membership;
use crate::delivery::Hook;
use crate::maintenance::CONTAINERS;
use crate::order::OrderHook;
use crate::storage::Storage;
use crate::worker::{Worker, WorkerBuilder};

impl Worker {
    /// Returns a builder for a worker of `storage`, with the hooks of batches, order and unique work.
    pub fn builder(storage: Storage) -> WorkerBuilder {
        // A child ends in its batch before it ends in its order: then the next of its key may run.
        let hooks: Vec<Arc<dyn Hook>> = vec![Arc::new(Membership::default()), Arc::new(OrderHook::new())];
        WorkerBuilder::new(storage, hooks, CONTAINERS)
    }
}
