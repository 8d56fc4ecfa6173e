//! A rate limiter that several handlers of one process share.

use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use crate::clock::WITHOUT_END;
use crate::sync::lock;

/// Limits how often handlers begin. All clones share one limit: give the same limiter to all handlers, and to
/// all workers of the process, that call the same service.
///
/// The limiter counts within this process: two processes with the same limit begin twice as many jobs. Divide
/// the rate among the processes, or let one process run these handlers.
///
/// Jobs begin at even intervals unless [`burst`](Self::burst) allows more. Each attempt counts, whether its
/// handler calls the service or not, and no handler can take or return a turn by itself. Queues that share a
/// limiter get turns whatever their [weights](crate::worker::QueueLimits::weight). The worker does not fetch
/// messages that would have to wait for the limit, so that other workers can receive them;
/// [`WorkerBuilder::limit`](crate::WorkerBuilder::limit) describes queues of several kinds.
///
/// ```
/// # use jobqueue::{JobError, QueueMessage, Storage, Worker}; use serde::{Deserialize, Serialize};
/// # #[derive(Serialize, Deserialize, QueueMessage)]
/// # #[message(queue = "mails", kind = "mail")] struct Mail {}
/// # #[derive(Serialize, Deserialize, QueueMessage)]
/// # #[message(queue = "newsletters", kind = "newsletter")] struct Newsletter {}
/// # async fn mail(_: Mail) -> Result<(), JobError> { Ok(()) }
/// # async fn newsletter(_: Newsletter) -> Result<(), JobError> { Ok(()) }
/// use jobqueue::worker::{HandlerLimits, RateLimit};
/// use std::time::Duration;
///
/// let provider = RateLimit::new(600, Duration::from_secs(60)).burst(20);   // 600 a minute for both kinds together
/// let worker = Worker::builder(Storage::memory())
///     .handle(mail)
///     .handle(newsletter)
///     .limit::<Mail>(HandlerLimits::new().rate(&provider))
///     .limit::<Newsletter>(HandlerLimits::new().rate(&provider).concurrency(4))
///     .build()?;
/// # drop(worker); Ok::<(), jobqueue::Error>(())
/// ```
#[derive(Clone)]
pub struct RateLimit {
    inner: Arc<TokenBucket>,
}

struct TokenBucket {
    /// The time between two tokens.
    interval: Duration,
    burst: u32,
    /// Limits the tokens that are taken before messages are fetched.
    taken: Bucket,
    /// Limits the jobs that begin.
    begun: Bucket,
    /// Serves waiting callers in order.
    turn: tokio::sync::Mutex<()>,
    returned: Notify,
    refused: Mutex<RefusedDelivery>,
}

/// The state of a delivery that was refused a token. Its message is put back, so the delivery does not wait
/// in line, and the waiting callers would leave it no token.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum RefusedDelivery {
    #[default]
    No,
    Yes,
    /// A waiting caller has left its token for the next delivery.
    TokenIsKept,
}

/// The time at which the full burst is available again; in the past if it is already available.
type Bucket = Mutex<Option<Instant>>;

/// The permission to fetch and begin one job. An unspent token returns to the limiter when dropped.
#[derive(Debug)]
pub(super) struct RateToken {
    limit: Option<RateLimit>,
}

impl RateLimit {
    /// Returns a limiter for `jobs` (at least 1) per `per` (at least a microsecond for each job).
    pub fn new(jobs: u32, per: Duration) -> Self {
        let interval = (per.min(WITHOUT_END) / jobs.max(1)).max(Duration::from_micros(1));
        Self::of(interval, 1)
    }

    /// Returns a limiter of the same rate that lets up to `jobs` jobs begin at once after a quiet time. The
    /// default is 1. Within any time span, at most that many more jobs begin than the rate allows. With a
    /// larger burst, a worker fetches more messages per request.
    #[must_use]
    pub fn burst(self, jobs: u32) -> Self {
        Self::of(self.inner.interval, jobs.max(1))
    }

    fn of(interval: Duration, burst: u32) -> Self {
        Self {
            inner: Arc::new(TokenBucket {
                interval,
                burst,
                taken: Bucket::default(),
                begun: Bucket::default(),
                turn: tokio::sync::Mutex::default(),
                returned: Notify::default(),
                refused: Mutex::default(),
            }),
        }
    }

