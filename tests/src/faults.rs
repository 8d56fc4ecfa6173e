//! Calls of a storage that is as far away as Azure.

use std::time::Duration;

use jobqueue_testing::faults::{AzureLike, Call};

/// Returns the pauses between calls of the storage, beyond the time of a call: deliberate waits, and calls that hung.
pub fn pauses(calls: &[Call]) -> Vec<Duration> {
    let gaps = calls.windows(2).map(|two| two[1].at.duration_since(two[0].at));
    gaps.map(|gap| gap.saturating_sub(AzureLike::SLOWEST)).filter(|pause| !pause.is_zero()).collect()
}
