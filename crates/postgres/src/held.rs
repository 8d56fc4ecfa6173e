//! Operations that another transaction holds up: the deletion of the first message of a group while a
//! transaction adds a message to the group, a put into a group whose first message is not committed, and the
//! deletion of a message that a transaction has changed.
//!
//! These operations must not hold up others in turn. A list of operations skips them, or waits for their
//! locks only briefly. Then deletions are tried again together, with growing pauses of up to a second, and
//! each statement waits for a lock as briefly as a list does. Puts are tried again separately for each
//! group, holding no other lock, once a second. Each attempt needs a permit, except the first
//! attempt of a put, which usually just shared a list with a put that was held up. An attempt waits for the
//! lock until the next attempt would begin, or only briefly if no permit is left, so that each operation gets
//! its turn soon, however many there are. A list that is put as a whole is tried each second, in turn briefly
//! and patiently: where commits take longer than a brief wait, some of its many groups are always locked by a
//! deletion that is being committed. Lists lock their groups in one order, so patient lists cannot deadlock.
//! The limit is of each wait: a patient list that waits for several groups in turn keeps those that it has
//! locked for the sum of these waits, at most for the time limit of its statement. An attempt that ends
//! without the lock has changed nothing, and frees its connection.

use std::future::Future;
use std::iter;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::combine::runtime_ended;
use crate::database::Call;
use jobqueue_storage::runtime::Runtime;
use jobqueue_storage::{StoreError, StoreErrorKind};

/// The time for which a list of operations waits for a lock.
const LIST_LOCK_TIMEOUT: Duration = Duration::from_millis(50);
/// The time for which a single operation waits for a lock. It is longer than that of a list, because a list
/// may hold the lock for so long.
const SINGLE_LOCK_TIMEOUT: Duration = Duration::from_millis(60);
const _: () =
    assert!(SINGLE_LOCK_TIMEOUT.as_millis() > LIST_LOCK_TIMEOUT.as_millis(), "a single send outlasts a list");
/// The first pause before a deletion is tried again.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// The time from an attempt to the next, and the maximum pause of deletions.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The limits of a store's operations that other transactions hold up.
#[derive(Debug)]
pub(crate) struct HeldUp {
    pub(crate) limits: LockLimits,
    /// Permits for attempts at puts that are held up. They limit the connections of these attempts.
    pub(crate) puts: Arc<Semaphore>,
}

impl HeldUp {
    /// Returns the limits of a store with this number of connections and this time limit of operations.
    pub(crate) fn new(max_connections: usize, timeout: Duration) -> Self {
        let puts = Arc::new(Semaphore::new((max_connections / 3).max(1)));
        Self { limits: LockLimits::within(timeout), puts }
    }
}

/// The limits of waits for locks, as values of the setting `lock_timeout`. None is longer than half of an
/// operation's time limit: otherwise the operation could time out first, with an unknown outcome, as a list
/// that waits for several locks in turn still can.
#[derive(Debug)]
pub(crate) struct LockLimits {
    pub(crate) in_list: String,
    pub(crate) alone: String,
    pub(crate) until_next: String,
    /// The limit of an operation that makes a single attempt.
    pub(crate) longest: String,
}

impl LockLimits {
    fn within(limit: Duration) -> Self {
        let text = |wanted: Duration| {
            let within = wanted.min(limit / 2).as_millis().clamp(1, i32::MAX.unsigned_abs().into());
            format!("{within}ms")
        };
        Self {
            in_list: text(LIST_LOCK_TIMEOUT),
            alone: text(SINGLE_LOCK_TIMEOUT),
            until_next: text(RETRY_INTERVAL),
            longest: text(limit),
        }
    }

    /// Returns the limit of an attempt that holds one of these permits.
    pub(crate) fn with_permit(&self, permits: &Semaphore) -> &str {
        if permits.available_permits() == 0 { &self.alone } else { &self.until_next }
    }
}

/// Returns the time of the next attempt, if an attempt begins now.
pub(crate) fn next_attempt() -> Instant {
    Instant::now() + RETRY_INTERVAL
}

