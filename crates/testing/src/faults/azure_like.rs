//! A seeded model of a distant and busy Azure Storage account.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::storage::{Operation, StoreErrorKind, Stores};
use jobqueue_storage::sync::lock;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::plan::Plan;
use super::{Call, Fault, Faulty, Shape};

/// The behaviour of a distant, busy Azure Storage account. Every call takes 5–60 ms. No call fails until
/// [`faults`](Self::faults) sets a rate.
///
/// ```
/// use jobqueue_testing::faults::{AzureLike, Faulty};
/// use jobqueue::{QueueName, Storage};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// let stormy = Faulty::azure_like(&Storage::memory(), AzureLike::seeded(42).faults(0.05));
/// let queue = QueueName::new("jobs").unwrap();
/// let before = tokio::time::Instant::now();
/// drop(stormy.storage().queues().create_queue(&queue, &Default::default()).await);
/// assert!(before.elapsed().as_millis() >= 5);
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct AzureLike {
    seed: u64,
    rate: f64,
}

impl Default for AzureLike {
    /// Returns the profile of [`Faulty::new`]: latency only, drawn from the seed in the environment variable
    /// `JOBQUEUE_FAULT_SEED`, or from seed 0.
    fn default() -> Self {
        let given = std::env::var("JOBQUEUE_FAULT_SEED").ok();
        Self::seeded(given.and_then(|seed| seed.parse().ok()).unwrap_or(0))
    }
}

impl AzureLike {
    /// The latency of the slowest call, unless a fault delays it.
    pub const SLOWEST: Duration = Duration::from_millis(60);

    /// Returns a profile with latency only, drawn from `seed`.
    pub fn seeded(seed: u64) -> Self {
        Self { seed, rate: 0.0 }
    }

    jobqueue_storage::setters! {
        /// Sets the share of calls that fail, from 0 to 1. The failures are refused connections, lost
        /// requests, lost answers (some after many seconds), failures of the service, and throttling with
        /// `Retry-After`. A failed call may or may not have been applied.
        faults(rate: f64) = rate.clamp(0.0, 1.0);
    }

    pub(crate) fn start(self) -> Behaviour {
        Behaviour { rng: StdRng::seed_from_u64(self.seed), rate: self.rate }
    }
}

/// The random draws of a profile.
pub(crate) struct Behaviour {
    rng: StdRng,
    rate: f64,
}

impl Behaviour {
    pub(crate) fn faults(&mut self, call: &Call) -> Vec<Fault> {
        let mut faults = vec![Fault::DelayBefore(self.millis(2..=30))];
        if self.rate > 0.0 && self.rng.random_bool(self.rate) {
            self.fail(call.operation, &mut faults);
        }
        faults.push(Fault::DelayAfter(self.millis(3..=30)));
        faults
    }

    fn fail(&mut self, operation: Operation, faults: &mut Vec<Fault>) {
        let is_change = operation.is_change();
        match self.rng.random_range(0..10) {
            // No answer arrives, and the client times out.
            0 => faults.extend([Fault::DelayBefore(self.client_timeout()), lost(is_change, false)]),
            1 | 2 => faults.extend([Fault::DelayAfter(self.client_timeout()), lost(is_change, true)]),
            // The connection is refused, or breaks at once.
            3 if self.rng.random() => faults.push(Fault::Refuse(StoreErrorKind::Unavailable)),
            3 => faults.push(lost(is_change, false)),
            4..=6 => faults.push(lost(is_change, true)),
            _ => {
                let (retry_after, applied) = (self.millis(500..=8_000), is_change && self.rng.random());
                faults.push(match (is_change, applied) {
                    (true, applied) => Fault::ThrottleInDoubt { retry_after, applied },
                    (false, _) => Fault::Throttle(retry_after),
                });
            }
        }
    }

    fn client_timeout(&mut self) -> Duration {
        self.millis(200..=15_000)
    }

    fn millis(&mut self, range: std::ops::RangeInclusive<u64>) -> Duration {
        Duration::from_millis(self.rng.random_range(range))
    }
}

/// Decides whether a throttled change is applied: Azure Storage does not promise that a change answered with
/// 503 was not applied.
pub(super) struct Doubt(StdRng);

