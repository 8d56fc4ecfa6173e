//! The storage's clock, by which a group log counts every time.
//!
//! The clocks of senders and workers may be minutes apart, and the log compares times that different
//! processes have written. A process therefore asks the storage for its time, and adds the difference to its
//! own clock. This module does not know the log.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use tokio::time::{Instant, timeout};

use super::entry::Moment;
use super::log::Millis;
use super::store::CONTAINER;
use crate::clock::unix_millis;
use crate::error::{Error, ErrorKind};
use crate::runtime::Runtime;
use crate::storage::{BlobStore, ContainerName, Tries, time_by_listing};
use crate::sync::lock;

/// The time after which the storage is asked again, because clocks drift apart.
const ASK_AGAIN: Duration = Duration::from_secs(600);
/// The time after which an answer that followed a step of the process's clock no longer counts. The storage
/// may share the machine's clock and take the step over later: a SQLite file does so after a minute.
const ASK_AGAIN_AFTER_STEP: Duration = Duration::from_secs(70);
/// The difference in milliseconds between the wall clock and the monotonic clock that shows that the wall
/// clock was set, or the machine suspended.
const MIN_STEP: u64 = 2_000;

/// The longest request whose answer counts, because half of its time may be an error. A request that fails is
/// repeated within this time.
const MAX_ANSWER_TIME: Duration = Duration::from_secs(10);

pub(crate) struct StorageClock {
    blobs: Arc<dyn BlobStore>,
    runtime: Runtime,
    /// Shared with the clocks over other connections.
    known: Arc<Mutex<Option<Difference>>>,
    /// Locked while the storage is asked. Holds the time at which the last attempt ended.
    asking: Arc<tokio::sync::Mutex<Option<Instant>>>,
}

/// The difference between the storage's clock and this process's.
#[derive(Debug, Clone, Copy)]
struct Difference {
    /// In milliseconds; negative if the storage's clock is behind.
    ahead: i64,
    /// The time of the answer by the monotonic clock, and by this process's wall clock in milliseconds.
    asked: Instant,
    own: u64,
    /// The time after which the storage is asked again.
    valid_for: Duration,
    /// True if the process's clock was set before the answer: the storage may not have taken the step over
    /// yet.
    is_after_step: bool,
}

impl Difference {
    /// Returns whether the process's clock was set since the answer.
    fn is_outdated(&self, own: u64) -> bool {
        let passed = millis(self.asked.elapsed());
        self.own.saturating_add(passed).abs_diff(own) >= MIN_STEP
    }

    /// Returns whether the storage may have taken a step of the clock over since the answer.
    fn is_unsettled(&self) -> bool {
        self.is_after_step && self.asked.elapsed() >= self.valid_for
    }
}

impl StorageClock {
    pub(super) fn new(blobs: Arc<dyn BlobStore>, runtime: Runtime) -> Arc<Self> {
        Arc::new(Self { blobs, runtime, known: Arc::default(), asking: Arc::default() })
    }

    /// Returns the same clock over other connections.
    pub(super) fn over(&self, blobs: Arc<dyn BlobStore>) -> Arc<Self> {
        let (runtime, known) = (self.runtime.clone(), Arc::clone(&self.known));
        Arc::new(Self { blobs, runtime, known, asking: Arc::default() })
    }

    /// Returns the storage's time. The first call, and the first one after the process's clock was set, waits
    /// for an answer of the storage. Without an answer the difference stays as it was, and the next call asks
    /// again.
    pub(crate) async fn now(self: &Arc<Self>) -> Millis {
        let began = Instant::now();
        match self.difference() {
            Some(known) if known.asked.elapsed() < known.valid_for => {}
            Some(_) => {
                if let Ok(asking) = Arc::clone(&self.asking).try_lock_owned() {
                    let this = Arc::clone(self);
                    drop(self.runtime.spawn(async move { this.ask(asking).await }));
                }
            }
            None => {
                let asking = Arc::clone(&self.asking).lock_owned().await;
                // Calls that have waited for one attempt share its result.
                if asking.is_none_or(|ended| ended < began) {
                    self.ask(asking).await;
                }
            }
        }
        self.known_now()
    }

    /// Returns the storage's time, as [`now`](Self::now) does. For decisions about times that other processes
    /// have written, and for times that others decide about: with a wrong difference, a living sender may
    /// count as dead.
    ///
    /// # Errors
    /// The storage has not answered since this process started, or since its clock was set. Retryable.
    pub(crate) async fn certain_now(self: &Arc<Self>) -> Result<Millis, Error> {
        let now = self.now().await;
        let unknown = || {
            let text = "the storage did not return its time, by which jobs are kept in order; try again";
            Error::new(ErrorKind::Storage, text).with_retryable(true)
        };
        let (known, own) = (*lock(&self.known), unix_millis(self.runtime.now()));
        known.filter(|known| !known.is_outdated(own)).map(|_| now).ok_or_else(unknown)
    }

