//! The oldest job of one or several queues.

use std::time::Duration;

use super::{QueueOverview, WorkerOverview};

/// The age of the oldest job that waits for another of its key from which on it is an operator's concern: if
/// each visible job waits so, and if others can be received. The alert `JobqueueHeldUpByKey` has the same.
const LONG_HELD_UP: [Duration; 2] = [Duration::from_secs(900), Duration::from_secs(14_400)];

/// The words for a queue whose visible jobs each wait for another of their key, and for such a job.
#[doc(hidden)]
pub const HELD_UP: &str = "held up by a key";

/// The oldest job of one or several queues, as commands and pages show it. In a queue it is the oldest that
/// waits, also for another of its key. While no job can be received, jobs that back off count too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct OldestJob {
    /// The age: [`oldest`](QueueOverview::oldest), [`oldest_held_up`](QueueOverview::oldest_held_up) or
    /// [`oldest_backing_off`](QueueOverview::oldest_backing_off). `None` if there is no job, or if its age is
    /// unknown.
    pub age: Option<Duration>,
    /// True if the job waits for another of its key, and, as far as the workers are known, not for the open
    /// circuits of its queue.
    pub held_up: bool,
    /// True if the job backs off.
    pub backs_off: bool,
    /// True if it is certainly the oldest, or if there is certainly none.
    pub is_exact: bool,
}

impl OldestJob {
    const NONE: Self = Self { age: None, held_up: false, backs_off: false, is_exact: true };

    /// Returns the oldest job of all these queues, which these `workers` serve.
    pub fn of<'q>(queues: impl IntoIterator<Item = &'q QueueOverview>, workers: &[WorkerOverview]) -> Self {
        queues.into_iter().map(|queue| queue.oldest_job_of(workers)).fold(Self::NONE, Self::or_older)
    }

    /// Returns why the job cannot be received, as text: `held up by a key` or `backing off`.
    pub fn obstacle(&self) -> Option<&'static str> {
        match self {
            Self { held_up: true, .. } => Some(HELD_UP),
            Self { backs_off: true, .. } => Some("backing off"),
            _ => None,
        }
    }

    /// Returns the older of two jobs. Of the same age it is the one that can be received, or else the one
    /// that backs off, since others may wait for it.
    fn or_older(self, other: Self) -> Self {
        let rank = |job: Self| (job.age, !job.held_up, !job.backs_off);
        let older = if rank(other) > rank(self) { other } else { self };
        Self { is_exact: self.is_exact && other.is_exact, ..older }
    }
}

impl QueueOverview {
    /// Returns the oldest job of the queue.
    pub fn oldest_job(&self) -> OldestJob {
        let receivable = OldestJob { age: self.oldest, ..OldestJob::NONE };
        let held_up = OldestJob { age: self.oldest_held_up, held_up: true, ..OldestJob::NONE };
        let backing_off = self.oldest_backing_off.filter(|_| self.oldest.is_none());
        let backing_off = OldestJob { age: backing_off, backs_off: true, ..OldestJob::NONE };
        let oldest = receivable.or_older(backing_off).or_older(held_up);
        // A queue that is held up has a job, whose age may be unknown.
        let is_known = self.age().is_some() && !(self.held_up && oldest.age.is_none());
        OldestJob { is_exact: is_known && self.oldest_is_exact(), ..oldest }
    }

    /// Returns the oldest job of the queue, which these `workers` serve. While the circuits of all of them
    /// are open, no job of the queue starts, whatever its key: the job does not count as held up by it.
    pub fn oldest_job_of(&self, workers: &[WorkerOverview]) -> OldestJob {
        let job = self.oldest_job();
        let (open, all) = self.count_circuits(workers);
        OldestJob { held_up: job.held_up && (open == 0 || open < all), ..job }
    }

