//! Calls of a storage that is as far away as Azure.

use std::time::Duration;

use jobqueue::testing::faults::{AzureLike, Call};

/// Returns for how long nobody called the storage, beyond the time that a call takes: the pauses that somebody waited on
/// purpose, or for a call that hung.
pub fn pauses(calls: &[Call]) -> Vec<Duration> {
    let gaps = calls.windows(2).map(|two| two[1].at.duration_since(two[0].at));
    gaps.map(|gap| gap.saturating_sub(AzureLike::SLOWEST)).filter(|pause| !pause.is_zero()).collect()
}
