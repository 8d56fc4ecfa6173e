//! Puts the worker and what coordinates several jobs together: neither knows the other.

use std::sync::Arc;

use crate::coordination::batch::Membership;
use crate::coordination::fifo::InOrder;
use crate::storage::Storage;
use crate::worker::{Worker, WorkerBuilder};

impl Worker {
    /// Begins to put a worker together.
    pub fn builder(storage: Storage) -> WorkerBuilder {
        WorkerBuilder::new(storage, vec![Arc::new(Membership::default()), Arc::new(InOrder::new())])
    }
}
