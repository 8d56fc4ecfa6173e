//! The state of this process's scans for visible messages, for each queue.

mod bound;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use crate::pace::{Pace, Work};
use jobqueue_storage::QueueName;
use jobqueue_storage::sync::lock;

pub(crate) use bound::{Bound, Scan};

/// The minimum time between two scans from the beginning.
const FULL_SCAN_INTERVAL: Duration = Duration::from_secs(5);
/// The duration after which a scan that was broken off counts as slow: it would have passed too many rows.
const SLOW_SCAN: Duration = Duration::from_secs(2);
/// The first window of time, in milliseconds, that is scanned after a scan from the beginning was too slow.
const RECENT_MILLIS: i64 = 600_000;
/// The factor by which the window grows after each scan that ended, and shrinks after each that was too slow.
const WIDENING: i64 = 4;

/// The states of the scans of a store's queues.
#[derive(Debug, Default)]
pub(crate) struct Scans(Mutex<HashMap<QueueName, Arc<ScanState>>>);

impl Scans {
    pub(crate) fn of(&self, queue: &QueueName) -> Arc<ScanState> {
        Arc::clone(lock(&self.0).entry(queue.clone()).or_default())
    }
}

/// The state of the scans of a queue.
#[derive(Debug)]
pub(crate) struct ScanState {
    progress: Mutex<ScanProgress>,
    /// The pace of scans from the beginning.
    full: Pace,
    /// The pace of searches for messages that become visible in the far future.
    pub(crate) far: Pace,
}

#[derive(Debug, Default)]
struct ScanProgress {
    bound: Bound,
    /// The number of scans that were broken off. The messages that they had locked lie before the bounds of
    /// concurrent scans.
    broken: u64,
    /// The number of scans from the beginning that have ended.
    full_scans: u64,
    /// The maximum age, in milliseconds, of the messages that the next scan from the beginning looks for.
    /// `Some` after a slow scan was broken off, until a window has covered all of time.
    window: Option<i64>,
}

impl Default for ScanState {
    fn default() -> Self {
        let (full, far) = (Pace::new(FULL_SCAN_INTERVAL), Pace::new(Duration::ZERO));
        Self { progress: Mutex::default(), full, far }
    }
}

/// A scan in progress. If it is dropped before it [ends](Self::end), a scan from the beginning follows as
/// soon as its pace allows.
pub(crate) struct Attempt<'s> {
    state: &'s ScanState,
    pub(crate) bound: Bound,
    /// The maximum age, in milliseconds, of the messages that the scan looks for, if it is limited and no
    /// time of the server is known.
    pub(crate) back: Option<i64>,
    /// The window of a scan from the beginning, if it has one.
    window: Option<i64>,
    began: Instant,
    /// `Some` if the scan begins at the beginning.
    full: Option<Work>,
    /// The numbers of [`ScanProgress`] when the scan began.
    broken: u64,
    full_scans_before: u64,
    has_ended: bool,
}

impl<'s> Attempt<'s> {
    pub(crate) fn begin(state: &'s ScanState) -> Self {
        let full = state.full.begin();
        let progress = lock(&state.progress);
        let back = progress.window.filter(|_| progress.bound.is_unknown());
        let window = progress.window.filter(|_| full.is_some());
        let bound = if full.is_some() { progress.bound.restarted(window) } else { progress.bound.clone() };
        let (broken, full_scans_before, began) = (progress.broken, progress.full_scans, Instant::now());
        Self { state, bound, back, window, began, full, broken, full_scans_before, has_ended: false }
    }

    /// Restarts the measurement of the scan's duration. Called if it failed for another reason than its
    /// length, such as a commit that was not confirmed, so that its duration says nothing about the rows that
    /// it would pass.
    pub(crate) fn forget_time(&mut self) {
        self.began = Instant::now();
        if let Some(full) = &mut self.full {
            full.forget_time();
        }
    }

