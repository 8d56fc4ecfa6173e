//! The deliveries of a queue whose messages wait for their deletion.
//!
//! Where one request for many messages costs less than many requests, the messages of jobs that finish at about the
//! same time are deleted together: while one request is under way, the next gathers.

use std::sync::{Mutex, MutexGuard};

use super::queue_worker::DeliveryGuard;
use crate::delivery::{DeliveryReport, Executor};
use crate::sync::lock;

/// The maximum number of messages to delete by one request. A larger number would delay the first for little gain.
const MAX_TOGETHER: usize = 1_024;
/// The maximum number of concurrent requests: while the storage executes one, the next is already on its way.
const MAX_REQUESTS: usize = 2;

/// A delivery whose handler has finished and whose message must be deleted. The fields are dropped in this order: the
/// lease ends before the slot is free.
struct Completion {
    report: DeliveryReport,
    guard: DeliveryGuard,
}

/// The deliveries that wait for the deletion of their messages.
#[derive(Default)]
pub(super) struct Completions(Mutex<Gathered>);

#[derive(Default)]
struct Gathered {
    completions: Vec<Completion>,
    /// The number of tasks that send deletions.
    requests: usize,
}

impl Completions {
    fn gathered(&self) -> MutexGuard<'_, Gathered> {
        lock(&self.0)
    }

    /// Adds a delivery. Returns true if the caller must call [`delete`](Self::delete).
    pub(super) fn add(&self, report: DeliveryReport, guard: DeliveryGuard) -> bool {
        let mut gathered = self.gathered();
        gathered.completions.push(Completion { report, guard });
        let is_first = gathered.requests < MAX_REQUESTS;
        gathered.requests += usize::from(is_first);
        is_first
    }

    /// Sends deletions until no message waits, and hands over each delivery, also one whose message has to be deleted alone. If the future is
    /// dropped with its worker, the remaining messages become visible again.
    pub(super) async fn delete(
        &self,
        executor: &Executor,
        hand_over: impl Fn(DeliveryReport, DeliveryGuard),
    ) {
        loop {
            // Declared before the reports and so dropped after them: leases end before their slots are free.
            let (guards, mut reports) = {
                let mut gathered = self.gathered();
                let count = gathered.completions.len().min(MAX_TOGETHER);
                if count == 0 {
                    gathered.requests -= 1;
                    return;
                }
                let taken = gathered.completions.drain(..count);
                let parts = taken.map(|Completion { report, guard }| (guard, report));
                parts.unzip::<_, _, Vec<_>, Vec<_>>()
            };
            executor.delete_together(&mut reports).await;
            for (report, guard) in reports.into_iter().zip(guards) {
                hand_over(report, guard);
            }
        }
    }
}
