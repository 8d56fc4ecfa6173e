//! The storage's clock, by which a group log counts every time.
//!
//! The clocks of senders and workers may be minutes apart, and the log compares times that different
//! processes have written. A process therefore asks the storage for its time, and adds the difference to its
//! own clock. This module does not know the log.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use super::log::Millis;
use super::store::CONTAINER;
use crate::clock::unix_millis;
use crate::runtime::Runtime;
use crate::storage::{BlobStore, ContainerName, time_by_listing};
use crate::sync::lock;

/// The time after which the storage is asked again, because clocks drift apart.
const ASK_AGAIN: Duration = Duration::from_secs(600);
/// The difference in milliseconds between the wall clock and the monotonic clock that shows that the wall
/// clock was set, or the machine suspended.
const MIN_STEP: u64 = 2_000;

/// The longest request in milliseconds whose answer counts: half of its time may be an error.
const MAX_ANSWER_TIME: u64 = 10_000;

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
}

impl Difference {
    /// Returns whether the process's clock was set since the answer.
    fn is_outdated(&self, own: u64) -> bool {
        let passed = u64::try_from(self.asked.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.own.saturating_add(passed).abs_diff(own) >= MIN_STEP
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
            Some(known) if known.asked.elapsed() < ASK_AGAIN => {}
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

    /// Returns the difference; `None` if it is not known, or if the process's clock was set since.
    fn difference(&self) -> Option<Difference> {
        let known = *lock(&self.known);
        known.filter(|known| !known.is_outdated(unix_millis(self.runtime.now())))
    }

    /// Returns the storage's time by the difference that is known, without a request.
    pub(crate) fn known_now(&self) -> Millis {
        let ahead = lock(&self.known).map_or(0, |known| known.ahead);
        Millis(unix_millis(self.runtime.now()).saturating_add_signed(ahead))
    }

    async fn ask(&self, mut asking: OwnedMutexGuard<Option<Instant>>) {
        self.read_difference().await;
        *asking = Some(Instant::now());
    }

    async fn read_difference(&self) {
        let Ok(container) = ContainerName::new(CONTAINER) else { return };
        let sent = unix_millis(self.runtime.now());
        // A refusal has a time, too.
        let answered = match time_by_listing(&*self.blobs, &container).await {
            Ok(answered) => answered,
            Err(error) => match error.answered_at() {
                None => return,
                answered => answered,
            },
        };
        let now = unix_millis(self.runtime.now());
        if now.abs_diff(sent) > MAX_ANSWER_TIME {
            return;
        }
        let own = sent.midpoint(now);
        // If the storage returns no time, the clocks of all processes must agree.
        let ahead = answered.map_or(0, |storage| unix_millis(storage).wrapping_sub(own).cast_signed());
        *lock(&self.known) = Some(Difference { ahead, asked: Instant::now(), own: now });
    }
}

jobqueue_storage::debug_fields! {
    StorageClock {}
}

#[cfg(test)]
mod tests {
    use jobqueue_testing::faults::Faulty;

    use super::*;
    use crate::clock::ManualClock;
    use crate::memory;
    use crate::storage::Operation;

    #[tokio::test(start_paused = true)]
    async fn storage_is_asked_once_and_again_after_a_step_of_the_clock() {
        let faulty = Faulty::new(&memory::open_on(Runtime::paused()));
        let storage = faulty.storage();
        let wall = Arc::new(ManualClock::at(storage.runtime().now()));
        let own = Runtime::virtual_time(Arc::<ManualClock>::clone(&wall));
        let clock = StorageClock::new(Arc::clone(storage.blobs()), own);
        tokio::join!(clock.now(), clock.now());
        assert_eq!(faulty.calls_of(Operation::ListBlobs), 1, "calls that wait share an answer");
        let detached = clock.over(Arc::clone(storage.blobs()));
        wall.advance(Duration::from_secs(120));
        let now = clock.now().await;
        assert_eq!(faulty.calls_of(Operation::ListBlobs), 2);
        let right = unix_millis(storage.runtime().now());
        assert!(now.0.abs_diff(right) < 1_000, "{now:?}, and it is {right}");
        assert_eq!(detached.known_now(), clock.known_now());
    }
}
