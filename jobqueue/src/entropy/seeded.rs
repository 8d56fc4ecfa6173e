//! A seeded generator for one thread, with the time from a clock: for tests on a runtime of one thread.

use std::cell::RefCell;
use std::convert::Infallible;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::SystemTime;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng, TryRng};

use crate::clock::Clock;

thread_local! {
    static CURRENT: RefCell<Option<Seeded>> = const { RefCell::new(None) };
}

/// The replacement of the thread's generator and the system's clock.
#[derive(Debug)]
struct Seeded {
    rng: StdRng,
    clock: Arc<dyn Clock>,
}

/// A generator that uses the seed of this thread if it has one, else the thread's own generator.
pub(super) struct Source;

pub(super) fn rng() -> Source {
    Source
}

impl Source {
    fn draw<T>(seeded: impl FnOnce(&mut StdRng) -> T, own: impl FnOnce() -> T) -> T {
        CURRENT.with_borrow_mut(|current| match current {
            Some(current) => seeded(&mut current.rng),
            None => own(),
        })
    }
}

impl TryRng for Source {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(Self::draw(Rng::next_u32, || rand::rng().next_u32()))
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(Self::draw(Rng::next_u64, || rand::rng().next_u64()))
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        CURRENT.with_borrow_mut(|current| match current {
            Some(current) => current.rng.fill_bytes(bytes),
            None => rand::rng().fill_bytes(bytes),
        });
        Ok(())
    }
}

pub(super) fn is_active() -> bool {
    CURRENT.with_borrow(Option::is_some)
}

/// Returns the time of the thread's own clock; `None` if it has none.
pub(super) fn unix_millis() -> Option<u64> {
    let clock = CURRENT.with_borrow(|current| current.as_ref().map(|seeded| Arc::clone(&seeded.clock)))?;
    let since = clock.now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).ok()
}

/// Makes the library take all random numbers and ids on this thread from a seed, and the time of ids from `clock`,
/// until the guard is dropped.
///
/// ```
/// use jobqueue::testing::simulation::seed;
/// use jobqueue::clock::ManualClock;
/// use jobqueue::Backoff;
/// use std::sync::Arc;
///
/// let delay = || {
///     let _seeded = seed(42, Arc::new(ManualClock::new()));
///     Backoff::DEFAULT.delay(5)
/// };
/// assert_eq!(delay(), delay());
/// ```
pub fn seed(seed: u64, clock: Arc<dyn Clock>) -> Seeding {
    let seeded = Seeded { rng: StdRng::seed_from_u64(seed), clock };
    Seeding { before: CURRENT.replace(Some(seeded)), thread: PhantomData }
}

/// A guard that restores the thread's own generator when it is dropped. [`seed`] creates it.
#[derive(Debug)]
#[must_use = "the seed holds until the guard is dropped"]
pub struct Seeding {
    before: Option<Seeded>,
    thread: PhantomData<*const ()>,
}

impl Drop for Seeding {
    fn drop(&mut self) {
        CURRENT.set(self.before.take());
    }
}

#[cfg(test)]
mod tests {
    use crate::clock::ManualClock;
    use crate::entropy::{random, uuid_v4, uuid_v7};

    use super::*;

    #[test]
    fn one_seed_draws_the_same_numbers_and_ids_again() {
        let draw = |seed| {
            let _seeded = super::seed(seed, Arc::new(ManualClock::new()));
            (random::<u128>(), uuid_v4(), uuid_v7())
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert_eq!(draw(7).2.get_timestamp().map(|at| at.to_unix().0), Some(1_767_225_600));
        assert!(!is_active());
    }
}
