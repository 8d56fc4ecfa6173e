//! A limit for log lines that clients cause.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The time after which a subject is counted anew.
const PERIOD: Duration = Duration::from_secs(600);
/// The maximum number of subjects that are counted separately.
const MAX_SUBJECTS: usize = 1_000;
/// The subject of all events above that number.
const OTHERS: u64 = 0;

/// Limits the lines about each subject: of its events within ten minutes, the first, the tenth, the hundredth
/// and so on are logged.
#[derive(Debug, Default)]
pub(crate) struct LogLimit {
    subjects: Mutex<BTreeMap<u64, Events>>,
    logs_others: bool,
}

/// The events about a subject.
#[derive(Debug)]
struct Events {
    since: Instant,
    count: u64,
}

impl Events {
    fn are_over(&self, now: Instant) -> bool {
        now.duration_since(self.since) >= PERIOD
    }
}

impl LogLimit {
    /// Returns a limit that logs each event about a subject that is not counted separately. By default these
    /// events count as events of one subject.
    pub(crate) fn logging_others() -> Self {
        Self { logs_others: true, ..Self::default() }
    }

    /// Counts an event about a subject. Returns the number of its events if this one is to be logged.
    pub(crate) fn count(&self, subject: impl Hash) -> Option<u64> {
        let mut hasher = DefaultHasher::new();
        subject.hash(&mut hasher);
        let (subject, now) = (hasher.finish(), Instant::now());
        let mut subjects = self.subjects.lock().unwrap_or_else(PoisonError::into_inner);
        if subjects.len() >= MAX_SUBJECTS {
            subjects.retain(|_, events| !events.are_over(now));
        }
        let is_counted = subjects.len() < MAX_SUBJECTS || subjects.contains_key(&subject);
        if !is_counted && self.logs_others {
            return Some(1);
        }
        let subject = if is_counted { subject } else { OTHERS };
        let events = subjects.entry(subject).or_insert(Events { since: now, count: 0 });
        if events.are_over(now) {
            *events = Events { since: now, count: 0 };
        }
        events.count += 1;
        (events.count == 10_u64.pow(events.count.ilog10())).then_some(events.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // D30
    #[tokio::test(start_paused = true)]
    async fn lines_about_a_subject_are_the_fewer_the_more_events_it_has() {
        let limit = LogLimit::default();
        let logged: Vec<_> = (0..5_000).filter_map(|_| limit.count("ada")).collect();
        assert_eq!(logged, [1, 10, 100, 1_000]);
        assert_eq!(limit.count("eve"), Some(1));
        tokio::time::advance(PERIOD).await;
        assert_eq!(limit.count("ada"), Some(1));
        assert_eq!(limit.count("ada"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn number_of_subjects_is_bounded() {
        let limit = LogLimit::default();
        let lines = (0..5 * MAX_SUBJECTS).filter_map(|subject| limit.count(subject)).count();
        assert!(lines <= MAX_SUBJECTS + 6, "{lines}");
        assert!(limit.subjects.lock().unwrap().len() <= MAX_SUBJECTS + 1);
        tokio::time::advance(PERIOD).await;
        assert_eq!(limit.count("ada"), Some(1));
        assert_eq!(limit.subjects.lock().unwrap().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn event_about_a_subject_that_is_not_counted_is_logged() {
        let limit = LogLimit::logging_others();
        let lines = (0..5 * MAX_SUBJECTS).filter(|subject| limit.count(subject) == Some(1)).count();
        assert_eq!(lines, 5 * MAX_SUBJECTS);
        assert_eq!(limit.count(0_usize), None, "it is counted");
        assert_eq!(limit.subjects.lock().unwrap().len(), MAX_SUBJECTS);
    }
}
