//! Deliveries that wait in memory for their turn, without a slot.
//!
//! Their leases are renewed in the meantime, so that no other worker receives them; they run as soon as the job before
//! them has ended. The number of waiting deliveries and their bytes are bounded; all others are put back.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::hook::OVERDUE_TIMEOUT;
use crate::delivery::MAX_UNLOGGED_DELAY;
use crate::group_log::Progress;

/// The maximum number of waiting deliveries of one worker.
const MAX_PARKED: usize = 1_024;
/// The maximum number of waiting deliveries of one group.
const MAX_OF_GROUP: usize = 256;
/// The maximum size of all waiting payloads together, in KiB: 64 MiB.
const MAX_KIB: usize = 64 * 1024;
/// The memory that a delivery occupies besides its payload.
const OVERHEAD_KIB: usize = 8;
/// The maximum time that a delivery waits, if its run time allows: the lease counts from its start.
const LONGEST_WAIT: Duration = Duration::from_secs(600);
/// The shortest delay of a message that is put back.
const MIN_PUT_BACK: Duration = Duration::from_millis(250);
/// The longest delay of a message that is put back near its turn.
const MAX_PUT_BACK: Duration = Duration::from_secs(10);
/// The part of the delay for each entry before it: a group that moves ends about 200 jobs a second.
const FOR_EACH: Duration = Duration::from_millis(5);

/// The room for deliveries that wait.
#[derive(Debug)]
pub(super) struct Parking {
    places: Arc<Semaphore>,
    kib: Arc<Semaphore>,
}

/// Room that a waiting delivery occupies.
#[derive(Debug)]
pub(super) struct Parked {
    _place: OwnedSemaphorePermit,
    _kib: OwnedSemaphorePermit,
}

impl Parking {
    pub(super) fn new() -> Self {
        Self { places: Arc::new(Semaphore::new(MAX_PARKED)), kib: Arc::new(Semaphore::new(MAX_KIB)) }
    }

    /// Reserves room for a delivery with a payload of `bytes` and `ahead` entries before it.
    pub(super) fn park(&self, bytes: u64, ahead: usize) -> Option<Parked> {
        if ahead > MAX_OF_GROUP {
            return None;
        }
        let kib = u32::try_from(bytes / 1024).ok()?.checked_add(OVERHEAD_KIB as u32)?;
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        let kib = Arc::clone(&self.kib).try_acquire_many_owned(kib).ok()?;
        Some(Parked { _place: place, _kib: kib })
    }
}

/// Returns the time that a delivery waits that may run for `run_time`.
pub(super) fn longest_wait(run_time: Duration, until_idle: bool) -> Duration {
    // A worker that runs until it is idle does not wait for a delayed message.
    if until_idle { Duration::from_secs(1) } else { (run_time / 8).min(LONGEST_WAIT) }
}

/// Returns the delay of a message that is put back with `ahead` entries before it at its `delivery`-th delivery. The
/// message comes back shortly before its turn if the group moves, and not much later if it does not.
pub(super) fn put_back_delay(ahead: usize, delivery: u32) -> Duration {
    let near = for_each(FOR_EACH, ahead).min(OVERDUE_TIMEOUT);
    let doubled = near.max(MIN_PUT_BACK).saturating_mul(1 << delivery.saturating_sub(1).min(2));
    doubled.min(MAX_PUT_BACK.max(near))
}

/// Returns the least delay of a message that is put back with `ahead` entries before it in a group that makes this progress: half of the time
/// that these take at its pace, or for which it has stood still. It is found that the group goes on within half of that time. The delay needs no
/// note in the log: the jobs behind it wait longer for a missing message, however short the queue is.
pub(super) fn least_put_back_delay(progress: Progress, ahead: usize) -> Duration {
    let longest = MAX_UNLOGGED_DELAY.saturating_add(for_each(2 * FOR_EACH, ahead)).min(OVERDUE_TIMEOUT);
    (for_each(progress.pace, ahead).max(progress.stands_still) / 2).min(longest)
}

fn for_each(time: Duration, entries: usize) -> Duration {
    time.saturating_mul(u32::try_from(entries).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_grows_with_the_position() {
        let waits = [
            put_back_delay(1, 1),
            put_back_delay(1, 100),
            put_back_delay(400, 1),
            put_back_delay(400, 3),
            put_back_delay(20_000, 9),
        ];
        assert_eq!(waits.map(|wait| wait.as_millis()), [250, 1_000, 2_000, 8_000, 100_000]);
        assert_eq!(put_back_delay(1_000_000, 1), OVERDUE_TIMEOUT);
        let slow = Progress { stands_still: Duration::ZERO, pace: Duration::from_secs(10) };
        let meanwhile = [1, 1_000, 10_000, 100_000].map(|ahead| least_put_back_delay(slow, ahead).as_secs());
        assert_eq!(meanwhile, [5, 69, 120, 120]);
        assert!(longest_wait(Duration::from_secs(60), false) < Duration::from_secs(10));
        assert_eq!(longest_wait(Duration::from_secs(86_400), false), LONGEST_WAIT);
    }

    #[test]
    fn few_of_a_group_wait_and_not_with_large_payloads() {
        let parking = Parking::new();
        assert!(parking.park(100, MAX_OF_GROUP + 1).is_none());
        let large = parking.park(60 << 20, 1);
        assert!(large.is_some() && parking.park(60 << 20, 2).is_none());
        drop(large);
        assert!(parking.park(60 << 20, 2).is_some());
    }
}
