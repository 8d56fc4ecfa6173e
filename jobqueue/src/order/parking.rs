//! Deliveries that wait in memory for their turn, without a slot.
//!
//! Their leases are renewed while they wait, so that no other worker receives them; a delivery runs as soon
//! as the job before it has ended. The number of waiting deliveries is bounded; all others are put back.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::hook::OVERDUE_TIMEOUT;
use crate::delivery::MAX_UNLOGGED_DELAY;
use crate::group_log::Progress;

/// The maximum number of waiting deliveries of one worker. Their texts have at most 64 MiB, 64 KiB each: a
/// payload in a blob is fetched after the wait.
const MAX_PARKED: usize = 1_024;
/// The maximum number of waiting deliveries of one group.
const MAX_PARKED_OF_GROUP: usize = 256;
/// The maximum time that a delivery waits, if its run time allows: the lease counts from the start of the
/// wait.
const MAX_WAIT: Duration = Duration::from_secs(600);
/// The shortest delay of a message that is put back.
const MIN_PUT_BACK: Duration = Duration::from_millis(250);
/// The longest delay of a message that is put back near its turn.
const MAX_PUT_BACK: Duration = Duration::from_secs(10);
/// The part of the delay for each entry before the message: a group that makes progress ends about 200 jobs a
/// second.
const DELAY_PER_ENTRY: Duration = Duration::from_millis(5);

/// The places for waiting deliveries.
#[derive(Debug)]
pub(super) struct Parking(Arc<Semaphore>);

impl Parking {
    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(MAX_PARKED)))
    }

    /// Takes a place for a delivery with `ahead` entries before it.
    pub(super) fn park(&self, ahead: usize) -> Option<OwnedSemaphorePermit> {
        if ahead > MAX_PARKED_OF_GROUP {
            return None;
        }
        Arc::clone(&self.0).try_acquire_owned().ok()
    }
}

/// Returns the maximum wait of a delivery that may run for `run_time`.
pub(super) fn max_wait(run_time: Duration, until_idle: bool) -> Duration {
    // A worker that runs until it is idle does not wait for a delayed message.
    if until_idle { Duration::from_secs(1) } else { (run_time / 8).min(MAX_WAIT) }
}

/// Returns the delay of a message that is put back with `ahead` entries before it at its `delivery`-th
/// delivery. The message comes back shortly before its turn if the group makes progress, and not much later
/// if it does not.
pub(super) fn put_back_delay(ahead: usize, delivery: u32) -> Duration {
    let to_turn = per_entry(DELAY_PER_ENTRY, ahead).min(OVERDUE_TIMEOUT);
    let doubled = to_turn.max(MIN_PUT_BACK).saturating_mul(1 << delivery.saturating_sub(1).min(2));
    doubled.min(MAX_PUT_BACK.max(to_turn))
}

/// Returns the minimum delay of a message that is put back with `ahead` entries before it in a group with
/// this progress: half of the time that these entries take at the group's pace, or half of the time for which
/// the group has stood still. So renewed progress is found within half of the standstill. The delay needs no
/// record in the log: the jobs behind the message wait longer for a missing message, however short the queue
/// is.
pub(super) fn min_put_back_delay(progress: Progress, ahead: usize) -> Duration {
    let longest =
        MAX_UNLOGGED_DELAY.saturating_add(per_entry(2 * DELAY_PER_ENTRY, ahead)).min(OVERDUE_TIMEOUT);
    (per_entry(progress.pace, ahead).max(progress.stands_still) / 2).min(longest)
}

fn per_entry(time: Duration, entries: usize) -> Duration {
    time.saturating_mul(u32::try_from(entries).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn put_back_delay_grows_with_the_position_and_the_deliveries() {
        let millis = |ahead, delivery| put_back_delay(ahead, delivery).as_millis();
        assert_eq!(millis(1, 1), 250);
        assert_eq!(millis(1, 100), 1_000);
        assert_eq!(millis(400, 1), 2_000);
        assert_eq!(millis(400, 3), 8_000);
        assert_eq!(millis(20_000, 9), 100_000);
        assert_eq!(put_back_delay(1_000_000, 1), OVERDUE_TIMEOUT);
    }

    #[test]
    fn put_back_delay_follows_the_pace_of_a_slow_group_up_to_a_bound() {
        let slow = Progress { stands_still: Duration::ZERO, pace: Duration::from_secs(10) };
        let seconds = |ahead| min_put_back_delay(slow, ahead).as_secs();
        assert_eq!(seconds(1), 5);
        assert_eq!(seconds(1_000), 69, "the time that deliveries go unrecorded, and 10 ms for each entry");
        assert_eq!(seconds(10_000), OVERDUE_TIMEOUT.as_secs());
        assert_eq!(seconds(100_000), OVERDUE_TIMEOUT.as_secs());
    }

    #[test]
    fn wait_is_a_part_of_the_run_time() {
        assert!(max_wait(Duration::from_secs(60), false) < Duration::from_secs(10));
        assert_eq!(max_wait(Duration::from_secs(86_400), false), MAX_WAIT);
    }

    #[test]
    fn delivery_far_from_its_turn_is_not_parked() {
        let parking = Parking::new();
        assert!(parking.park(MAX_PARKED_OF_GROUP).is_some());
        assert!(parking.park(MAX_PARKED_OF_GROUP + 1).is_none());
    }
}
