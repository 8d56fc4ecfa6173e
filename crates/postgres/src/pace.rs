//! Spaces work that is repeated for safety, so that it takes a small part of the time, whatever its cost.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use jobqueue_storage::sync::lock;

/// The pause after work, as a multiple of its duration: work takes at most a twentieth of the time.
const PAUSE_FACTOR: u32 = 20;

/// Decides when to repeat work: after a minimum interval, and after a multiple of its last duration.
#[derive(Debug)]
pub(crate) struct Pace {
    least: Duration,
    turn: Arc<Mutex<Turn>>,
}

/// The state of the work. A time of `None` has passed.
#[derive(Debug, Default)]
struct Turn {
    is_running: bool,
    next: Option<Instant>,
    /// The time from which on the work keeps to its part of the time.
    earliest: Option<Instant>,
}

impl Pace {
    pub(crate) fn new(least: Duration) -> Self {
        Self { least, turn: Arc::default() }
    }

    /// Begins the work if it is due and not running. The work ends when the returned value is dropped.
    pub(crate) fn begin(&self) -> Option<Work> {
        let mut turn = lock(&self.turn);
        let now = Instant::now();
        if turn.is_running || turn.next.is_some_and(|next| next > now) {
            return None;
        }
        turn.is_running = true;
        Some(Work { least: self.least, turn: Arc::clone(&self.turn), began: now })
    }

    /// Makes the work due before the minimum interval has passed, but not before its part of the time allows.
    pub(crate) fn hasten(&self) {
        let mut turn = lock(&self.turn);
        turn.next = turn.earliest;
    }
}

/// Work in progress.
#[derive(Debug)]
pub(crate) struct Work {
    least: Duration,
    turn: Arc<Mutex<Turn>>,
    began: Instant,
}

impl Work {
    /// Records that there is more to do, so that the minimum interval does not apply.
    pub(crate) fn note_unfinished(&mut self) {
        self.least = Duration::ZERO;
    }

    /// Excludes the time until now from the duration of the work.
    pub(crate) fn forget_time(&mut self) {
        self.began = Instant::now();
    }

    /// Sets the duration of the work until now.
    pub(crate) fn set_duration(&mut self, duration: Duration) {
        self.began = Instant::now().checked_sub(duration).unwrap_or(self.began);
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let (now, part) = (Instant::now(), self.began.elapsed().saturating_mul(PAUSE_FACTOR));
        let next = Some(now + self.least.max(part));
        *lock(&self.turn) = Turn { is_running: false, next, earliest: Some(now + part) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn expensive_work_is_done_more_rarely() {
        let pace = Pace::new(Duration::from_secs(1));
        let work = pace.begin().unwrap();
        tokio::time::advance(Duration::from_secs(3)).await;
        drop(work);
        tokio::time::advance(Duration::from_secs(59)).await;
        assert!(pace.begin().is_none());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(pace.begin().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn unfinished_work_goes_on_in_its_part_of_the_time() {
        let pace = Pace::new(Duration::from_secs(10));
        let mut work = pace.begin().unwrap();
        tokio::time::advance(Duration::from_millis(10)).await;
        work.note_unfinished();
        drop(work);
        tokio::time::advance(Duration::from_millis(199)).await;
        assert!(pace.begin().is_none());
        tokio::time::advance(Duration::from_millis(1)).await;
        drop(pace.begin().unwrap());
        assert!(pace.begin().is_none(), "the next time the interval counts");
    }

    #[tokio::test(start_paused = true)]
    async fn work_does_not_begin_while_it_runs() {
        let pace = Pace::new(Duration::from_secs(1));
        let work = pace.begin().unwrap();
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(pace.begin().is_none());
        pace.hasten();
        assert!(pace.begin().is_none());
        drop(work);
    }

    #[tokio::test(start_paused = true)]
    async fn hastened_work_takes_no_more_than_its_part() {
        let pace = Pace::new(Duration::from_secs(60));
        pace.hasten();
        let work = pace.begin().unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
        drop(work);
        pace.hasten();
        tokio::time::advance(Duration::from_secs(19)).await;
        assert!(pace.begin().is_none());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(pace.begin().is_some());
    }
}
