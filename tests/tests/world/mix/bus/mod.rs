//! Service Bus behind the accounts: the real adapter on the emulator, which runs in lockstep with virtual
//! time.
//!
//! A task of the world carries the bytes between the connections of the processes and the emulator, with a
//! delay of some milliseconds. While the emulator works, no virtual time passes, and between two exchanges
//! the emulator stands still. So the seed decides the order of everything, except for the random choices of
//! `tokio::select!` in the AMQP client.

mod hub;
mod trouble;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use jobqueue::clock::Clock;
use jobqueue::servicebus::Options;
use jobqueue::{Runtime, Storage, memory};
use jobqueue_test_support::servicebus::Lockstep;
use jobqueue_testing::world::{Builder, Host};

use self::hub::Hub;
use self::wire::Line;
use super::features::Feature;
use super::plan::Plan;

/// The lengths of locks, chosen by the seed: shorter and longer than the leases for which the jobs ask.
const LOCKS: [u64; 4] = [15, 30, 60, 300];

/// Sets the storage of a world.
pub(super) fn of(world: Builder, plan: &Plan, sessions: bool) -> Builder {
    let (seed, trouble) = (plan.noise, trouble::Rates::of(plan));
    let lock = Duration::from_secs(LOCKS[(plan.seed % 4) as usize]);
    let detects = plan.has(Feature::Resend) && plan.seed.is_multiple_of(2);
    world.connections(move |clock: Arc<dyn Clock>| {
        let blobs = memory::open_on(Runtime::new().with_clock(Arc::clone(&clock)));
        let hub = Hub::open(clock, seed, trouble);
        move |host: &Host| {
            let mut options = Options::from_connection_string(&Lockstep::connection_string()).unwrap();
            options = options.lock_duration(lock).sessions(sessions);
            if detects {
                options = options.duplicate_detection(Duration::from_secs(600));
            }
            let line = Line { hub: Arc::clone(&hub), host: host.clone() };
            open(options.runtime(host.runtime.clone()).network(Arc::new(line)), &blobs)
        }
    })
}

fn open(options: Options, blobs: &Storage) -> Storage {
    Storage::from(options.with_blobs_of(blobs).unwrap())
}