    pub(super) fn per_second(&self) -> f64 {
        1.0 / self.inner.interval.as_secs_f64()
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Waits for a token, in the order of the calls. Leaves the first token to a refused delivery, if there
    /// is one. Cancel-safe.
    pub(super) async fn take(&self) -> RateToken {
        let _turn = self.inner.turn.lock().await;
        let mut has_left_a_token = false;
        loop {
            let mut returned = pin!(self.inner.returned.notified());
            returned.as_mut().enable();
            let Err(wait) = self.take_now() else {
                if has_left_a_token || !self.keep_for_refused() {
                    return RateToken { limit: Some(self.clone()) };
                }
                has_left_a_token = true;
                continue;
            };
            tokio::select! {
                biased;
                () = returned => {}
                () = sleep(wait) => {}
            }
        }
    }

    /// Takes a token if one is free and no other caller waits for it. Otherwise returns the time until the
    /// next token.
    pub(super) fn try_take(&self) -> Result<RateToken, Duration> {
        let Ok(_turn) = self.inner.turn.try_lock() else { return Err(self.inner.interval) };
        self.take_now().map(|()| RateToken { limit: Some(self.clone()) })
    }

    /// Takes a token for a delivery. Without a token the delivery is put back.
    pub(super) fn try_take_for_delivery(&self) -> Result<RateToken, Duration> {
        let mut refused = lock(&self.inner.refused);
        let taken = match *refused {
            RefusedDelivery::TokenIsKept => Ok(RateToken { limit: Some(self.clone()) }),
            RefusedDelivery::No | RefusedDelivery::Yes => self.try_take(),
        };
        *refused = if taken.is_ok() { RefusedDelivery::No } else { RefusedDelivery::Yes };
        taken
    }

    /// Leaves the token that was just taken for the next delivery, if a delivery was refused. Returns whether
    /// it did.
    fn keep_for_refused(&self) -> bool {
        let mut refused = lock(&self.inner.refused);
        let is_refused = *refused == RefusedDelivery::Yes;
        if is_refused {
            *refused = RefusedDelivery::TokenIsKept;
        }
        is_refused
    }

    /// Takes a token, or returns the time until the next token.
    fn take_now(&self) -> Result<(), Duration> {
        self.count(&self.inner.taken, Duration::ZERO).map(drop)
    }

    /// Counts one more job in `bucket`, and returns the time for which the job must wait. Returns `Err(wait)`
    /// and does not count the job if it would wait for longer than `max_wait`.
    fn count(&self, bucket: &Bucket, max_wait: Duration) -> Result<Duration, Duration> {
        let TokenBucket { interval, burst, .. } = &*self.inner;
        let mut full_at = lock(bucket);
        let now = Instant::now();
        let after = full_at.map_or(now, |full_at| full_at.max(now)) + *interval;
        // Capped, so that the sum with an instant does not overflow.
        let wait = after.saturating_duration_since(now + interval.saturating_mul(*burst).min(WITHOUT_END));
        if wait > max_wait {
            return Err(wait);
        }
        *full_at = Some(after);
        Ok(wait)
    }

    fn put_back(&self) {
        let mut full_at = lock(&self.inner.taken);
        *full_at = full_at.and_then(|full_at| full_at.checked_sub(self.inner.interval));
        drop(full_at);
        self.inner.returned.notify_waiters();
    }
}

impl fmt::Debug for RateLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TokenBucket { interval, burst, .. } = &*self.inner;
        f.debug_struct("RateLimit").field("interval", interval).field("burst", burst).finish_non_exhaustive()
    }
}

impl RateToken {
    /// Spends the token to begin a job, and returns the time for which the job must wait first. Returns
    /// `Err(wait)` instead if it would wait for longer than `max_wait`. A second limit is necessary because
    /// tokens are taken before messages are fetched: a storage that is slow after that returns many messages
    /// at once.
    pub(super) fn begin(self, max_wait: Duration) -> Result<Duration, Duration> {
        let wait = match &self.limit {
            Some(limit) => limit.count(&limit.inner.begun, max_wait)?,
            None => Duration::ZERO,
        };
        self.spend();
        Ok(wait)
    }

    fn spend(mut self) {
        self.limit = None;
    }
}

impl Drop for RateToken {
    fn drop(&mut self) {
        if let Some(limit) = &self.limit {
            limit.put_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn tokens_come_evenly_and_no_more_than_a_burst_is_saved() {
        let limit = RateLimit::new(10, SECOND).burst(3);
        let started = Instant::now();
        for _ in 0..23 {
            limit.take().await.spend();
        }
        assert_eq!(started.elapsed().as_millis(), 2_000);
        tokio::time::sleep(SECOND * 60).await;
        let saved = std::iter::from_fn(|| limit.try_take().ok()).map(RateToken::spend).count();
        assert_eq!(saved, 3);
    }

    #[tokio::test(start_paused = true)]
    async fn unused_token_goes_to_the_next_waiter() {
        let limit = RateLimit::new(1, SECOND * 3_600);
        let unused = limit.take().await;
        let started = Instant::now();
        let waits = tokio::spawn({
            let limit = limit.clone();
            async move { limit.take().await.spend() }
        });
        tokio::task::yield_now().await;
        assert!(limit.try_take().is_err(), "another caller waits first");
        drop(unused);
        waits.await.unwrap();
        assert_eq!(started.elapsed(), Duration::ZERO);
        let next = limit.try_take().map(RateToken::spend).unwrap_err();
        assert_eq!(next, SECOND * 3_600);
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_that_go_back_late_are_not_saved_beyond_the_burst() {
        let limit = RateLimit::new(1, SECOND).burst(2);
        let unused = [limit.take().await, limit.take().await];
        tokio::time::sleep(SECOND * 10).await;
        drop(unused);
        assert_eq!(std::iter::from_fn(|| limit.try_take().ok()).map(RateToken::spend).count(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_that_were_held_up_begin_at_the_rate() {
        let limit = RateLimit::new(10, SECOND).burst(2);
        let mut held = Vec::new();
        for _ in 0..64 {
            held.push(limit.take().await);
        }
        tokio::time::sleep(SECOND * 20).await;
        let begun: Vec<_> = held.into_iter().map(|token| token.begin(SECOND)).collect();
        let waits: Vec<_> = begun.iter().flatten().map(Duration::as_millis).collect();
        assert_eq!(waits, [0, 0, 100, 200, 300, 400, 500, 600, 700, 800, 900, 1_000]);
        assert_eq!(begun.into_iter().filter_map(Result::err).collect::<Vec<_>>(), [SECOND * 11 / 10; 52]);
    }

    #[tokio::test(start_paused = true)]
    async fn extreme_rates_neither_panic_nor_run_away() {
        let never = RateLimit::new(0, Duration::MAX).burst(u32::MAX);
        assert!(never.try_take().is_ok());
        let often = RateLimit::new(u32::MAX, Duration::ZERO);
        often.take().await.spend();
        often.take().await.spend();
    }
}
