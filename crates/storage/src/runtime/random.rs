//! Random numbers and ids.

use std::ops::RangeInclusive;
use std::sync::MutexGuard;
use std::time::{Duration, SystemTime};

use rand::rngs::StdRng;
use rand::{Rng, RngExt};
use uuid::{Builder, Uuid};

use super::Runtime;
use crate::sync::lock;

impl Runtime {
    /// Returns 64 random bits.
    pub fn random_u64(&self) -> u64 {
        self.seeded().map_or_else(|| rand::rng().random(), |mut seeded| seeded.random())
    }

    /// Returns 128 random bits.
    pub fn random_u128(&self) -> u128 {
        self.seeded().map_or_else(|| rand::rng().random(), |mut seeded| seeded.random())
    }

    /// Returns random bytes.
    pub fn random_bytes<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        match self.seeded() {
            Some(mut seeded) => seeded.fill_bytes(&mut bytes),
            None => rand::rng().fill_bytes(&mut bytes),
        }
        bytes
    }

    /// Returns `duration` times a random factor.
    ///
    /// # Panics
    /// If the range is empty or its end is not a finite number, or if the product is no duration.
    pub fn jitter(&self, duration: Duration, factor: RangeInclusive<f64>) -> Duration {
        duration.mul_f64(match self.seeded() {
            Some(mut seeded) => seeded.random_range(factor),
            None => rand::rng().random_range(factor),
        })
    }

    /// Returns a UUID of random bits.
    pub fn uuid_v4(&self) -> Uuid {
        Builder::from_random_bytes(self.random_bytes()).into_uuid()
    }

    /// Returns a UUID that begins with the time. A seeded runtime takes the time from its clock; otherwise it
    /// is the operating system's time, and the ids are in the order of the calls.
    pub fn uuid_v7(&self) -> Uuid {
        let Some(mut seeded) = self.seeded() else { return Uuid::now_v7() };
        let since = self.now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let millis = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let mut bytes = [0; 10];
        seeded.fill_bytes(&mut bytes);
        Builder::from_unix_timestamp_millis(millis, &bytes).into_uuid()
    }

    #[inline]
    fn seeded(&self) -> Option<MutexGuard<'_, StdRng>> {
        self.0.as_ref()?.seeded.as_deref().map(lock)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::clock::ManualClock;

    #[test]
    fn same_seed_draws_the_same_numbers_and_ids() {
        let draw = |seed| {
            let runtime = Runtime::new().with_clock(Arc::new(ManualClock::new())).with_seed(seed);
            (runtime.random_u128(), runtime.uuid_v4(), runtime.uuid_v7())
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert_eq!(draw(7).2.get_timestamp().map(|at| at.to_unix().0), Some(1_767_225_600));
    }

    #[test]
    fn default_runtime_draws_other_ids_each_time() {
        let runtime = Runtime::new();
        assert_ne!(runtime.uuid_v4(), runtime.uuid_v4());
        assert!(runtime.uuid_v7() < runtime.uuid_v7());
    }
}
