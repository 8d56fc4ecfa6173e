//! The oldest job of one or several queues.

use std::time::Duration;

use super::QueueOverview;

/// The oldest job of one or several queues, as commands and pages show it. In a queue it is the oldest job that
/// can be received, or while none can be, the oldest that backs off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct OldestJob {
    /// The age: [`oldest`](QueueOverview::oldest), or
    /// [`oldest_backing_off`](QueueOverview::oldest_backing_off). `None` if there is no job, or if its age is
    /// unknown.
    pub age: Option<Duration>,
    /// True if the job backs off.
    pub backs_off: bool,
    /// True if it is certainly the oldest, or if there is certainly none.
    pub is_exact: bool,
}

impl OldestJob {
    /// Returns the oldest job of all these queues.
    pub fn of<'q>(queues: impl IntoIterator<Item = &'q QueueOverview>) -> Self {
        let none = Self { age: None, backs_off: false, is_exact: true };
        queues.into_iter().map(QueueOverview::oldest_job).fold(none, Self::or_older)
    }

    /// Returns the older of two jobs; of the same age, the one that can be received.
    fn or_older(self, other: Self) -> Self {
        let is_older = (other.age, !other.backs_off) > (self.age, !self.backs_off);
        let older = if is_older { other } else { self };
        Self { is_exact: self.is_exact && other.is_exact, ..older }
    }
}

impl QueueOverview {
    /// Returns the oldest job of the queue.
    pub fn oldest_job(&self) -> OldestJob {
        let is_exact = self.age().is_some() && self.oldest_is_exact();
        match self.oldest_backing_off.filter(|_| self.held_up || self.oldest.is_none()) {
            Some(age) => OldestJob { age: Some(age), backs_off: true, is_exact },
            None => OldestJob { age: self.oldest, backs_off: false, is_exact },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn job_that_backs_off_is_the_oldest_only_where_none_can_be_received() {
        let held_up = QueueOverview { held_up: true, ..queue(Some(0), Some(5)) };
        let (idle, unread) = (queue(None, None), QueueOverview::default());
        let oldest = |queues: &[&QueueOverview]| {
            let OldestJob { age, backs_off, is_exact } = OldestJob::of(queues.iter().copied());
            (age.map(|age| age.as_secs() / 3_600), backs_off, is_exact)
        };
        assert_eq!(oldest(&[]), (None, false, true));
        assert_eq!(oldest(&[&idle]), (None, false, true));
        assert_eq!(oldest(&[&unread]), (None, false, false));
        assert_eq!(oldest(&[&queue(None, Some(5)), &idle]), (Some(5), true, true));
        assert_eq!(oldest(&[&held_up, &queue(Some(1), Some(9))]), (Some(5), true, true));
        assert_eq!(oldest(&[&held_up, &queue(Some(6), None)]), (Some(6), false, true));
        assert_eq!(oldest(&[&queue(Some(5), None), &held_up]), (Some(5), false, true));
        assert_eq!(oldest(&[&held_up, &unread]), (Some(5), true, false));
    }
}
