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
/// The duration after which a scan that was dropped counts as slow: it would have passed too many rows.
const SLOW_SCAN: Duration = Duration::from_secs(2);
/// The duration that counts for a scan to which the server did not answer. It may have waited for its commit,
/// or have passed too many rows: the next scan from the beginning comes a minute later.
const UNANSWERED_SCAN: Duration = Duration::from_secs(3);
/// The age, in milliseconds, of the messages at which a process begins if its scan from the beginning was too
/// slow.
const RECENT_MILLIS: i64 = 600_000;

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
    /// True if a slow scan was broken off.
    is_slow: bool,
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
    /// The maximum age, in milliseconds, of the messages that the scan looks for, if it is limited.
    pub(crate) back: Option<i64>,
    began: Instant,
    /// `Some` if the scan begins at the beginning.
    full: Option<Work>,
    /// The numbers of [`ScanProgress`] when the scan began.
    broken: u64,
    full_scans_before: u64,
    is_too_long: bool,
    has_ended: bool,
}

impl<'s> Attempt<'s> {
    pub(crate) fn begin(state: &'s ScanState) -> Self {
        let full = state.full.begin();
        let progress = lock(&state.progress);
        let back =
            (progress.is_slow && full.is_none() && progress.bound.is_unknown()).then_some(RECENT_MILLIS);
        let bound = if full.is_some() { progress.bound.restarted() } else { progress.bound.clone() };
        let (broken, full_scans_before, began) = (progress.broken, progress.full_scans, Instant::now());
        Self {
            state,
            bound,
            back,
            began,
            full,
            broken,
            full_scans_before,
            is_too_long: false,
            has_ended: false,
        }
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

    /// Records that the server cancelled the scan while it ran, however short its time limit is.
    pub(crate) fn note_too_long(&mut self) {
        self.is_too_long = true;
    }

    /// Records that the server did not answer, not even to the request to cancel.
    pub(crate) fn note_unanswered(&mut self) {
        self.is_too_long = true;
        if let Some(full) = &mut self.full {
            full.set_duration(UNANSWERED_SCAN);
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
            // The server's clock may have been set meanwhile.
            work.set_duration(scan.duration.min(self.began.elapsed()));
            progress.full_scans += 1;
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
        if self.is_too_long || self.began.elapsed() >= SLOW_SCAN {
            progress.is_slow = true;
            // The scan may have begun at an old time because a transaction had ended. The next scan must not
            // begin there again. A scan from the beginning says nothing of these times.
            if self.full.is_none() {
                progress.bound = progress.bound.without_late();
            }
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

    fn from(state: &ScanState) -> i64 {
        let attempt = Attempt::begin(state);
        let from = attempt.bound.from;
        attempt.end(&scan(2_000));
        from
    }

    #[tokio::test(start_paused = true)]
    async fn scan_from_the_beginning_that_takes_too_long_is_repeated_rarely() {
        let state = ScanState::default();
        Attempt::begin(&state).end(&scan(100));
        tokio::time::advance(FULL_SCAN_INTERVAL).await;
        let full = Attempt::begin(&state);
        assert_eq!(full.bound.from, i64::MIN);
        tokio::time::advance(Duration::from_secs(30)).await;
        drop(full);
        tokio::time::advance(Duration::from_secs(599)).await;
        assert_eq!(from(&state), 100, "the others go on");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(from(&state), i64::MIN);
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
    async fn scan_without_an_answer_is_repeated_a_minute_later() {
        let state = ScanState::default();
        let mut first = Attempt::begin(&state);
        tokio::time::advance(Duration::from_secs(30)).await;
        first.note_unanswered();
        drop(first);
        let next = Attempt::begin(&state);
        assert_eq!((next.full.is_none(), next.back), (true, Some(RECENT_MILLIS)), "the others go on");
        next.end(&scan(1_000_000));
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(Attempt::begin(&state).bound.from, i64::MIN);
    }

    /// Otherwise each get of the process would begin at the old time, and receive nothing.
    #[tokio::test(start_paused = true)]
    async fn late_commit_whose_scan_is_not_answered_is_left_to_a_scan_from_the_beginning() {
        let state = ScanState::default();
        Attempt::begin(&state).end(&Scan { running: vec![5], ..scan(100) });
        for from in [100, i64::MIN] {
            let mut attempt = Attempt::begin(&state);
            assert_eq!(attempt.bound.from, from);
            tokio::time::advance(Duration::from_secs(30)).await;
            attempt.note_unanswered();
        }
        let next = Attempt::begin(&state);
        assert_eq!(next.bound.from, 100, "the others go on");
        assert_eq!(next.bound.running(), (vec![], vec![]));
        next.end(&scan(200));
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(Attempt::begin(&state).bound.from, i64::MIN);
    }

    /// Otherwise the messages of these transactions would wait for the next scan from the beginning.
    #[tokio::test(start_paused = true)]
    async fn scan_from_the_beginning_without_an_answer_keeps_what_is_known_of_transactions() {
        let state = ScanState::default();
        Attempt::begin(&state).end(&Scan { running: vec![5], ..scan(100) });
        tokio::time::advance(FULL_SCAN_INTERVAL).await;
        let mut full = Attempt::begin(&state);
        assert_eq!(full.bound.from, i64::MIN);
        full.note_unanswered();
        drop(full);
        let next = Attempt::begin(&state);
        assert_eq!(next.bound.from, 100, "the others go on");
        assert_eq!(next.bound.running(), (vec![5], vec![i64::MIN]));
    }

    #[tokio::test(start_paused = true)]
    async fn scan_that_the_server_cancels_takes_too_long_however_short_the_limit_is() {
        let state = ScanState::default();
        let mut first = Attempt::begin(&state);
        tokio::time::advance(Duration::from_secs(1)).await;
        first.note_too_long();
        drop(first);
        let next = Attempt::begin(&state);
        assert_eq!(next.back, Some(RECENT_MILLIS));
        next.end(&Scan { running: vec![5], ..scan(1_000_000) });
        let mut late = Attempt::begin(&state);
        assert_eq!(late.bound.running(), (vec![5], vec![1_000_000 - RECENT_MILLIS]));
        tokio::time::advance(Duration::from_secs(1)).await;
        late.note_too_long();
        drop(late);
        assert_eq!(Attempt::begin(&state).bound.running(), (vec![], vec![]));
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
        assert_eq!(Attempt::begin(&state).bound.from, i64::MIN, "as soon as its part of the time allows");
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
