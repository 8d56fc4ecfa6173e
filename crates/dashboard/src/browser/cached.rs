//! Answers of the storage that several viewers share for a moment.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::{Error, ErrorKind};
use jobqueue_storage::sync::lock;
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// The most answers that are kept. One may have two megabytes: 32 messages with their texts.
const MANY: usize = 128;
/// The most questions that the storage is asked at the same time for the main answers of pages, and as many for their parts. Viewers, whoever
/// they are, wait for their turn.
const AT_ONCE: usize = 8;

/// The most seconds of one turn.
const MOST_SECONDS: u64 = 60;

type Answer = Arc<dyn Any + Send + Sync>;
/// An answer with the time until which it is fresh, or none. The lock is held while it is read.
type Slot = Arc<tokio::sync::Mutex<Option<(Instant, Answer)>>>;

/// Answers by their types and questions. While one viewer waits for the storage, others with the same question wait for that answer.
pub(crate) struct Reads {
    slots: Mutex<HashMap<(TypeId, String), Slot>>,
    fresh: Duration,
    turns: Arc<Semaphore>,
    /// Those of reads that outlive the wait for them: while they hang, the main answers of pages have their turns.
    detached_turns: Arc<Semaphore>,
}

/// The right to read an answer, which holds up others with the same question.
struct Turn {
    slot: OwnedMutexGuard<Option<(Instant, Answer)>>,
    fresh: Duration,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Reads {
    /// Returns no answers, each of which will be fresh for less than `refresh`, so that the next refresh of a page finds something new; one that
    /// is read in a task of its own and takes longer, for as long as it took.
    pub(crate) fn new(refresh: Duration) -> Self {
        let turns = || Arc::new(Semaphore::new(AT_ONCE));
        Self { slots: Mutex::default(), fresh: refresh / 2, turns: turns(), detached_turns: turns() }
    }

    /// Returns the answer to `question`: one that is fresh, or a new one of `read`.
    pub(crate) async fn get<V: Any + Send + Sync>(
        &self,
        question: &str,
        read: impl Future<Output = Result<V, Error>>,
    ) -> Result<Arc<V>, Error> {
        match self.fresh_or_turn(question, &self.turns).await {
            Ok(answer) => Ok(answer),
            Err(turn) => turn.answer(read, false).await,
        }
    }

    /// Does the same, in a task of its own: a viewer who waits no longer finds the answer when they ask again.
    pub(crate) async fn get_detached<V: Any + Send + Sync>(
        &self,
        question: &str,
        read: impl Future<Output = Result<V, Error>> + Send + 'static,
    ) -> Result<Arc<V>, Error> {
        match self.fresh_or_turn(question, &self.detached_turns).await {
            Ok(answer) => Ok(answer),
            Err(turn) => tokio::spawn(turn.answer(read, true)).await.unwrap_or_else(|error| {
                Err(Error::new(ErrorKind::Storage, "the reading was broken off").with_source(error))
            }),
        }
    }

    /// Returns what `read` returns, which is too large to be kept.
    pub(crate) async fn get_once<V>(&self, read: impl Future<Output = Result<V, Error>>) -> Result<V, Error> {
        let _permit = permit(&self.turns).await;
        in_time(read).await
    }

    /// Returns an answer that is fresh, or else the right to read one.
    async fn fresh_or_turn<V: Any + Send + Sync>(
        &self,
        question: &str,
        turns: &Arc<Semaphore>,
    ) -> Result<Arc<V>, Turn> {
        let slot = self.slot((TypeId::of::<V>(), question.to_owned()));
        let slot = slot.lock_owned().await;
        if let Some((until, answer)) = &*slot
            && Instant::now() < *until
            && let Ok(answer) = Arc::clone(answer).downcast()
        {
            return Ok(answer);
        }
        Err(Turn { slot, fresh: self.fresh, _permit: permit(turns).await })
    }

    fn slot(&self, question: (TypeId, String)) -> Slot {
        let mut slots = lock(&self.slots);
        if slots.len() > MANY {
            let now = Instant::now();
            let is_used = |slot: &Slot| {
                slot.try_lock().map_or(true, |answer| answer.as_ref().is_some_and(|(until, _)| now < *until))
            };
            slots.retain(|_, slot| is_used(slot));
            if slots.len() > MANY {
                // Each has an answer that is still fresh: who asks again waits for a new one.
                slots.clear();
            }
        }
        Arc::clone(slots.entry(question).or_default())
    }

    /// Forgets all answers, after a change.
    pub(crate) fn clear(&self) {
        lock(&self.slots).clear();
    }
}

impl Turn {
    async fn answer<V: Any + Send + Sync>(
        mut self,
        read: impl Future<Output = Result<V, Error>>,
        outlives_viewers: bool,
    ) -> Result<Arc<V>, Error> {
        let began = Instant::now();
        let answer = Arc::new(in_time(read).await?);
        // From before the request: the answer is at least as new.
        let mut until = began + self.fresh;
        if outlives_viewers {
            // One that took long is kept for as long as it took, so that a viewer who waited for less finds it.
            until = until.max(Instant::now() + began.elapsed());
        }
        *self.slot = Some((until, Arc::clone(&answer) as Answer));
        Ok(answer)
    }
}

async fn permit(turns: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    // It is never closed.
    Arc::clone(turns).acquire_owned().await.ok()
}

/// Reads within the time of a turn: a slow read must not hold up those of all others for ever.
async fn in_time<V>(read: impl Future<Output = Result<V, Error>>) -> Result<V, Error> {
    let late = |_| {
        let text = format!("the storage did not answer within {MOST_SECONDS} seconds");
        Err(Error::new(ErrorKind::Storage, text).with_retryable(true))
    };
    tokio::time::timeout(Duration::from_secs(MOST_SECONDS), read).await.unwrap_or_else(late)
}

jobqueue_storage::debug_fields! {
    Reads { fresh }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn viewers_with_one_question_share_an_answer() {
        let reads = Reads::new(Duration::from_secs(3600));
        assert_eq!(*reads.get("a", async { Ok(1) }).await.unwrap(), 1);
        assert_eq!(*reads.get("a", async { Ok(2) }).await.unwrap(), 1);
        assert_eq!(*reads.get("b", async { Ok(3) }).await.unwrap(), 3);
        assert_eq!(*reads.get("a", async { Ok("of another type") }).await.unwrap(), "of another type");
        reads.clear();
        assert_eq!(*reads.get("a", async { Ok(4) }).await.unwrap(), 4);
    }

    #[tokio::test]
    async fn viewers_ask_a_bounded_number_of_questions_at_the_same_time() {
        let reads = Arc::new(Reads::new(Duration::from_secs(3600)));
        let running = Arc::new(AtomicUsize::new(0));
        let asked = (0..3 * MANY).map(|question| {
            let (reads, running) = (Arc::clone(&reads), Arc::clone(&running));
            tokio::spawn(async move {
                let read = async {
                    let others = running.fetch_add(1, Ordering::AcqRel);
                    tokio::task::yield_now().await;
                    running.fetch_sub(1, Ordering::AcqRel);
                    Ok(others)
                };
                *reads.get(&question.to_string(), read).await.unwrap()
            })
        });
        for asked in asked.collect::<Vec<_>>() {
            assert!(asked.await.unwrap() < AT_ONCE);
        }
        assert!(reads.slots.lock().unwrap().len() <= MANY + 1);
    }

    #[tokio::test(start_paused = true)]
    async fn reads_that_hang_hold_up_others_for_a_bounded_time() {
        let reads = Reads::new(Duration::from_secs(3600));
        let hanging = (0..AT_ONCE).map(|_| reads.get_once(std::future::pending::<Result<(), Error>>()));
        let (hanging, other) =
            tokio::join!(futures_util::future::join_all(hanging), reads.get("a", async { Ok(1) }));
        assert!(hanging.iter().all(|hung| hung.as_ref().is_err_and(Error::is_retryable)));
        assert_eq!(*other.unwrap(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn answer_that_takes_long_is_kept_for_who_waited_for_less() {
        let reads = Reads::new(Duration::from_secs(5));
        let slow = |answer| async move {
            tokio::time::sleep(Duration::from_secs(20)).await;
            Ok(answer)
        };
        let patience = Duration::from_secs(8);
        let first = tokio::time::timeout(patience, reads.get_detached("a", slow(1))).await;
        assert!(first.is_err());
        tokio::time::sleep(patience * 2).await;
        let again = tokio::time::timeout(patience, reads.get_detached("a", slow(2))).await;
        assert_eq!(*again.unwrap().unwrap(), 1);
    }

    #[tokio::test]
    async fn old_answers_are_asked_again_and_removed() {
        let reads = Reads::new(Duration::ZERO);
        for question in 0..(2 * MANY) {
            reads.get(&question.to_string(), async { Ok(question) }).await.unwrap();
        }
        assert!(reads.slots.lock().unwrap().len() <= MANY + 1);
    }

    #[tokio::test(start_paused = true)]
    async fn parts_that_hang_hold_up_no_main_answer() {
        let reads = Reads::new(Duration::from_secs(5));
        let of = &reads;
        let hang = |n: usize| async move {
            of.get_detached(&n.to_string(), std::future::pending::<Result<(), Error>>()).await
        };
        let parts = futures_util::future::join_all((0..AT_ONCE).map(hang));
        assert!(tokio::time::timeout(Duration::from_secs(8), parts).await.is_err());
        let main = tokio::time::timeout(Duration::from_secs(1), reads.get("a", async { Ok(1) })).await;
        assert_eq!(*main.unwrap().unwrap(), 1);
    }
}
