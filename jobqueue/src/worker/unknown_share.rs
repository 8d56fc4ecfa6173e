//! The share of messages that a worker does not know or may not run now. While a newer release runs beside it, an older
//! worker polls a moment later, and so leaves the messages to workers that know them.

use std::sync::Mutex;
use std::time::Duration;

use crate::entropy;
use crate::sync::lock;

/// The pause before each fetch of a worker that knows none of its messages.
const LONGEST: Duration = Duration::from_secs(1);
/// The weight of the newest message.
const WEIGHT: f64 = 0.125;
/// A share that makes no difference.
const NONE: f64 = 0.01;

/// The share of messages for other workers among the latest ones of a queue.
#[derive(Debug, Default)]
pub(super) struct UnknownShare(Mutex<f64>);

impl UnknownShare {
    /// Records a message.
    pub(super) fn note(&self, is_for_others: bool) {
        let mut share = lock(&self.0);
        if is_for_others {
            *share += (1.0 - *share) * WEIGHT;
        } else if *share > 0.0 {
            *share -= *share * WEIGHT;
        }
    }

    /// Returns the pause before the next fetch, which leaves the queue to other workers.
    pub(super) fn pause(&self) -> Duration {
        let share = *lock(&self.0);
        if share < NONE { Duration::ZERO } else { entropy::jitter(LONGEST.mul_f64(share), 0.5..=1.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_knows_little_pauses_for_long_and_who_learns_does_not() {
        let share = UnknownShare::default();
        share.note(false);
        assert_eq!(share.pause(), Duration::ZERO);
        for _ in 0..40 {
            share.note(true);
        }
        let pause = share.pause();
        assert!(pause >= LONGEST.mul_f64(0.49) && pause <= LONGEST, "{pause:?}");
        for _ in 0..40 {
            share.note(false);
        }
        assert_eq!(share.pause(), Duration::ZERO);
    }
}
