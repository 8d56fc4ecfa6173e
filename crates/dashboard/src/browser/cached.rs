//! Answers of the storage that several viewers share for a moment.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::{Error, ErrorKind};
use jobqueue_storage::sync::lock;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// The most answers that are kept. One may have two megabytes: 32 messages with their texts.
const MAX_ANSWERS: usize = 128;
/// The most questions that the storage is asked at the same time for the main answers of pages, and as many for their parts. Viewers, whoever
/// they are, wait for their turn.
const CONCURRENT_READS: usize = 8;

/// The most seconds of one turn.
const MAX_READ_SECONDS: u64 = 60;

type CachedAnswer = Arc<dyn Any + Send + Sync>;
/// An answer with the time until which it is fresh, or none. The lock is held while it is read.
type Slot = Arc<tokio::sync::Mutex<Option<(Instant, CachedAnswer)>>>;

/// Answers by their types and questions. While one viewer waits for the storage, others with the same key wait for that answer.
pub(crate) struct Reads {
    slots: Mutex<HashMap<(TypeId, String), Slot>>,
    fresh: Duration,
    turns: Semaphore,
    /// Those of the parts of pages: while these hang, the main answers have their turns.
    part_turns: Semaphore,
}

impl Reads {
    /// Returns no answers, each of which will be fresh for less than `refresh`, so that the next refresh of a page finds something new.
    pub(crate) fn new(refresh: Duration) -> Self {
        let turns = || Semaphore::new(CONCURRENT_READS);
        Self { slots: Mutex::default(), fresh: refresh / 2, turns: turns(), part_turns: turns() }
    }

    /// Returns the answer to `key`: one that is fresh, or a new one of `read`.
    pub(crate) async fn get<V: Any + Send + Sync>(
        &self,
        key: &str,
        read: impl Future<Output = Result<V, Error>>,
    ) -> Result<Arc<V>, Error> {
        self.fresh_or_read(key, &self.turns, read).await
    }

    /// Does the same for a part of a page, for which the viewer waits less long.
    pub(crate) async fn get_part<V: Any + Send + Sync>(
        &self,
        key: &str,
        read: impl Future<Output = Result<V, Error>>,
    ) -> Result<Arc<V>, Error> {
        self.fresh_or_read(key, &self.part_turns, read).await
    }

    /// Returns what `read` returns, which is too large to be kept.
    pub(crate) async fn get_once<V>(&self, read: impl Future<Output = Result<V, Error>>) -> Result<V, Error> {
        in_turn(&self.turns, read).await
    }

    async fn fresh_or_read<V: Any + Send + Sync>(
        &self,
        key: &str,
        turns: &Semaphore,
        read: impl Future<Output = Result<V, Error>>,
    ) -> Result<Arc<V>, Error> {
        let slot = self.slot((TypeId::of::<V>(), key.to_owned()));
        let mut slot = slot.lock().await;
        if let Some((until, answer)) = &*slot
            && Instant::now() < *until
            && let Ok(answer) = Arc::clone(answer).downcast()
        {
            return Ok(answer);
        }
        let timed = async {
            let began = Instant::now();
            read.await.map(|answer| (began, answer))
        };
        let (began, answer) = in_turn(turns, timed).await?;
        let answer = Arc::new(answer);
        // From before the request, the answer is at least as new. It is kept for as long as it took: a slow storage is not asked for each viewer.
        let fresh = self.fresh.max(2 * began.elapsed());
        *slot = Some((began + fresh, Arc::clone(&answer) as CachedAnswer));
        Ok(answer)
    }

    fn slot(&self, key: (TypeId, String)) -> Slot {
        let mut slots = lock(&self.slots);
        if slots.len() >= MAX_ANSWERS {
            // Who asks again waits for a new one.
            slots.clear();
        }
        Arc::clone(slots.entry(key).or_default())
    }

    /// Forgets all answers, after a change.
    pub(crate) fn clear(&self) {
        lock(&self.slots).clear();
    }
}

