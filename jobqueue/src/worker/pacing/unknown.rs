//! The share of messages that a worker does not know or may not run now. While a newer release runs beside it, an older
//! worker polls a moment later, and so leaves the messages to workers that know them.

use std::sync::Mutex;
use std::time::Duration;

use crate::delivery::MessageClass;
use crate::runtime::Runtime;
use crate::sync::lock;

/// The pause before each fetch of a worker that knows none of its messages.
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// The same after many fetches that brought nothing known and not as much as requested. It is much longer than the
/// pause of an idle worker that would know the messages: such a worker must be the first at most of them.
const MAX_PAUSE_WITHOUT_BACKLOG: Duration = Duration::from_secs(30);
/// The weight of the newest message.
const WEIGHT: f64 = 0.125;
/// A share that makes no difference.
const NEGLIGIBLE_RATIO: f64 = 0.01;

/// The ratio of messages for other workers among the latest ones of a queue.
#[derive(Debug, Default)]
pub(in crate::worker) struct UnknownRatio(Mutex<RatioState>);

#[derive(Debug, Default)]
struct RatioState {
    share: f64,
    /// True if an unknown message was seen since the last pause.
    unknown: bool,
    /// The number of pauses after unknown messages alone, since another message or a full fetch.
    doublings: u32,
}

impl UnknownRatio {
    pub(in crate::worker) fn note(&self, class: MessageClass) {
        let mut latest = lock(&self.0);
        if class != MessageClass::Unknown {
            latest.doublings = 0;
        }
        latest.unknown = class == MessageClass::Unknown;
        if class != MessageClass::Known {
            latest.share += (1.0 - latest.share) * WEIGHT;
        } else if latest.share > 0.0 {
            latest.share -= latest.share * WEIGHT;
        }
    }

    /// Returns the pause before the next fetch, which leaves the queue to other workers. `may_be_long` is false if the
    /// last fetch was full: messages that this worker knows may wait behind unknown ones.
    pub(in crate::worker) fn pause(&self, may_be_long: bool, runtime: &Runtime) -> Duration {
        let mut latest = lock(&self.0);
        if !may_be_long {
            latest.doublings = 0;
        } else if std::mem::take(&mut latest.unknown) {
            latest.doublings = latest.doublings.saturating_add(1).min(16);
        }
        if latest.share < NEGLIGIBLE_RATIO {
            return Duration::ZERO;
        }
        let pause = MAX_PAUSE.mul_f64(latest.share) * (1 << latest.doublings);
        runtime.jitter(pause.min(MAX_PAUSE_WITHOUT_BACKLOG), 0.5..=1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the share after rounds that brought one unknown message each.
    fn after(rounds: u32) -> UnknownRatio {
        let share = UnknownRatio::default();
        for _ in 0..rounds {
            share.note(MessageClass::Unknown);
            let _ = share.pause(true, &Runtime::new());
        }
        share
    }

    #[test]
    fn worker_that_knows_no_message_pauses_until_it_knows_some() {
        let share = UnknownRatio::default();
        share.note(MessageClass::Known);
        assert_eq!(share.pause(true, &Runtime::new()), Duration::ZERO);
        let share = after(40);
        let pause = share.pause(false, &Runtime::new());
        assert!(pause >= MAX_PAUSE.mul_f64(0.49) && pause <= MAX_PAUSE, "{pause:?}");
        (0..40).for_each(|_| share.note(MessageClass::Known));
        assert_eq!(share.pause(true, &Runtime::new()), Duration::ZERO);
    }

    #[test]
    fn pauses_grow_while_there_is_nothing_but_a_few_unknown_messages() {
        let share = after(40);
        // A fetch that finds nothing changes nothing.
        let pause = share.pause(true, &Runtime::new());
        assert!(pause >= MAX_PAUSE_WITHOUT_BACKLOG / 2 && pause <= MAX_PAUSE_WITHOUT_BACKLOG, "{pause:?}");
        for short in [MessageClass::Known, MessageClass::OverLimit] {
            let share = after(40);
            share.note(short);
            assert!(share.pause(true, &Runtime::new()) <= MAX_PAUSE, "{short:?}");
        }
        share.note(MessageClass::Unknown);
        assert!(share.pause(false, &Runtime::new()) <= MAX_PAUSE, "a backlog");
    }
}