    /// Returns the difference; `None` if it is not known, or if a clock was set since.
    fn difference(&self) -> Option<Difference> {
        let known = *lock(&self.known);
        let own = unix_millis(self.runtime.now());
        known.filter(|known| !known.is_outdated(own) && !known.is_unsettled())
    }

    /// Returns the storage's time by the difference that is known, without a request.
    pub(crate) fn known_now(&self) -> Millis {
        let ahead = lock(&self.known).map_or(0, |known| known.ahead);
        Millis(unix_millis(self.runtime.now()).saturating_add_signed(ahead))
    }

    /// Returns the time since `moment`, without a request: by the clock that shows the longer one.
    pub(super) fn age(&self, moment: Moment) -> Duration {
        moment.by_process.elapsed().max(self.known_now().since(moment.by_storage))
    }

    async fn ask(&self, mut asking: OwnedMutexGuard<Option<Instant>>) {
        self.read_difference().await;
        *asking = Some(Instant::now());
    }

    async fn read_difference(&self) {
        let Ok(container) = ContainerName::new(CONTAINER) else { return };
        let ask = || async {
            let (began, sent) = (Instant::now(), unix_millis(self.runtime.now()));
            let answered = time_by_listing(&*self.blobs, &container).await;
            let answered = answered.or_else(|error| match error.answered_at() {
                None if error.is_retryable() => Err(error),
                // A refusal has a time, too. A storage without listings has none.
                time => Ok(time),
            });
            answered.map(|answered| (answered, sent, began.elapsed()))
        };
        let tries = Tries::until(&self.runtime, Instant::now() + MAX_ANSWER_TIME, 1, 1);
        // A request that takes longer does not count. Callers may be waiting for it.
        let Ok(Ok((answered, sent, took))) = timeout(MAX_ANSWER_TIME, tries.run(ask)).await else { return };
        let now = unix_millis(self.runtime.now());
        // Half of a step during the request would become an error of the difference, which shows nowhere.
        let was_set = sent.saturating_add(millis(took)).abs_diff(now) >= MIN_STEP;
        if was_set || took > MAX_ANSWER_TIME {
            return;
        }
        let own = sent.midpoint(now);
        // If the storage returns no time, the clocks of all processes must agree.
        let ahead = answered.map_or(0, |storage| unix_millis(storage).wrapping_sub(own).cast_signed());
        let mut known = lock(&self.known);
        let is_after_step = known.is_some_and(|former| former.is_outdated(now));
        // Before the first answer the clock may have been set, too, but most clocks were not.
        let is_settled = known.is_some() && !is_after_step;
        let valid_for = if is_settled { ASK_AGAIN } else { ASK_AGAIN_AFTER_STEP };
        *known = Some(Difference { ahead, asked: Instant::now(), own: now, valid_for, is_after_step });
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

jobqueue_storage::debug_fields! {
    StorageClock {}
}

#[cfg(test)]
mod tests {
    use jobqueue_testing::faults::{Fault, Faulty};

    use super::*;
    use crate::clock::ManualClock;
    use crate::memory;
    use crate::storage::{Operation, StoreErrorKind};

    const SECOND: Duration = Duration::from_secs(1);
    const STEP: Duration = Duration::from_secs(120);

    /// A process and a storage, whose clocks stand still unless the test moves them.
    struct Bench {
        faulty: Faulty,
        /// The storage's clock.
        stored: Arc<ManualClock>,
        /// The process's clock.
        wall: Arc<ManualClock>,
        clock: Arc<StorageClock>,
    }

    impl Bench {
        fn new() -> Self {
            let (stored, wall) = (Arc::new(ManualClock::new()), Arc::new(ManualClock::new()));
            let runtime = |clock: &Arc<ManualClock>| Runtime::virtual_time(Arc::<ManualClock>::clone(clock));
            let faulty = Faulty::new(&memory::open_on(runtime(&stored)));
            let clock = StorageClock::new(Arc::clone(faulty.storage().blobs()), runtime(&wall));
            Self { faulty, stored, wall, clock }
        }

        /// Lets time pass by all clocks.
        async fn pass(&self, time: Duration) {
            tokio::time::sleep(time).await;
            self.stored.advance(time);
            self.wall.advance(time);
        }

        fn asked(&self) -> usize {
            self.faulty.calls_of(Operation::ListBlobs)
        }

        fn assert_right(&self, now: Millis) {
            let right = unix_millis(self.faulty.storage().runtime().now());
            assert!(now.0.abs_diff(right) < 1_000, "{now:?}, and it is {right}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn storage_is_asked_once_and_again_after_a_step_of_the_clock() {
        let bench = Bench::new();
        tokio::join!(bench.clock.now(), bench.clock.now());
        assert_eq!(bench.asked(), 1, "calls that wait share an answer");
        let detached = bench.clock.over(Arc::clone(bench.faulty.storage().blobs()));
        bench.pass(SECOND).await;
        bench.wall.advance(STEP);
        let now = bench.clock.now().await;
        assert_eq!(bench.asked(), 2);
        bench.assert_right(now);
        assert_eq!(detached.known_now(), bench.clock.known_now());
    }

    // The clock of a SQLite file is the machine's, and takes a step over after a minute.
    #[tokio::test(start_paused = true)]
    async fn storage_is_asked_again_when_it_may_have_taken_a_step_over() {
        let bench = Bench::new();
        let _ = bench.clock.now().await;
        bench.pass(SECOND).await;
        bench.wall.advance(STEP);
        bench.assert_right(bench.clock.now().await);
        bench.pass(Duration::from_secs(60)).await;
        bench.stored.advance(STEP);
        bench.pass(Duration::from_secs(10)).await;
        bench.assert_right(bench.clock.now().await);
        assert_eq!(bench.asked(), 3);
        bench.pass(Duration::from_secs(300)).await;
        bench.assert_right(bench.clock.now().await);
        assert_eq!(bench.asked(), 3, "the difference is settled");
    }

    #[tokio::test(start_paused = true)]
    async fn first_answer_may_come_before_the_storage_has_taken_a_step_over() {
        let bench = Bench::new();
        bench.wall.advance(STEP);
        bench.assert_right(bench.clock.now().await);
        bench.stored.advance(STEP);
        bench.pass(ASK_AGAIN_AFTER_STEP).await;
        let _ = bench.clock.now().await;
        bench.pass(SECOND).await;
        bench.assert_right(bench.clock.now().await);
        assert_eq!(bench.asked(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn no_call_waits_for_the_second_answer() {
        let bench = Bench::new();
        let _ = bench.clock.now().await;
        bench.faulty.plan_always(Operation::ListBlobs, Fault::Hang);
        bench.pass(ASK_AGAIN_AFTER_STEP).await;
        let began = Instant::now();
        bench.assert_right(bench.clock.certain_now().await.unwrap());
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn listing_that_hangs_is_given_up() {
        let bench = Bench::new();
        bench.faulty.plan_always(Operation::ListBlobs, Fault::Hang);
        let began = Instant::now();
        assert!(bench.clock.certain_now().await.unwrap_err().is_retryable());
        assert!(began.elapsed() <= MAX_ANSWER_TIME + SECOND, "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn answer_does_not_count_if_the_clock_was_set_meanwhile() {
        let bench = Bench::new();
        let wall = Arc::clone(&bench.wall);
        bench.faulty.on(Operation::ListBlobs, move |call| {
            if call.nth == 1 {
                wall.advance(Duration::from_secs(9));
            }
            None
        });
        let _ = bench.clock.now().await;
        bench.pass(SECOND).await;
        bench.assert_right(bench.clock.now().await);
    }

    #[tokio::test(start_paused = true)]
    async fn time_is_unknown_until_the_storage_has_answered() {
        let bench = Bench::new();
        bench.wall.advance(STEP);
        bench.faulty.plan_always(Operation::ListBlobs, Fault::Refuse(StoreErrorKind::Unavailable));
        assert!(bench.clock.certain_now().await.unwrap_err().is_retryable());
        bench.pass(SECOND).await;
        bench.faulty.heal();
        bench.faulty.plan(Operation::ListBlobs, 1, Fault::Refuse(StoreErrorKind::Unavailable));
        bench.assert_right(bench.clock.certain_now().await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn time_is_unknown_while_the_storage_does_not_answer_after_a_step() {
        let bench = Bench::new();
        bench.assert_right(bench.clock.certain_now().await.unwrap());
        bench.wall.advance(STEP);
        bench.faulty.plan_always(Operation::ListBlobs, Fault::Refuse(StoreErrorKind::Unavailable));
        assert!(bench.clock.certain_now().await.unwrap_err().is_retryable());
        bench.pass(SECOND).await;
        bench.faulty.heal();
        bench.assert_right(bench.clock.certain_now().await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn clocks_agree_on_a_storage_without_listings() {
        let bench = Bench::new();
        bench.faulty.plan_always(Operation::ListBlobs, Fault::Refuse(StoreErrorKind::Unsupported));
        bench.assert_right(bench.clock.certain_now().await.unwrap());
    }
}
