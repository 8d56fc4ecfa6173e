//! Accepts sessions, one at a time, as long as there are free slots for them.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::super::amqp::GET_WAIT;
use super::driver::Driver;
use super::pool::{Demand, FailedAttach, PoolCore};
use jobqueue_storage::log;
use jobqueue_storage::sync::lock;

/// The time that the service waits for a session on behalf of a subscription, while no get is pending.
const SESSION_WAIT: Duration = Duration::from_secs(10);
/// The minimum time that the service must have searched before its answer "no session" is believed.
const DECISIVE_WAIT: Duration = Duration::from_secs(1);
/// The grace after the end of its wait within which the service should have answered. It occasionally takes
/// minutes. A get does not wait that long; the attach does, and receives the next message.
const ANSWER_GRACE: Duration = Duration::from_secs(2);
/// The pause after a failed attach.
const ATTACH_RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Accepts sessions until the pool is dropped.
pub(super) async fn run(shared: Arc<PoolCore>) {
    // Ends the pool too if this task ends in another way, for example with its runtime.
    let _stop = shared.stop.clone().drop_guard();
    loop {
        let demand = shared.demand(&lock(&shared.state));
        let step = async {
            match demand {
                Some(demand) => accept(&shared, demand).await,
                None => shared.demanded.notified().await,
            }
        };
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => return,
            () = step => {}
        }
    }
}

async fn accept(shared: &Arc<PoolCore>, demand: Demand) {
    let wait = match demand {
        Demand { is_patient: true, .. } => SESSION_WAIT,
        Demand { is_decisive: true, .. } => DECISIVE_WAIT,
        _ => GET_WAIT,
    };
    lock(&shared.state).is_patient = demand.is_patient;
    let asking = || shared.change(|state| state.overdue_at = Some(Instant::now() + wait + ANSWER_GRACE));
    let accepted = shared.links.accept_session(&shared.queue, wait, asking).await;
    let was_overdue = {
        let mut state = lock(&shared.state);
        state.is_patient = false;
        state.overdue_at.take().is_some_and(|at| at <= Instant::now())
    };
    match accepted {
        Ok((accepted, live)) => {
            let driver = Driver::new(Arc::clone(shared), accepted, live);
            drop(shared.links.runtime().spawn(driver.run()));
        }
        Err(fault) if fault.is_no_session() => shared.change(|state| {
            if demand.is_decisive {
                state.emptied = state.emptied.max(demand.get);
            }
        }),
        Err(fault) => {
            log::debug!(queue = shared.queue, error = %fault, "no session of Service Bus was accepted");
            shared.change(|state| {
                // If the answer was overdue, gets have ended without it, and their empty answers did not
                // count as answers of the service. The fault then goes to the pending gets, or else to the
                // next get.
                let get = if was_overdue && state.gets.is_empty() {
                    state.last_get + 1
                } else if was_overdue {
                    state.last_get
                } else {
                    demand.get
                };
                state.failed = Some(FailedAttach { get, fault, at: Instant::now() });
                // The next get tries again.
                state.forget_free_slots();
            });
            // Subscribers are notified only if no get was pending when the attach began: such a get receives
            // the fault.
            if !demand.is_awaited {
                shared.arrivals.notify();
            }
            tokio::time::sleep(ATTACH_RETRY_PAUSE).await;
        }
    }
}
