//! The service's clock, as far as answers of the management API show it.
//!
//! The service counts delays, times to live and locks by its own clock, and other processes read the times
//! that this one writes. Each answer of the management API has the service's time, also the refusal of a key
//! without the claim Manage. The difference is added to the wall clock of this process. Does not know queues.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::cache::Expiring;
use jobqueue_storage::runtime::Runtime;
use jobqueue_storage::sync::lock;

/// The time after which the service is asked again, because clocks drift apart.
const ASK_AGAIN: Duration = Duration::from_secs(600);
/// The pause after a request that did not show the service's time.
const RETRY_PAUSE: Duration = Duration::from_secs(60);
/// The difference between the wall clock and the monotonic clock that shows that the wall clock was set, or
/// the machine suspended.
const MIN_STEP: Duration = Duration::from_secs(2);
/// The longest request whose answer counts, because its time may be that of any moment of the request.
const MAX_ANSWER_TIME: Duration = Duration::from_secs(5);
/// The header `Date` has whole seconds.
const DATE_PRECISION: Duration = Duration::from_secs(1);

/// The service's clock. The handles of a storage share it.
#[derive(Debug)]
pub(crate) struct ServiceClock {
    runtime: Runtime,
    known: Mutex<Option<Difference>>,
}

/// The service's time at a moment.
#[derive(Debug, Clone, Copy)]
struct Difference {
    service: SystemTime,
    found: Moment,
}

/// A moment by the wall clock and by the monotonic clock of this process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    own: SystemTime,
    at: Instant,
}

impl ServiceClock {
    pub(super) fn new(runtime: Runtime) -> Arc<Self> {
        Arc::new(Self { runtime, known: Mutex::default() })
    }

    /// Returns the service's time, or the time of this process while the difference is not known: at first,
    /// and after this process's clock was set. Sends no request.
    pub(super) fn now(&self) -> SystemTime {
        let own = self.runtime.now();
        let known = *lock(&self.known);
        // Most steps correct the clock.
        let Some(Difference { service, found }) = known.filter(|known| !self.was_set_since(known.found))
        else {
            return own;
        };
        match own.duration_since(found.own) {
            Ok(passed) => service + passed,
            Err(back) => service.checked_sub(back.duration()).unwrap_or(own),
        }
    }

    pub(super) fn moment(&self) -> Moment {
        Moment { own: self.runtime.now(), at: Instant::now() }
    }

    /// Takes over the time in the answer to a request that began at `sent`. A time that agrees with the
    /// answer as far as its precision shows is left as it is: a slow answer replaces no better one.
    pub(super) fn note(&self, sent: Moment, date: SystemTime) {
        let found = self.moment();
        let took = found.at.saturating_duration_since(sent.at);
        if took > MAX_ANSWER_TIME || self.was_set_since(sent) {
            return;
        }
        // The answer has left the service at some moment of the request, in the second that it names.
        let service = self.now().clamp(date, date + DATE_PRECISION + took);
        *lock(&self.known) = Some(Difference { service, found });
    }

    /// Returns whether the service has shown its time recently, and this process's clock was not set since.
    pub(super) fn is_known(&self) -> bool {
        let known = *lock(&self.known);
        known.is_some_and(|known| known.found.at.elapsed() < ASK_AGAIN && !self.was_set_since(known.found))
    }

    /// Returns whether the wall clock was set, or the machine suspended, since a moment.
    fn was_set_since(&self, moment: Moment) -> bool {
        let (own, expected) = (self.runtime.now(), moment.own + moment.at.elapsed());
        let step = own.duration_since(expected).unwrap_or_else(|behind| behind.duration());
        step >= MIN_STEP
    }
}

/// The end of an attempt to read the service's time.
#[derive(Debug, Clone)]
pub(super) struct ClockReading {
    clock: Arc<ServiceClock>,
    ended: Moment,
    valid_for: Duration,
}

