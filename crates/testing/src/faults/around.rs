//! Performs the operations of a storage under the plan.

use std::sync::Arc;

use jobqueue::storage::{Call, ExpiredReceipt, Interceptor, QueuePowers, StoreError};

use super::Shape;
use super::plan::Plan;

/// The plan around a storage's operations, and what the storage says of itself.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) plan: Arc<Plan>,
    pub(super) shape: Shape,
}

impl Interceptor for Planned {
    async fn call<T: Send>(
        &self,
        call: Call<'_>,
        perform: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        self.plan.run(call.operation, &call.subject, perform).await
    }

    async fn call_all<T: Send>(
        &self,
        call: Call<'_>,
        count: usize,
        perform: impl Future<Output = Vec<Result<T, StoreError>>> + Send,
    ) -> Vec<Result<T, StoreError>> {
        self.plan.run_all(call.operation, &call.subject, count, perform).await
    }

    /// A storage that does not check expiry accepts an expired receipt.
    fn expired(&self, asked: ExpiredReceipt) -> ExpiredReceipt {
        if self.shape.guarantees.checks_expiry { asked } else { ExpiredReceipt::Allow }
    }

    fn queue_powers(&self, powers: QueuePowers) -> QueuePowers {
        let arrivals = powers.arrivals.filter(|_| self.shape.notifies);
        let groups = powers.groups.filter(|_| self.shape.orders_groups);
        QueuePowers { guarantees: self.shape.guarantees, arrivals, groups, ..powers }
    }
}