/// Returns the pauses between the attempts at a deletion.
pub(crate) fn pauses() -> impl Iterator<Item = Duration> {
    iter::successors(Some(FIRST_PAUSE), |pause| Some((*pause * 2).min(RETRY_INTERVAL)))
}

/// Returns the error of an operation that was held up for its whole time limit. It has changed nothing.
pub(crate) fn held_up(call: Call<'_>) -> StoreError {
    let detail = "other transactions kept the message or its group locked; commit soon after a send in order or a completion, and see \
        whether commits of the server take long";
    call.refuse(StoreErrorKind::Timeout).with_detail(detail)
}

/// Repeats an operation until `end`. An attempt gets whether it may be patient, which every second one may,
/// returns `None` if it was held up, and continues if this future is dropped. The first attempt needs no
/// permit.
pub(crate) async fn repeat<T, F>(
    runtime: &Runtime,
    permits: &Arc<Semaphore>,
    call: Call<'_>,
    end: Instant,
    attempt: impl Fn(bool) -> F,
) -> Result<T, StoreError>
where
    T: Send + 'static,
    F: Future<Output = Option<Result<T, StoreError>>> + Send + 'static,
{
    let mut attempts = 0_u32;
    while Instant::now() < end {
        let next = next_attempt().min(end);
        let permit = if attempts > 0 {
            match timeout_at(end, Arc::clone(permits).acquire_owned()).await {
                Ok(Ok(permit)) => Some(permit),
                _ => break,
            }
        } else {
            None
        };
        let attempt = attempt(attempts % 2 == 1);
        let attempted = runtime.spawn(async move {
            let _permit = permit;
            attempt.await
        });
        match attempted.await {
            Ok(Some(answer)) => return answer,
            Ok(None) => {}
            Err(_) => return Err(runtime_ended(call)),
        }
        attempts += 1;
        sleep_until(next).await;
    }
    Err(held_up(call))
}

#[cfg(test)]
mod tests {
    use super::*;
    use jobqueue_storage::Operation;
    use tokio::task::JoinSet;
    use tokio::time::sleep;

    /// The time limit of an operation.
    const LIMIT: Duration = Duration::from_secs(30);

    /// Repeats an operation that is held up until `free`.
    async fn held_until(held: Arc<HeldUp>, free: Instant) -> Result<(), StoreError> {
        let end = Instant::now() + LIMIT;
        let attempt = |_: bool| {
            let held = Arc::clone(&held);
            async move {
                let limit = held.limits.with_permit(&held.puts).strip_suffix("ms").unwrap();
                let given_up = Instant::now() + Duration::from_millis(limit.parse().unwrap());
                sleep_until(free.min(given_up)).await;
                (free <= given_up).then_some(Ok(()))
            }
        };
        let call = Call::new(Operation::PutAll, &"jobs");
        repeat(&Runtime::new(), &held.puts, call, end, attempt).await
    }

    #[tokio::test(start_paused = true)]
    async fn operation_that_is_free_again_does_not_wait_for_many_that_are_held_up() {
        let held = Arc::new(HeldUp::new(10, LIMIT));
        let (mut others, began) = (JoinSet::new(), Instant::now());
        for _ in 0..200 {
            others.spawn(held_until(Arc::clone(&held), began + 2 * LIMIT));
        }
        sleep(RETRY_INTERVAL).await;
        held_until(Arc::clone(&held), Instant::now() + 2 * RETRY_INTERVAL).await.unwrap();
        assert!(began.elapsed() < LIMIT / 2, "{:?}", began.elapsed());
        for other in others.join_all().await {
            let error = other.unwrap_err();
            assert_eq!((error.kind(), error.is_ambiguous()), (StoreErrorKind::Timeout, false), "{error}");
        }
        assert!(began.elapsed() < LIMIT + RETRY_INTERVAL);
    }

    #[tokio::test(start_paused = true)]
    async fn operation_that_is_held_up_alone_goes_on_at_once() {
        let free = Instant::now() + 5 * RETRY_INTERVAL / 2;
        held_until(Arc::new(HeldUp::new(10, LIMIT)), free).await.unwrap();
        assert_eq!(Instant::now(), free);
    }
}
