//! Random numbers and ids of the library: all of them come from here.
//!
//! In production they come from the thread's generator and the system's clock. A test may replace both on its thread by
//! a seed and a clock of its own ([`seeded`]), so that a run can be repeated exactly.

#[cfg(feature = "testing")]
pub(crate) mod seeded;

use std::time::Duration;

use rand::RngExt;
use rand::distr::uniform::{SampleRange, SampleUniform};
use rand::distr::{Distribution, StandardUniform};
use uuid::Uuid;

#[cfg(not(feature = "testing"))]
use rand::rng;
#[cfg(feature = "testing")]
use seeded::rng;

/// Returns a random value of the whole range of its type.
pub(crate) fn random<T>() -> T
where
    StandardUniform: Distribution<T>,
{
    rng().random()
}

/// Returns a random value of a range.
pub(crate) fn random_range<T: SampleUniform>(range: impl SampleRange<T>) -> T {
    rng().random_range(range)
}

/// Returns `duration` times a random factor.
pub(crate) fn jitter(duration: Duration, factor: impl SampleRange<f64>) -> Duration {
    duration.mul_f64(random_range(factor))
}

/// Returns a UUID of random bits.
pub(crate) fn uuid_v4() -> Uuid {
    #[cfg(feature = "testing")]
    if seeded::is_active() {
        return uuid::Builder::from_random_bytes(random()).into_uuid();
    }
    Uuid::new_v4()
}

/// Returns a UUID that begins with the present time.
pub(crate) fn uuid_v7() -> Uuid {
    #[cfg(feature = "testing")]
    if let Some(millis) = seeded::unix_millis() {
        return uuid::Builder::from_unix_timestamp_millis(millis, &random()).into_uuid();
    }
    Uuid::now_v7()
}
