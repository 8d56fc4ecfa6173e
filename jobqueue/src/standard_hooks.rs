//! Puts the worker and what coordinates several jobs together: neither knows the other.

use std::sync::Arc;

use crate::coordination::batch::Membership;
use crate::coordination::fifo::InOrder;
use crate::standard_sweep::CONTAINERS;
use crate::storage::Storage;
use crate::worker::{Hook, Worker, WorkerBuilder};

impl Worker {
    /// Begins to put a worker together.
    pub fn builder(storage: Storage) -> WorkerBuilder {
        let hooks: Vec<Arc<dyn Hook>> = vec![Arc::new(Membership::default()), Arc::new(InOrder::new())];
        WorkerBuilder::new(storage, hooks, CONTAINERS)
    }
}
