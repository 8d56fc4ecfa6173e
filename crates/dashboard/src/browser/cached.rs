//! Answers of the storage that several viewers share for a moment.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jobqueue::Error;
use jobqueue_admin::{
    BatchDetail, BatchList, DeadLetterPage, Explanation, GroupOverview, HistoryPage, LeaderOverview, RawJob,
    ScheduleOverview,
};

use crate::sync::lock;

/// The number of answers above which old ones are removed.
const MANY: usize = 256;

type Slot<V> = Arc<tokio::sync::Mutex<Option<(Instant, Arc<V>)>>>;

/// Answers by their questions. While one viewer waits for the storage, others with the same question wait for that answer.
pub(crate) struct Cached<V> {
    slots: Mutex<HashMap<String, Slot<V>>>,
    fresh: Duration,
}

impl<V> Cached<V> {
    fn new(fresh: Duration) -> Self {
        Self { slots: Mutex::default(), fresh }
    }

    /// Returns the answer to `question`: one that is fresh, or a new one of `read`.
    pub(crate) async fn get(
        &self,
        question: &str,
        read: impl Future<Output = Result<V, Error>>,
    ) -> Result<Arc<V>, Error> {
        let slot = self.slot(question);
        let mut slot = slot.lock().await;
        if let Some((at, value)) = &*slot
            && at.elapsed() < self.fresh
        {
            return Ok(Arc::clone(value));
        }
        // From before the request: the answer is at least as new.
        let at = Instant::now();
        let value = Arc::new(read.await?);
        *slot = Some((at, Arc::clone(&value)));
        Ok(value)
    }

    fn slot(&self, question: &str) -> Slot<V> {
        let mut slots = lock(&self.slots);
        if slots.len() > MANY {
            let is_used = |slot: &Slot<V>| {
                slot.try_lock()
                    .map_or(true, |answer| answer.as_ref().is_some_and(|(at, _)| at.elapsed() < self.fresh))
            };
            slots.retain(|_, slot| is_used(slot));
        }
        Arc::clone(slots.entry(question.to_owned()).or_default())
    }

    fn clear(&self) {
        lock(&self.slots).clear();
    }
}

impl<V> fmt::Debug for Cached<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cached").field("fresh", &self.fresh).finish_non_exhaustive()
    }
}

/// The answers that pages share.
#[derive(Debug)]
pub(crate) struct Reads {
    pub(crate) peeks: Cached<Vec<RawJob>>,
    pub(crate) groups: Cached<Vec<GroupOverview>>,
    pub(crate) dead: Cached<DeadLetterPage>,
    pub(crate) jobs: Cached<Explanation>,
    pub(crate) ended: Cached<HistoryPage>,
    pub(crate) schedules: Cached<Vec<ScheduleOverview>>,
    pub(crate) leaders: Cached<Vec<LeaderOverview>>,
    pub(crate) batches: Cached<BatchList>,
    pub(crate) batch: Cached<BatchDetail>,
}

impl Reads {
    pub(crate) fn new(refresh: Duration) -> Self {
        // Less than the interval: the next refresh of a page finds something new.
        let fresh = refresh / 2;
        Self {
            peeks: Cached::new(fresh),
            groups: Cached::new(fresh),
            dead: Cached::new(fresh),
            jobs: Cached::new(fresh),
            ended: Cached::new(fresh),
            schedules: Cached::new(fresh),
            leaders: Cached::new(fresh),
            batches: Cached::new(fresh),
            batch: Cached::new(fresh),
        }
    }

    /// Forgets all answers, after a change.
    pub(crate) fn clear(&self) {
        let Self { peeks, groups, dead, jobs, ended, schedules, leaders, batches, batch } = self;
        peeks.clear();
        groups.clear();
        dead.clear();
        jobs.clear();
        ended.clear();
        schedules.clear();
        leaders.clear();
        batches.clear();
        batch.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn viewers_with_one_question_share_an_answer() {
        let cached = Cached::new(Duration::from_secs(3600));
        assert_eq!(*cached.get("a", async { Ok(1) }).await.unwrap(), 1);
        assert_eq!(*cached.get("a", async { Ok(2) }).await.unwrap(), 1);
        assert_eq!(*cached.get("b", async { Ok(3) }).await.unwrap(), 3);
        cached.clear();
        assert_eq!(*cached.get("a", async { Ok(4) }).await.unwrap(), 4);
    }

    #[tokio::test]
    async fn old_answers_are_asked_again_and_removed() {
        let cached = Cached::new(Duration::ZERO);
        for question in 0..(2 * MANY) {
            cached.get(&question.to_string(), async { Ok(question) }).await.unwrap();
        }
        assert!(cached.slots.lock().unwrap().len() <= MANY + 1);
    }
}
