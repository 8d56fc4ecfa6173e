//! The share of messages that a worker does not know or may not run now. While workers of a newer release
//! run, an older worker polls a moment later, and thus leaves the messages to workers that know them.
//!
//! A message that no worker knows stays for a day, and each worker receives it again and again. It says
//! nothing about the messages that come after it, so that these repetitions hardly slow the queue.

use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use crate::delivery::MessageClass;
use crate::runtime::Runtime;
use crate::sync::lock;

/// The maximum pause before a fetch, for a worker that knows none of its messages.
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// The maximum pause after many fetches that returned no known message and fewer messages than requested, on
/// a storage that does not announce all messages. It is much longer than the pause of an idle worker that
/// knows the messages, so that such a worker receives most of them first.
const MAX_PAUSE_WITHOUT_BACKLOG: Duration = Duration::from_secs(30);
/// The weight of the newest message.
const WEIGHT: f64 = 0.125;
/// A ratio below which the worker does not pause.
const NEGLIGIBLE_RATIO: f64 = 0.01;
/// The time between two warnings about messages that this worker cannot read.
const WARNING_INTERVAL: Duration = Duration::from_secs(3_600);

/// The ratio of messages for other workers among the latest messages of a queue.
#[derive(Debug, Default)]
pub(in crate::worker) struct UnknownRatio {
    state: Mutex<RatioState>,
    /// Notified of each message that is not unknown.
    known: Notify,
}

#[derive(Debug, Default)]
struct RatioState {
    /// The moving average of messages that are not [`MessageClass::Known`]. Messages that come again count as
    /// one.
    ratio: f64,
    /// True if the latest message since the last pause was unknown.
    unknown: bool,
    /// The number of pauses after unknown messages, since the last message of another class or the last full
    /// fetch.
    doublings: u32,
    /// The time of the last warning.
    warned: Option<Instant>,
}

impl UnknownRatio {
    pub(in crate::worker) fn record(&self, class: MessageClass) {
        let mut latest = lock(&self.state);
        latest.unknown = matches!(class, MessageClass::Unknown | MessageClass::UnknownAgain);
        if !latest.unknown {
            latest.doublings = 0;
            self.known.notify_waiters();
        }
        match class {
            MessageClass::Known => latest.ratio -= latest.ratio * WEIGHT,
            MessageClass::UnknownAgain => latest.ratio = latest.ratio.max(WEIGHT),
            MessageClass::Unknown | MessageClass::OverLimit => latest.ratio += (1.0 - latest.ratio) * WEIGHT,
        }
    }

    /// Returns whether to warn of a message that this worker cannot read: of the first, and then once an
    /// hour.
    pub(in crate::worker) fn is_warning_due(&self) -> bool {
        let (mut latest, now) = (lock(&self.state), Instant::now());
        let is_due = latest.warned.is_none_or(|warned| now - warned >= WARNING_INTERVAL);
        if is_due {
            latest.warned = Some(now);
        }
        is_due
    }

    /// Pauses before the next fetch, which leaves the queue to other workers. `may_be_long` is false if the
    /// storage announces all messages, and after a full fetch: messages that this worker knows may wait behind
    /// unknown messages. A long pause ends when a message is `announced`, and with a message that this worker
    /// knows, because the delivery may classify it only after the pause has begun.
    pub(in crate::worker) async fn leave_to_others(
        &self,
        may_be_long: bool,
        runtime: &Runtime,
        announced: impl Future<Output = ()>,
    ) {
        let known = self.known.notified();
        let pause = self.pause(may_be_long, runtime);
        if !pause.is_zero() {
            sleep(pause.min(MAX_PAUSE)).await;
        }
        if pause > MAX_PAUSE {
            tokio::select! {
                biased;
                () = known => {}
                () = announced => {}
                () = sleep(pause - MAX_PAUSE) => {}
            }
        }
    }

    fn pause(&self, may_be_long: bool, runtime: &Runtime) -> Duration {
        let mut latest = lock(&self.state);
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
    use std::future::{pending, ready};

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

    #[test]
    fn message_that_comes_again_hardly_slows_the_queue() {
        let ratio = after(1);
        for _ in 0..100 {
            ratio.record(MessageClass::UnknownAgain);
        }
        let longest = MAX_PAUSE.mul_f64(WEIGHT);
        let pause = ratio.pause(false, &Runtime::new());
        assert!(pause >= longest.mul_f64(0.49) && pause <= longest, "{pause:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn known_message_ends_a_long_pause_that_has_begun() {
        let (ratio, runtime) = (after(40), Runtime::new());
        let began = Instant::now();
        let classify = async {
            sleep(Duration::from_millis(10)).await;
            ratio.record(MessageClass::Known);
        };
        tokio::join!(ratio.leave_to_others(true, &runtime, pending()), classify);
        assert!(began.elapsed() <= MAX_PAUSE + Duration::from_millis(5), "{:?}", began.elapsed());
        let began = Instant::now();
        after(40).leave_to_others(true, &runtime, pending()).await;
        assert!(began.elapsed() >= MAX_PAUSE_WITHOUT_BACKLOG / 2, "{:?}", began.elapsed());
        let began = Instant::now();
        after(40).leave_to_others(true, &runtime, ready(())).await;
        assert!(began.elapsed() <= MAX_PAUSE, "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn warning_is_due_once_an_hour() {
        let ratio = UnknownRatio::default();
        assert!(ratio.is_warning_due());
        sleep(WARNING_INTERVAL - Duration::from_secs(1)).await;
        assert!(!ratio.is_warning_due());
        sleep(Duration::from_secs(1)).await;
        assert!(ratio.is_warning_due());
        assert!(!ratio.is_warning_due());
    }
}
