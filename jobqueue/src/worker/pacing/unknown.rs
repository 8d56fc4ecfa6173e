//! The share of messages that a worker does not know or may not run now. While workers of a newer release
//! run, an older worker polls a moment later, and thus leaves the messages to workers that know them.

use std::sync::Mutex;
use std::time::Duration;

use crate::delivery::MessageClass;
use crate::runtime::Runtime;
use crate::sync::lock;

/// The maximum pause before a fetch, for a worker that knows none of its messages.
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// The maximum pause after many fetches that returned no known message and fewer messages than requested. It
/// is much longer than the pause of an idle worker that knows the messages, so that such a worker receives
/// most of them first.
const MAX_PAUSE_WITHOUT_BACKLOG: Duration = Duration::from_secs(30);
/// The weight of the newest message.
const WEIGHT: f64 = 0.125;
/// A ratio below which the worker does not pause.
const NEGLIGIBLE_RATIO: f64 = 0.01;

/// The ratio of messages for other workers among the latest messages of a queue.
#[derive(Debug, Default)]
pub(in crate::worker) struct UnknownRatio(Mutex<RatioState>);

#[derive(Debug, Default)]
struct RatioState {
    /// The moving average of messages that are not [`MessageClass::Known`].
    ratio: f64,
    /// True if the latest message since the last pause was unknown.
    unknown: bool,
    /// The number of pauses after unknown messages, since the last message of another class or the last full
    /// fetch.
    doublings: u32,
}

impl UnknownRatio {
    pub(in crate::worker) fn record(&self, class: MessageClass) {
        let mut latest = lock(&self.0);
        if class != MessageClass::Unknown {
            latest.doublings = 0;
        }
        latest.unknown = class == MessageClass::Unknown;
        if class != MessageClass::Known {
            latest.ratio += (1.0 - latest.ratio) * WEIGHT;
        } else if latest.ratio > 0.0 {
            latest.ratio -= latest.ratio * WEIGHT;
        }
    }

    /// Returns the pause before the next fetch, which leaves the queue to other workers. `may_be_long` is
    /// false after a full fetch: messages that this worker knows may wait behind unknown messages.
    pub(in crate::worker) fn pause(&self, may_be_long: bool, runtime: &Runtime) -> Duration {
        let mut latest = lock(&self.0);
        if !may_be_long {
            latest.doublings = 0;
        } else if std::mem::take(&mut latest.unknown) {
            latest.doublings = latest.doublings.saturating_add(1).min(16);
        }
        if latest.ratio < NEGLIGIBLE_RATIO {
            return Duration::ZERO;
        }
        let pause = MAX_PAUSE.mul_f64(latest.ratio) * (1 << latest.doublings);
        runtime.jitter(pause.min(MAX_PAUSE_WITHOUT_BACKLOG), 0.5..=1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the ratio after rounds that returned one unknown message each.
    fn after(rounds: u32) -> UnknownRatio {
        let ratio = UnknownRatio::default();
        for _ in 0..rounds {
            ratio.record(MessageClass::Unknown);
            let _ = ratio.pause(true, &Runtime::new());
        }
        ratio
    }

    #[test]
    fn worker_that_knows_no_message_pauses_until_it_knows_some() {
        let ratio = UnknownRatio::default();
        ratio.record(MessageClass::Known);
        assert_eq!(ratio.pause(true, &Runtime::new()), Duration::ZERO);
        let ratio = after(40);
        let pause = ratio.pause(false, &Runtime::new());
        assert!(pause >= MAX_PAUSE.mul_f64(0.49) && pause <= MAX_PAUSE, "{pause:?}");
        (0..40).for_each(|_| ratio.record(MessageClass::Known));
        assert_eq!(ratio.pause(true, &Runtime::new()), Duration::ZERO);
    }

    #[test]
    fn pauses_grow_while_there_is_nothing_but_a_few_unknown_messages() {
        let ratio = after(40);
        // A fetch that finds nothing changes nothing.
        let pause = ratio.pause(true, &Runtime::new());
        assert!(pause >= MAX_PAUSE_WITHOUT_BACKLOG / 2 && pause <= MAX_PAUSE_WITHOUT_BACKLOG, "{pause:?}");
        for short in [MessageClass::Known, MessageClass::OverLimit] {
            let ratio = after(40);
            ratio.record(short);
            assert!(ratio.pause(true, &Runtime::new()) <= MAX_PAUSE, "{short:?}");
        }
        ratio.record(MessageClass::Unknown);
        assert!(ratio.pause(false, &Runtime::new()) <= MAX_PAUSE, "a backlog");
    }
}
