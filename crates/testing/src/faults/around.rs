//! Intercepts the operations of a storage and applies the plan to them.

use std::sync::Arc;

use jobqueue::storage::{Call, ExpiredReceipt, Interceptor, QueuePowers, StoreError};

use super::Shape;
use super::plan::Plan;

/// The plan for a storage's operations, and the powers and guarantees that the storage reports.
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

    /// Lets an expired receipt pass if the simulated storage does not check expiry.
    fn expired(&self, asked: ExpiredReceipt) -> ExpiredReceipt {
        if self.shape.guarantees.checks_expiry { asked } else { ExpiredReceipt::Allow }
    }

    fn queue_powers(&self, powers: QueuePowers) -> QueuePowers {
        let arrivals = powers.arrivals.filter(|_| self.shape.notifies);
        let groups = powers.groups.filter(|_| self.shape.orders_groups);
        QueuePowers { guarantees: self.shape.guarantees, arrivals, groups, ..powers }
    }
}