    /// Returns whether a job has waited for another of its key for more than four hours, or for more than 15
    /// minutes while each visible job waits so. Always false while the queue is paused.
    pub fn is_held_up_for_long(&self) -> bool {
        let [all, some] = LONG_HELD_UP;
        let limit = if self.held_up { all } else { some };
        self.paused != Some(true) && self.oldest_held_up.is_some_and(|age| age > limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a queue whose oldest jobs have these ages in hours.
    fn queue(oldest: Option<u64>, backing_off: Option<u64>) -> QueueOverview {
        let (visible, exact) = (Some(u64::from(oldest.is_some())), true);
        let [oldest, oldest_backing_off] = [oldest, backing_off].map(|hours| hours.map(hours_long));
        QueueOverview {
            visible,
            visible_is_exact: exact,
            oldest,
            oldest_backing_off,
            ..QueueOverview::default()
        }
    }

    fn hours_long(hours: u64) -> Duration {
        Duration::from_secs(hours * 3_600)
    }

    fn held_up(held_up: u64, backing_off: Option<u64>) -> QueueOverview {
        let queue = queue(None, backing_off);
        QueueOverview { held_up: true, oldest_held_up: Some(hours_long(held_up)), visible: Some(1), ..queue }
    }

    fn hours(queues: &[&QueueOverview]) -> (Option<u64>, Option<&'static str>, bool) {
        let oldest = OldestJob::of(queues.iter().copied(), &[]);
        (oldest.age.map(|age| age.as_secs() / 3_600), oldest.obstacle(), oldest.is_exact)
    }

    #[test]
    fn job_that_backs_off_is_the_oldest_only_where_none_can_be_received() {
        let held_up = held_up(5, Some(5));
        let (idle, unread) = (queue(None, None), QueueOverview::default());
        let backs_off = Some("backing off");
        assert_eq!(hours(&[]), (None, None, true));
        assert_eq!(hours(&[&idle]), (None, None, true));
        assert_eq!(hours(&[&unread]), (None, None, false));
        assert_eq!(hours(&[&queue(None, Some(5)), &idle]), (Some(5), backs_off, true));
        assert_eq!(hours(&[&held_up, &queue(Some(1), Some(9))]), (Some(5), backs_off, true));
        assert_eq!(hours(&[&held_up, &queue(Some(6), None)]), (Some(6), None, true));
        assert_eq!(hours(&[&queue(Some(5), None), &held_up]), (Some(5), None, true));
        assert_eq!(hours(&[&held_up, &unread]), (Some(5), backs_off, false));
    }

    // round 33: such a queue was shown with an oldest job of 0 seconds.
    #[test]
    fn job_that_waits_for_its_key_is_the_oldest_if_it_waits_longest() {
        let waits = Some(HELD_UP);
        assert_eq!(hours(&[&held_up(3, None)]), (Some(3), waits, true));
        assert_eq!(hours(&[&held_up(3, Some(4))]), (Some(4), Some("backing off"), true));
        let one_key = QueueOverview { oldest_held_up: Some(hours_long(3)), ..queue(Some(1), Some(9)) };
        assert_eq!(hours(&[&one_key]), (Some(3), waits, true));
        let young = QueueOverview { oldest_held_up: Some(hours_long(1)), ..queue(Some(2), None) };
        assert_eq!(hours(&[&young]), (Some(2), None, true));
        assert!(!young.is_held_up_for_long() && held_up(1, None).is_held_up_for_long());
        assert!(!QueueOverview { paused: Some(true), ..held_up(1, None) }.is_held_up_for_long());
        let unknown = QueueOverview { oldest_held_up: None, ..held_up(3, None) };
        assert_eq!(hours(&[&unknown]), (None, None, false));
    }

    /// Returns a worker of the queue `fetches`.
    fn worker(circuit_open: bool) -> WorkerOverview {
        let record = serde_json::json!({
            "id": "1", "name": "w", "host": "h", "pid": 1, "version": "0", "started": "2026-01-01T00:00:00Z",
            "written": "2026-01-01T00:00:00Z", "interval_seconds": 15.0, "slots": 1, "draining": false,
            "queues": [{"name": "fetches", "kinds": ["fetch"], "circuit_open": circuit_open}],
            "running": [], "running_total": 0, "counters": []
        });
        let record = serde_json::from_value(record).unwrap();
        WorkerOverview { record, age_seconds: 0.0, stale: false }
    }

    // newcomers 34 d, 3-4: one job of 19 waited for its key.
    #[test]
    fn job_that_waits_for_open_circuits_is_not_held_up_by_its_key() {
        let queue = QueueOverview { name: "fetches".to_owned(), ..held_up(3, None) };
        let (open, closed) = (worker(true), worker(false));
        let obstacle = |workers: &[WorkerOverview]| OldestJob::of([&queue], workers).obstacle();
        assert_eq!(obstacle(&[open.clone(), open.clone()]), None);
        assert_eq!(obstacle(&[open, closed.clone()]), Some(HELD_UP));
        assert_eq!(obstacle(&[closed]), Some(HELD_UP));
        assert_eq!(obstacle(&[]), Some(HELD_UP));
    }
}
