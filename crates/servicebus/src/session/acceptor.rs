//! Accepts sessions, one after the other, as long as there are free slots for them.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::super::amqp::GET_WAIT;
use super::driver::Driver;
use super::pool::{Demand, Failed, Shared};
use jobqueue_storage::log;
use jobqueue_storage::sync::lock;

/// The time for which the service waits for a session without a pending get, on behalf of a subscription.
const LONG: Duration = Duration::from_secs(10);
/// The time for which the service must have searched before its answer is taken as "there is none".
const SEARCH: Duration = Duration::from_secs(1);
/// The time after the end of its wait in which the service should have answered. It may take minutes now and then. A get does not wait for
/// so long; the attach does, and takes the next message.
const OVERTIME: Duration = Duration::from_secs(2);
/// The pause after an attach that failed.
const RETRY: Duration = Duration::from_millis(50);

/// Accepts sessions until the pool is dropped.
pub(super) async fn run(shared: Arc<Shared>) {
    // Whoever ends this task otherwise, as the end of its runtime does, ends the pool.
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

async fn accept(shared: &Arc<Shared>, demand: Demand) {
    let wait = match demand {
        Demand { is_patient: true, .. } => LONG,
        Demand { is_decisive: true, .. } => SEARCH,
        _ => GET_WAIT,
    };
    lock(&shared.state).is_patient = demand.is_patient;
    let asking = || shared.change(|state| state.overdue_at = Some(Instant::now() + wait + OVERTIME));
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
                // Gets have ended without it: their empty answers said nothing of the service. One that asks now fails, or else the next one.
                let get = match was_overdue {
                    true if state.gets.is_empty() => state.last_get + 1,
                    true => state.last_get,
                    false => demand.get,
                };
                state.failed = Some(Failed { get, fault, at: Instant::now() });
                // The next get tries again.
                state.forget_free_slots();
            });
            // A get that was given up is not notified.
            if !demand.is_awaited {
                shared.arrivals.notify();
            }
            tokio::time::sleep(RETRY).await;
        }
    }
}
