//! A single-flight cache of answers of the storage, which viewers share for a few seconds, and a bound on
//! concurrent reads.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::{Error, ErrorKind};
use jobqueue_storage::sync::lock;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// The maximum number of cached answers. An answer may have two megabytes: 32 messages with their texts; the
/// first page of the dead letters of a queue may have eight.
const MAX_ANSWERS: usize = 128;
/// The maximum number of concurrent reads for the main content of pages, and of concurrent reads for parts of
/// pages. All viewers share these permits.
const CONCURRENT_READS: usize = 8;
/// The size above which only one answer is read at a time. A view of a payload holds it twice, so that eight
/// viewers of 32 MiB would need half a gigabyte.
const LARGE_ANSWER_BYTES: u64 = 1024 * 1024;

/// The time for which a rare part of a page is fresh.
const RARELY: Duration = Duration::from_secs(60);
/// The maximum number of seconds of one read.
const MAX_READ_SECONDS: u64 = 60;

type CachedAnswer = Arc<dyn Any + Send + Sync>;
/// An answer, with the time until which it is fresh. The lock is held while the answer is read.
type Slot = Arc<tokio::sync::Mutex<Option<(Instant, CachedAnswer)>>>;

/// Cached answers by type and key. While a read is pending, other viewers with the same key wait for its
/// answer.
pub(crate) struct Reads {
    slots: Mutex<HashMap<(TypeId, String), Slot>>,
    fresh: Duration,
    permits: Semaphore,
    /// The permits for parts of pages. Parts that hang leave the main content its own permits.
    part_permits: Semaphore,
    /// The permit for large answers.
    large_permit: Semaphore,
}

impl Reads {
    /// Returns an empty cache. An answer is fresh for half of `refresh`, so that the next refresh of a page
    /// reads a new one, unless the read took longer.
    pub(crate) fn new(refresh: Duration) -> Self {
        let permits = || Semaphore::new(CONCURRENT_READS);
        Self {
            slots: Mutex::default(),
            fresh: refresh / 2,
            permits: permits(),
            part_permits: permits(),
            large_permit: Semaphore::new(1),
        }
    }

    /// Returns the fresh answer for `key`, or else a new answer of `read`.
    pub(crate) async fn get<V: Any + Send + Sync>(
        &self,
        key: &str,
        read: impl Future<Output = Result<V, Error>>,
    ) -> Result<Arc<V>, Error> {
        self.fresh_or_read(key, &self.permits, self.fresh, read).await
    }

    /// Returns the answer like [`get`](Self::get), for a part of a page without which the page is still
    /// useful.
    pub(crate) async fn get_part<V: Any + Send + Sync>(
        &self,
        key: &str,
        read: impl Future<Output = Result<V, Error>>,
    ) -> Result<Arc<V>, Error> {
        self.fresh_or_read(key, &self.part_permits, self.fresh, read).await
    }

    /// Returns the answer like [`get_part`](Self::get_part), for a part that hardly changes: the answer is
    /// fresh for a minute.
    pub(crate) async fn get_rare_part<V: Any + Send + Sync>(
        &self,
        key: &str,
        read: impl Future<Output = Result<V, Error>>,
    ) -> Result<Arc<V>, Error> {
        self.fresh_or_read(key, &self.part_permits, self.fresh.max(RARELY), read).await
    }

    /// Returns the result of `read` without caching it, because it may be large.
    pub(crate) async fn get_once<V>(&self, read: impl Future<Output = Result<V, Error>>) -> Result<V, Error> {
        bounded(&self.permits, read).await
    }

    /// Returns the result of `read` like [`get_once`](Self::get_once). While `read` reads more than a
    /// megabyte, no other read of that size runs: `read` should drop what it has read, and return only what
    /// is shown.
    pub(crate) async fn get_sized<V>(
        &self,
        bytes: u64,
        read: impl Future<Output = Result<V, Error>>,
    ) -> Result<V, Error> {
        // Acquired before the other permit, so that viewers who wait for it hold up no other page. The
        // semaphore is never closed.
        let _permit = if bytes > LARGE_ANSWER_BYTES { self.large_permit.acquire().await.ok() } else { None };
        self.get_once(read).await
    }

