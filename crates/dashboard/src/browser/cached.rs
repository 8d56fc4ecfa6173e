//! Answers of the storage that several viewers share for a moment.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jobqueue::{Error, ErrorKind};
use jobqueue_storage::sync::lock;

/// The most answers that are kept. One may have two megabytes: 32 messages with their texts.
const MANY: usize = 128;
/// The most questions that the storage is asked at the same time. Viewers, whoever they are, wait for their turn.
const AT_ONCE: usize = 8;

/// The most seconds of one turn.
const MOST_SECONDS: u64 = 60;

type Answer = Arc<dyn Any + Send + Sync>;
type Slot = Arc<tokio::sync::Mutex<Option<(Instant, Answer)>>>;

/// Answers by their types and questions. While one viewer waits for the storage, others with the same question wait for that answer.
pub(crate) struct Reads {
    slots: Mutex<HashMap<(TypeId, String), Slot>>,
    fresh: Duration,
    turns: tokio::sync::Semaphore,
}

impl Reads {
    /// Returns no answers, each of which will be fresh for less than `refresh`: the next refresh of a page finds something new.
    pub(crate) fn new(refresh: Duration) -> Self {
        let turns = tokio::sync::Semaphore::new(AT_ONCE);
        Self { slots: Mutex::default(), fresh: refresh / 2, turns }
    }

    /// Returns the answer to `question`: one that is fresh, or a new one of `read`.
    pub(crate) async fn get<V: Any + Send + Sync>(
        &self,
        question: &str,
        read: impl Future<Output = Result<V, Error>>,
    ) -> Result<Arc<V>, Error> {
        let slot = self.slot((TypeId::of::<V>(), question.to_owned()));
        let mut slot = slot.lock().await;
        if let Some((at, answer)) = &*slot
            && at.elapsed() < self.fresh
            && let Ok(answer) = Arc::clone(answer).downcast()
        {
            return Ok(answer);
        }
        // From before the request: the answer is at least as new.
        let (at, answer) = self.turn(async { (Instant::now(), read.await) }).await?;
        let answer = Arc::new(answer?);
        *slot = Some((at, Arc::clone(&answer) as Answer));
        Ok(answer)
    }

    /// Returns what `read` returns, which is too large to be kept.
    pub(crate) async fn get_once<V>(&self, read: impl Future<Output = Result<V, Error>>) -> Result<V, Error> {
        self.turn(read).await?
    }

    /// Reads when it is its turn. A slow read must not hold up those of all others for ever.
    async fn turn<V>(&self, read: impl Future<Output = V>) -> Result<V, Error> {
        // It is never closed.
        let _turn = self.turns.acquire().await.ok();
        let late = || {
            Error::new(
                ErrorKind::Storage,
                format!("the storage did not answer within {MOST_SECONDS} seconds"),
            )
        };
        let read = tokio::time::timeout(Duration::from_secs(MOST_SECONDS), read).await;
        read.map_err(|_| late().with_retryable(true))
    }

    fn slot(&self, question: (TypeId, String)) -> Slot {
        let mut slots = lock(&self.slots);
        if slots.len() > MANY {
            let is_used = |slot: &Slot| {
                slot.try_lock()
                    .map_or(true, |answer| answer.as_ref().is_some_and(|(at, _)| at.elapsed() < self.fresh))
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

    #[tokio::test]
    async fn old_answers_are_asked_again_and_removed() {
        let reads = Reads::new(Duration::ZERO);
        for question in 0..(2 * MANY) {
            reads.get(&question.to_string(), async { Ok(question) }).await.unwrap();
        }
        assert!(reads.slots.lock().unwrap().len() <= MANY + 1);
    }
}