/// Waits for a turn, and reads within its time: a slow read must not hold up those of all others for ever.
async fn in_turn<V>(turns: &Semaphore, read: impl Future<Output = Result<V, Error>>) -> Result<V, Error> {
    // It is never closed.
    let _turn = turns.acquire().await;
    let late = |_| {
        let text = format!("the storage did not answer within {MAX_READ_SECONDS} seconds");
        Err(Error::new(ErrorKind::Storage, text).with_retryable(true))
    };
    tokio::time::timeout(Duration::from_secs(MAX_READ_SECONDS), read).await.unwrap_or_else(late)
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

    #[tokio::test(start_paused = true)]
    async fn slow_answer_is_shared_for_as_long_as_it_took() {
        let (reads, second) = (Reads::new(Duration::from_secs(5)), Duration::from_secs(1));
        let slow = |answer: u32| async move {
            tokio::time::sleep(10 * second).await;
            Ok(answer)
        };
        assert_eq!(*reads.get("a", slow(1)).await.unwrap(), 1);
        tokio::time::advance(9 * second).await;
        assert_eq!(*reads.get("a", slow(2)).await.unwrap(), 1);
        tokio::time::advance(2 * second).await;
        assert_eq!(*reads.get("a", slow(3)).await.unwrap(), 3);
    }

    // The time of an answer began before the wait for a turn: it was old when it came.
    #[tokio::test(start_paused = true)]
    async fn answer_that_waited_for_its_turn_is_fresh() {
        let reads = Reads::new(Duration::from_secs(5));
        let hanging =
            (0..CONCURRENT_READS).map(|_| reads.get_once(std::future::pending::<Result<(), Error>>()));
        let (_, first) =
            tokio::join!(futures_util::future::join_all(hanging), reads.get("a", async { Ok(1) }));
        assert_eq!(*first.unwrap(), 1);
        assert_eq!(*reads.get("a", async { Ok(2) }).await.unwrap(), 1);
    }

    #[tokio::test]
    async fn viewers_read_a_bounded_number_of_answers_at_once() {
        let reads = Arc::new(Reads::new(Duration::from_secs(3600)));
        let running = Arc::new(AtomicUsize::new(0));
        let asked = (0..3 * MAX_ANSWERS).map(|key| {
            let (reads, running) = (Arc::clone(&reads), Arc::clone(&running));
            tokio::spawn(async move {
                let read = async {
                    let others = running.fetch_add(1, Ordering::AcqRel);
                    tokio::task::yield_now().await;
                    running.fetch_sub(1, Ordering::AcqRel);
                    Ok(others)
                };
                *reads.get(&key.to_string(), read).await.unwrap()
            })
        });
        for asked in asked.collect::<Vec<_>>() {
            assert!(asked.await.unwrap() < CONCURRENT_READS);
        }
        assert!(reads.slots.lock().unwrap().len() <= MAX_ANSWERS);
    }

    #[tokio::test(start_paused = true)]
    async fn reads_that_hang_hold_up_others_for_a_bounded_time() {
        let reads = Reads::new(Duration::from_secs(3600));
        let hanging =
            (0..CONCURRENT_READS).map(|_| reads.get_once(std::future::pending::<Result<(), Error>>()));
        let (hanging, other) =
            tokio::join!(futures_util::future::join_all(hanging), reads.get("a", async { Ok(1) }));
        assert!(hanging.iter().all(|hung| hung.as_ref().is_err_and(Error::is_retryable)));
        assert_eq!(*other.unwrap(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn parts_that_hang_hold_up_no_main_answer() {
        let reads = Reads::new(Duration::from_secs(5));
        let of = &reads;
        let hang = |n: usize| async move {
            of.get_part(&n.to_string(), std::future::pending::<Result<(), Error>>()).await
        };
        let parts = futures_util::future::join_all((0..CONCURRENT_READS).map(hang));
        assert!(tokio::time::timeout(Duration::from_secs(8), parts).await.is_err());
        let main = tokio::time::timeout(Duration::from_secs(1), reads.get("a", async { Ok(1) })).await;
        assert_eq!(*main.unwrap().unwrap(), 1);
    }
}