    async fn fresh_or_read<V: Any + Send + Sync>(
        &self,
        key: &str,
        permits: &Semaphore,
        fresh: Duration,
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
        let (began, answer) = bounded(permits, timed).await?;
        let answer = Arc::new(answer);
        // Freshness counts from before the request, when the answer is at least as new. An answer also stays
        // fresh for as long as its read took, so that a slow storage is not read for each viewer.
        let fresh = fresh.max(2 * began.elapsed());
        *slot = Some((began + fresh, Arc::clone(&answer) as CachedAnswer));
        Ok(answer)
    }

    fn slot(&self, key: (TypeId, String)) -> Slot {
        let (mut slots, now) = (lock(&self.slots), Instant::now());
        // A slot whose answer is being read is locked.
        slots.retain(|_, slot| {
            !slot.try_lock().is_ok_and(|slot| slot.as_ref().is_some_and(|(until, _)| now >= *until))
        });
        if slots.len() >= MAX_ANSWERS {
            // Dropping all slots only costs repeated reads.
            slots.clear();
        }
        Arc::clone(slots.entry(key).or_default())
    }

    /// Drops all answers, after a change.
    pub(crate) fn clear(&self) {
        lock(&self.slots).clear();
    }
}

/// Waits for a permit, and then reads with a timeout, so that slow reads cannot block other viewers without
/// end.
async fn bounded<V>(permits: &Semaphore, read: impl Future<Output = Result<V, Error>>) -> Result<V, Error> {
    // The semaphore is never closed.
    let _permit = permits.acquire().await;
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
    async fn viewers_with_the_same_key_share_an_answer() {
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

    // review 34 b, C7
    #[tokio::test(start_paused = true)]
    async fn answers_that_are_no_longer_fresh_are_dropped() {
        let reads = Reads::new(Duration::from_secs(5));
        let large = reads.get("a", async { Ok(vec![1_u8]) }).await.unwrap();
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(*reads.get("b", async { Ok(2) }).await.unwrap(), 2);
        assert_eq!(Arc::strong_count(&large), 1, "only the viewer has it");
    }

    // review 34 b, C1
    #[tokio::test(start_paused = true)]
    async fn rare_part_is_read_once_a_minute() {
        let (reads, second) = (Reads::new(Duration::from_secs(5)), Duration::from_secs(1));
        assert_eq!(*reads.get_rare_part("a", async { Ok(1) }).await.unwrap(), 1);
        tokio::time::advance(59 * second).await;
        assert_eq!(*reads.get_rare_part("a", async { Ok(2) }).await.unwrap(), 1);
        tokio::time::advance(2 * second).await;
        assert_eq!(*reads.get_rare_part("a", async { Ok(3) }).await.unwrap(), 3);
    }

    // The time that an answer waits for a permit does not age it.
    #[tokio::test(start_paused = true)]
    async fn answer_that_waited_for_a_permit_is_fresh() {
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
        let readers = (0..3 * MAX_ANSWERS).map(|key| {
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
        for reader in readers.collect::<Vec<_>>() {
            assert!(reader.await.unwrap() < CONCURRENT_READS);
        }
        assert!(reads.slots.lock().unwrap().len() <= MAX_ANSWERS);
    }

    #[tokio::test(start_paused = true)]
    async fn large_answers_are_read_one_after_another() {
        let reads = Reads::new(Duration::from_secs(5));
        let began = Instant::now();
        let seconds_of = async |bytes: u64| {
            let slow = async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok(())
            };
            reads.get_sized(bytes, slow).await.unwrap();
            began.elapsed().as_secs()
        };
        let (first, second, small) = tokio::join!(
            seconds_of(LARGE_ANSWER_BYTES + 1),
            seconds_of(LARGE_ANSWER_BYTES + 1),
            seconds_of(LARGE_ANSWER_BYTES)
        );
        assert_eq!(first, 1);
        assert_eq!(second, 2);
        assert_eq!(small, 1);
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
