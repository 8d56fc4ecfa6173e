//! Accepts sessions, one after the other, as long as there are free slots for them.

use std::sync::Arc;
use std::time::Duration;

use super::driver::Driver;
use super::pool::{Demand, Shared};
use jobqueue_storage::log;
use jobqueue_storage::sync::lock;

/// The time for which the service waits for a session without a pending get, on behalf of a subscription.
const LONG: Duration = Duration::from_secs(10);
/// The time for which the service must have searched in vain, before its answer is taken as "there is none".
const SEARCH: Duration = Duration::from_secs(1);
/// The shortest wait: the service reads milliseconds.
const SHORTEST: Duration = Duration::from_millis(1);

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
        Demand { is_telling: true, .. } => shared.wait.max(SEARCH),
        _ => shared.wait.max(SHORTEST),
    };
    lock(&shared.state).is_patient = demand.is_patient;
    let accepted = shared.links.accept_session(&shared.queue, wait).await;
    lock(&shared.state).is_patient = false;
    match accepted {
        Ok((accepted, live)) => {
            let driver = Driver::new(Arc::clone(shared), accepted, live);
            drop(shared.links.runtime().spawn(driver.run()));
        }
        Err(fault) if fault.is_no_session() => shared.change(|state| {
            if demand.is_telling {
                state.emptied = state.emptied.max(demand.get);
            }
        }),
        Err(fault) => {
            log::debug!(queue = shared.queue, error = %fault, "no session of Service Bus was accepted");
            shared.change(|state| {
                state.failed = Some((demand.get, fault));
                // The next get tries again.
                state.forget_free_slots();
            });
            // A get that was given up is not notified.
            if !demand.is_awaited {
                shared.arrivals.notify();
            }
            tokio::time::sleep(shared.wait.max(SHORTEST)).await;
        }
    }
}