impl Doubt {
    /// Returns the fault to use instead of `fault`: a throttled change is applied or not, at random.
    pub(super) fn of(&mut self, operation: Operation, fault: Fault) -> Fault {
        if !operation.is_change() {
            return fault;
        }
        match fault {
            Fault::Throttle(retry_after) => Fault::ThrottleInDoubt { retry_after, applied: self.0.random() },
            Fault::Refuse(kind @ StoreErrorKind::Throttled) if self.0.random() => Fault::DropAnswer(kind),
            Fault::Refuse(kind @ StoreErrorKind::Throttled) => Fault::LoseRequest(kind),
            other => other,
        }
    }
}

/// Returns the fault for a call without an answer. A read changes nothing either way.
pub(crate) fn lost(is_change: bool, applied: bool) -> Fault {
    match (is_change, applied) {
        (false, _) => Fault::Refuse(StoreErrorKind::Unavailable),
        (true, false) => Fault::LoseRequest(StoreErrorKind::Unavailable),
        (true, true) => Fault::DropAnswer(StoreErrorKind::Unavailable),
    }
}

impl Faulty {
    /// Wraps `storage` so that it behaves as Azure Storage does: it sends no notifications, deletes messages
    /// one by one, leaves it to the caller to refuse an expired receipt, answers after a delay, and fails at
    /// the rate of the profile.
    ///
    /// The wrapper sleeps on tokio's clock, so pause time in the test. A planned fault replaces the profile's
    /// own faults for that call, but not the delay before it.
    pub fn azure_like(storage: &impl AsRef<Stores>, profile: AzureLike) -> Self {
        Self::distant(storage.as_ref(), Shape::of_azure(), profile)
    }

    /// Wraps `stores` so that each call passes through `profile`.
    pub(super) fn distant(stores: &Stores, shape: Shape, profile: AzureLike) -> Self {
        let doubt = Doubt(StdRng::seed_from_u64(profile.seed));
        let behaviour = Arc::new(Mutex::new(profile.start()));
        let faulty = Self::over(stores, shape, Plan::in_doubt(doubt));
        faulty.behave(move |call| lock(&behaviour).faults(call));
        faulty
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jobqueue::storage::{Metadata, PutMessage, QueueName, Storage};

    #[derive(Debug, PartialEq)]
    struct Puts {
        acknowledged: u32,
        refused: u32,
        in_doubt: u32,
        stored: u64,
    }

    /// Makes 1,000 puts and counts their answers and the stored messages.
    async fn puts(profile: AzureLike) -> Puts {
        let inner = Storage::memory();
        let queue = QueueName::new("jobs").unwrap();
        inner.queues().create_queue(&queue, &Metadata::new()).await.unwrap();
        let faulty = Faulty::azure_like(&inner, profile);
        let mut puts = Puts { acknowledged: 0, refused: 0, in_doubt: 0, stored: 0 };
        for _ in 0..1_000 {
            match faulty.storage().queues().put(&queue, PutMessage::new("job")).await {
                Ok(_) => puts.acknowledged += 1,
                Err(error) if error.is_ambiguous() => puts.in_doubt += 1,
                Err(_) => puts.refused += 1,
            }
        }
        puts.stored = inner.queues().queue_properties(&queue).await.unwrap().approximate_count;
        puts
    }

    #[tokio::test(start_paused = true)]
    async fn calls_fail_at_the_given_rate_and_some_failed_calls_were_applied() {
        let all_stored = Puts { acknowledged: 1_000, refused: 0, in_doubt: 0, stored: 1_000 };
        assert_eq!(puts(AzureLike::seeded(1)).await, all_stored);
        let first = puts(AzureLike::seeded(1).faults(0.2)).await;
        assert!((700..900).contains(&first.acknowledged), "{first:?}");
        assert!((1..40).contains(&first.refused), "{first:?}");
        assert_eq!(first.acknowledged + first.refused + first.in_doubt, 1_000);
        let applied = u32::try_from(first.stored).unwrap() - first.acknowledged;
        assert!(applied > first.in_doubt / 4, "{first:?}");
        assert!(applied < first.in_doubt, "{first:?}");
        assert_eq!(puts(AzureLike::seeded(1).faults(0.2)).await, first);
    }
}
