//! Connects the worker with the hooks of batches and order; neither side depends on the other.

use std::sync::Arc;

use crate::coordination::batch::Membership;
use crate::delivery::Hook;
use crate::maintenance::CONTAINERS;
use crate::order::OrderHook;
use crate::storage::Storage;
use crate::worker::{Worker, WorkerBuilder};

impl Worker {
    /// Returns a builder for a worker of `storage`, with the hooks of batches and order.
    pub fn builder(storage: Storage) -> WorkerBuilder {
        // Order matters: a child must end in its batch before it ends in its key's order, because the next
        // job of the key may run after that.
        let hooks: Vec<Arc<dyn Hook>> = vec![Arc::new(Membership::default()), Arc::new(OrderHook::new())];
        WorkerBuilder::new(storage, hooks, CONTAINERS)
    }
}