impl ClockReading {
    /// Returns a reading that has ended now, whether the service has shown its time or not.
    pub(super) fn ended(clock: Arc<ServiceClock>) -> Self {
        let valid_for = if clock.is_known() { ASK_AGAIN } else { RETRY_PAUSE };
        Self { ended: clock.moment(), clock, valid_for }
    }
}

impl Expiring for ClockReading {
    fn is_gone(&self) -> bool {
        !self.serves_while_stale() || self.ended.at.elapsed() >= self.valid_for
    }

    /// A difference may be wrong by as much as the clock was set by.
    fn serves_while_stale(&self) -> bool {
        !self.clock.was_set_since(self.ended)
    }
}

#[cfg(test)]
mod tests {
    use jobqueue_storage::clock::{Clock, ManualClock};

    use super::*;

    const START: Duration = Duration::from_secs(1_800_000_000);

    fn clock() -> (Arc<ManualClock>, Arc<ServiceClock>) {
        let wall = Arc::new(ManualClock::at(SystemTime::UNIX_EPOCH + START));
        let clock = ServiceClock::new(Runtime::new().with_clock(Arc::<ManualClock>::clone(&wall)));
        (wall, clock)
    }

    #[tokio::test(start_paused = true)]
    async fn time_is_the_services_within_the_precision_of_its_answer() {
        let second = Duration::from_secs(1);
        for (date, corrected) in [(100, 100), (99, 100), (98, 99), (101, 101), (190, 190), (10, 11)] {
            let (wall, clock) = clock();
            // The clock of the process shows 100.
            let at = |seconds: u32| wall.now() + seconds * second - 100 * second;
            clock.note(clock.moment(), at(date));
            assert_eq!(clock.now(), at(corrected), "{date}");
            assert!(clock.is_known());
            wall.advance(second);
            assert_eq!(clock.now(), at(corrected), "{date}, a second later");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn answer_that_took_long_or_came_after_a_step_does_not_count() {
        let minute = Duration::from_secs(60);
        for (took, step) in [(6, 6), (0, 3)] {
            let (wall, clock) = clock();
            let sent = clock.moment();
            tokio::time::advance(Duration::from_secs(took)).await;
            wall.advance(Duration::from_secs(step));
            clock.note(sent, wall.now() + minute);
            assert_eq!(clock.now(), wall.now(), "{took} s, {step} s");
            assert!(!clock.is_known());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn slow_answer_does_not_replace_a_better_one() {
        let (wall, clock) = clock();
        let minute = Duration::from_secs(60);
        let service = || wall.now() + minute;
        clock.note(clock.moment(), service());
        let sent = clock.moment();
        tokio::time::advance(MAX_ANSWER_TIME).await;
        wall.advance(MAX_ANSWER_TIME);
        clock.note(sent, service() - MAX_ANSWER_TIME);
        assert_eq!(clock.now(), service());
    }

    #[tokio::test(start_paused = true)]
    async fn clock_that_was_set_counts_until_the_next_answer() {
        let (wall, clock) = clock();
        let minute = Duration::from_secs(60);
        clock.note(clock.moment(), wall.now() + minute);
        wall.advance(minute);
        assert_eq!(clock.now(), wall.now());
        clock.note(clock.moment(), wall.now() + minute);
        assert_eq!(clock.now(), wall.now() + minute);
    }

    #[tokio::test(start_paused = true)]
    async fn reading_is_repeated_after_a_while_and_awaited_after_a_step() {
        let (wall, clock) = clock();
        clock.note(clock.moment(), wall.now());
        let reading = ClockReading::ended(Arc::clone(&clock));
        assert!(!reading.is_gone());
        tokio::time::advance(ASK_AGAIN).await;
        wall.advance(ASK_AGAIN);
        assert!(reading.is_gone() && reading.serves_while_stale());
        wall.advance(MIN_STEP);
        assert!(reading.is_gone() && !reading.serves_while_stale());
    }
}
