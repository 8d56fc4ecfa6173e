//! Spaces work that is repeated for safety, so that it takes a small part of the time, whatever it costs.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use jobqueue_storage::sync::lock;

/// A twentieth of the time at most.
const PAUSE_FACTOR: u32 = 20;

/// Says when to repeat work: after a least interval, and after a multiple of what it took the last time.
#[derive(Debug)]
pub(crate) struct Pace {
    least: Duration,
    turn: Arc<Mutex<Turn>>,
}

/// `None` is a time that has passed.
#[derive(Debug, Default)]
struct Turn {
    is_running: bool,
    next: Option<Instant>,
    /// The time from which on the work takes no more than its part.
    earliest: Option<Instant>,
}

impl Pace {
    pub(crate) fn new(least: Duration) -> Self {
        Self { least, turn: Arc::default() }
    }

    /// Begins the work if it is due and not under way. It ends when what is returned is dropped.
    pub(crate) fn begin(&self) -> Option<Work> {
        let mut turn = lock(&self.turn);
        let now = Instant::now();
        if turn.is_running || turn.next.is_some_and(|next| next > now) {
            return None;
        }
        turn.is_running = true;
        Some(Work { least: self.least, turn: Arc::clone(&self.turn), began: now })
    }

    /// Makes the work due before the least interval has passed, though not more often than its part of the time allows.
    pub(crate) fn hasten(&self) {
        let mut turn = lock(&self.turn);
        turn.next = turn.earliest;
    }
}

/// Work under way.
#[derive(Debug)]
pub(crate) struct Work {
    least: Duration,
    turn: Arc<Mutex<Turn>>,
    began: Instant,
}

impl Work {
    /// Notes that there is more to do: no interval has to pass.
    pub(crate) fn note_unfinished(&mut self) {
        self.least = Duration::ZERO;
    }

    /// Counts the time until now as that of something else.
    pub(crate) fn forget_time(&mut self) {
        self.began = Instant::now();
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
    async fn work_does_not_begin_beside_itself() {
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