    pub(crate) fn end(mut self, scan: &Scan) {
        self.has_ended = true;
        let mut progress = lock(&self.state.progress);
        // A concurrent scan from the beginning may have found some, but not all, of the messages before the
        // place at which this scan began.
        if progress.full_scans == self.full_scans_before {
            let began = self.back.map(|back| Bound::beginning_at(scan.time.saturating_sub(back)));
            progress.bound = began.as_ref().unwrap_or(&self.bound).after(scan);
        }
        if let Some(mut work) = self.full.take() {
            work.set_duration(scan.duration);
            progress.full_scans += 1;
            let narrow = self.window.filter(|window| *window < scan.time);
            progress.window = narrow.map(|window| window.saturating_mul(WIDENING));
            drop(work);
            if progress.broken != self.broken {
                self.state.full.hasten();
            }
        }
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let mut progress = lock(&self.state.progress);
        progress.broken += 1;
        if self.began.elapsed() >= SLOW_SCAN {
            if self.full.is_some() || progress.window.is_none() {
                let narrower = self.window.map_or(RECENT_MILLIS, |window| window / WIDENING);
                progress.window = Some(narrower.max(RECENT_MILLIS));
            }
            if let (Some(full), None) = (&mut self.full, self.window) {
                // The first window follows at once.
                full.forget_time();
            }
            // The scan may have begun at an old time because a transaction had ended. The next scan must not
            // begin there again.
            progress.bound = progress.bound.without_late();
        }
        drop(self.full.take());
        self.state.full.hasten();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(time: i64) -> Scan {
        let (running, duration) = (Vec::new(), Duration::ZERO);
        Scan { time, stopped_at: None, number: 10, running, limit: 10, duration }
    }

    /// The time of the server in tests with windows.
    const NOW: i64 = 10_000_000_000;

    fn from(state: &ScanState) -> i64 {
        from_at(state, 2_000)
    }

    /// Makes a scan at a time of the server, and returns where it began.
    fn from_at(state: &ScanState, time: i64) -> i64 {
        let attempt = Attempt::begin(state);
        let from = attempt.bound.from;
        attempt.end(&scan(time));
        from
    }

    #[tokio::test(start_paused = true)]
    async fn scan_that_takes_too_long_is_repeated_rarely() {
        let state = ScanState::default();
        Attempt::begin(&state).end(&scan(NOW));
        for from_before in [i64::MIN, NOW - RECENT_MILLIS] {
            tokio::time::advance(FULL_SCAN_INTERVAL).await;
            let full = Attempt::begin(&state);
            assert_eq!(full.bound.from, from_before);
            tokio::time::advance(Duration::from_secs(30)).await;
            drop(full);
        }
        tokio::time::advance(Duration::from_secs(599)).await;
        assert_eq!(from_at(&state, NOW), NOW, "the others go on");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(from_at(&state, NOW), NOW - RECENT_MILLIS);
    }

    /// A forgotten transaction keeps so many rows that no scan of the whole queue ends in time.
    #[tokio::test(start_paused = true)]
    async fn window_of_recent_messages_widens_as_far_as_scans_end_in_time() {
        let state = ScanState::default();
        Attempt::begin(&state).end(&scan(NOW));
        tokio::time::advance(FULL_SCAN_INTERVAL).await;
        let full = Attempt::begin(&state);
        tokio::time::advance(Duration::from_secs(30)).await;
        drop(full);
        assert_eq!(from_at(&state, NOW), NOW - RECENT_MILLIS, "at once");
        tokio::time::advance(FULL_SCAN_INTERVAL).await;
        assert_eq!(from_at(&state, NOW), NOW - 4 * RECENT_MILLIS);
        tokio::time::advance(FULL_SCAN_INTERVAL).await;
        let too_far = Attempt::begin(&state);
        assert_eq!(too_far.bound.from, NOW - 16 * RECENT_MILLIS);
        tokio::time::advance(Duration::from_secs(30)).await;
        drop(too_far);
        tokio::time::advance(Duration::from_secs(600)).await;
        let mut window = 4 * RECENT_MILLIS;
        while window < NOW {
            assert_eq!(from_at(&state, NOW), NOW - window);
            tokio::time::advance(FULL_SCAN_INTERVAL).await;
            window *= WIDENING;
        }
        assert_eq!(from_at(&state, NOW), NOW - window, "before the first message");
        tokio::time::advance(FULL_SCAN_INTERVAL).await;
        assert_eq!(from_at(&state, NOW), i64::MIN);
    }

    #[tokio::test(start_paused = true)]
    async fn process_whose_first_scan_takes_too_long_begins_at_recent_messages() {
        let state = ScanState::default();
        let first = Attempt::begin(&state);
        assert_eq!(Attempt::begin(&state).back, None, "nothing is known of the first");
        tokio::time::advance(Duration::from_secs(30)).await;
        drop(first);
        let next = Attempt::begin(&state);
        assert_eq!(next.bound.from, i64::MIN);
        assert_eq!(next.back, Some(RECENT_MILLIS));
        next.end(&Scan { running: vec![5], ..scan(1_000_000) });
        let next = Attempt::begin(&state);
        assert_eq!(next.bound.from, 1_000_000);
        assert_eq!(next.back, None);
        assert_eq!(next.bound.running(), (vec![5], vec![1_000_000 - RECENT_MILLIS]));
    }

    #[tokio::test(start_paused = true)]
    async fn outage_does_not_count_as_a_scan_that_takes_too_long() {
        let state = ScanState::default();
        let mut first = Attempt::begin(&state);
        tokio::time::advance(Duration::from_secs(30)).await;
        first.forget_time();
        drop(first);
        let next = Attempt::begin(&state);
        assert!(next.full.is_some(), "it is repeated at once");
        next.end(&Scan { running: vec![5], ..scan(100) });
        let mut late = Attempt::begin(&state);
        tokio::time::advance(Duration::from_secs(30)).await;
        late.forget_time();
        drop(late);
        assert_eq!(Attempt::begin(&state).bound.running(), (vec![5], vec![i64::MIN]));
    }

    #[tokio::test(start_paused = true)]
    async fn wait_for_a_commit_does_not_count_as_a_scan() {
        let state = ScanState::default();
        let full = Attempt::begin(&state);
        tokio::time::advance(Duration::from_secs(20)).await;
        full.end(&Scan { duration: Duration::from_millis(10), ..scan(100) });
        tokio::time::advance(FULL_SCAN_INTERVAL).await;
        assert_eq!(from(&state), i64::MIN);
    }

    #[tokio::test(start_paused = true)]
    async fn late_commit_of_long_ago_that_takes_too_long_is_left_to_a_scan_from_the_beginning() {
        let state = ScanState::default();
        Attempt::begin(&state).end(&Scan { running: vec![5], ..scan(100) });
        let late = Attempt::begin(&state);
        assert_eq!(late.bound.running(), (vec![5], vec![i64::MIN]));
        tokio::time::advance(SLOW_SCAN).await;
        drop(late);
        let next = Attempt::begin(&state).bound.from;
        assert_eq!(next, 100 - RECENT_MILLIS, "as soon as its part of the time allows");
        assert_eq!(Attempt::begin(&state).bound.running(), (vec![], vec![]));
    }

    #[tokio::test(start_paused = true)]
    async fn bound_found_by_a_scan_from_the_beginning_is_kept() {
        let state = ScanState::default();
        Attempt::begin(&state).end(&scan(1_000));
        let other = Attempt::begin(&state);
        tokio::time::advance(FULL_SCAN_INTERVAL).await;
        Attempt::begin(&state).end(&Scan { stopped_at: Some(51), ..scan(1_004) });
        other.end(&scan(1_005));
        assert_eq!(from(&state), 51);
    }

    #[tokio::test(start_paused = true)]
    async fn scan_that_is_broken_off_hastens_one_from_the_beginning() {
        let state = ScanState::default();
        Attempt::begin(&state).end(&scan(100));
        drop(Attempt::begin(&state));
        assert_eq!(from(&state), i64::MIN);
        assert_eq!(from(&state), 2_000);
    }
}
