//! A rate limiter that several handlers share, in one process or, by a [`SharedRate`], in all.

use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use super::shared_rate::{Rate, SharedRate, Turn};
use crate::clock::WITHOUT_END;
use crate::delivery::HandlerStart;
use crate::error::{Error, ErrorKind};
use crate::runtime::Runtime;
use crate::storage::{BlobStore, NameError, Storage};
use crate::sync::lock;

/// The longest time for which a message that was fetched waits for its rate.
pub(super) const MAX_START_DELAY: Duration = Duration::from_secs(1);

/// Limits how often handlers begin. All clones share one limit: give the same limiter to all handlers, and to
/// all workers of the process, that call the same service.
///
/// The limiter counts within this process: two processes with the same limit begin twice as many jobs.
/// [`across_workers`](Self::across_workers) shares one limit among all processes.
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
    rate: Rate,
    /// Takes the place of the two buckets below, if all processes share the rate.
    shared: Option<SharedRate>,
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
    /// The time that is reserved for the job, if all processes share the rate.
    time: Option<Instant>,
}

impl RateLimit {
    /// Returns a limiter for `jobs` (at least 1) per `per` (at least a microsecond for each job).
    pub fn new(jobs: u32, per: Duration) -> Self {
        let interval = (per.min(WITHOUT_END) / jobs.max(1)).max(Duration::from_micros(1));
        Self::of(Rate { interval, burst: 1 }, None)
    }

    /// Returns a limiter of the same rate that lets up to `jobs` jobs begin at once after a quiet time. The
    /// default is 1. Within any time span, at most that many more jobs begin than the rate allows. With a
    /// larger burst, a worker fetches more messages per request.
    #[must_use]
    pub fn burst(self, jobs: u32) -> Self {
        let rate = Rate { burst: jobs.max(1), ..self.inner.rate };
        Self::of(rate, self.inner.shared.as_ref().map(|shared| shared.with_rate(rate)))
    }

    /// Returns a limiter whose limit all workers of `storage` share that name it: 1 to 200 ASCII letters,
    /// digits and `-_.=/`.
    ///
    /// Within any time span, the handlers of all processes together begin at most the burst and as many jobs
    /// as the rate allows for the span and two seconds more; on Azure three seconds. Processes may name
    /// different rates for a time, such as during a deploy: each begins jobs at its own.
    ///
    /// A process reserves up to half a second of the rate at once, by a change of a record in the storage's
    /// blobs: two a second while its jobs begin, or one for each job if there are fewer. An idle worker
    /// reserves nothing. What a process has reserved and does not use, because it was killed or its queue is
    /// empty, is lost. While the record cannot be changed, no job begins.
    ///
    /// ```
    /// # fn main() -> Result<(), jobqueue::Error> {
    /// use jobqueue::Storage;
    /// use jobqueue::worker::RateLimit;
    /// use std::time::Duration;
    ///
    /// let storage = Storage::memory();
    /// // Ten a second, however many workers there are.
    /// let provider = RateLimit::new(10, Duration::from_secs(1)).across_workers(&storage, "mail-provider")?;
    /// # drop(provider); Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) if the name is not allowed.
    pub fn across_workers(self, storage: &Storage, name: &str) -> Result<Self, Error> {
        if name.len() > 200 {
            return Err(Error::new(ErrorKind::Invalid, "the name of a rate has 1 to 200 characters"));
        }
        Ok(self.shared_over(storage.blobs(), storage.runtime(), name)?)
    }

    pub(super) fn shared_over(
        self,
        blobs: &Arc<dyn BlobStore>,
        runtime: &Runtime,
        name: &str,
    ) -> Result<Self, NameError> {
        let rate = self.inner.rate;
        Ok(Self::of(rate, Some(SharedRate::new(blobs, runtime, name, rate)?)))
    }

    fn of(rate: Rate, shared: Option<SharedRate>) -> Self {
        Self {
            inner: Arc::new(TokenBucket {
                rate,
                shared,
                taken: Bucket::default(),
                begun: Bucket::default(),
                turn: tokio::sync::Mutex::default(),
                returned: Notify::default(),
                refused: Mutex::default(),
            }),
        }
    }

    pub(super) fn per_second(&self) -> f64 {
        1.0 / self.inner.rate.interval.as_secs_f64()
    }

    pub(super) fn shared_name(&self) -> Option<String> {
        self.inner.shared.as_ref().map(|shared| shared.name().to_owned())
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Waits for a token, in the order of the calls. Leaves the first token to a refused delivery, if there
    /// is one. Cancel-safe.
    pub(super) async fn take(&self) -> RateToken {
        let _turn = self.inner.turn.lock().await;
        if let Some(shared) = &self.inner.shared {
            return self.take_shared(shared).await;
        }
        let mut has_left_a_token = false;
        loop {
            let mut returned = pin!(self.inner.returned.notified());
            returned.as_mut().enable();
            let Err(wait) = self.take_now() else {
                if has_left_a_token || !self.keep_for_refused() {
                    return self.token(None);
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

    async fn take_shared(&self, shared: &SharedRate) -> RateToken {
        loop {
            let now = Instant::now();
            match shared.turn(now + WITHOUT_END) {
                Turn::At(time) => {
                    let token = self.token(Some(time));
                    sleep_until(time).await;
                    return token;
                }
                Turn::Unreserved => return self.token(None),
                Turn::Wait(wait) => sleep(wait).await,
                Turn::Reserve(wanted) => shared.reserve(wanted).await,
            }
        }
    }

    fn token(&self, time: Option<Instant>) -> RateToken {
        RateToken { limit: Some(self.clone()), time }
    }

    /// Takes a token if one is free and no other caller waits for it. Otherwise returns the time until the
    /// next token.
    pub(super) fn try_take(&self) -> Result<RateToken, Duration> {
        let Ok(_turn) = self.inner.turn.try_lock() else { return Err(self.inner.rate.interval) };
        let Some(shared) = &self.inner.shared else { return self.take_now().map(|()| self.token(None)) };
        match shared.turn(Instant::now()) {
            Turn::At(time) => Ok(self.token(Some(time))),
            Turn::Unreserved => Ok(self.token(None)),
            Turn::Wait(wait) => Err(wait),
            Turn::Reserve(_) => Err(self.inner.rate.interval),
        }
    }

    /// Takes a token for a further message of the next fetch, if one is free.
    pub(super) fn try_take_further(&self) -> Option<RateToken> {
        let token = self.try_take().ok()?;
        // Without a time, one message at a time is fetched.
        (self.inner.shared.is_none() || token.time.is_some()).then_some(token)
    }

    /// Takes a token for a delivery. Without a token the delivery is put back.
    pub(super) fn try_take_for_delivery(&self) -> Result<RateToken, Duration> {
        if let Some(shared) = &self.inner.shared {
            return match shared.turn(Instant::now() + MAX_START_DELAY) {
                Turn::At(time) => Ok(self.token(Some(time))),
                Turn::Wait(wait) if wait > MAX_START_DELAY => Err(wait),
                Turn::Unreserved | Turn::Reserve(_) | Turn::Wait(_) => Ok(self.token(None)),
            };
        }
        let mut refused = lock(&self.inner.refused);
        let taken = match *refused {
            RefusedDelivery::TokenIsKept => Ok(self.token(None)),
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
        let Rate { interval, burst } = self.inner.rate;
        let mut full_at = lock(bucket);
        let now = Instant::now();
        let after = full_at.map_or(now, |full_at| full_at.max(now)) + interval;
        // Capped, so that the sum with an instant does not overflow.
        let wait = after.saturating_duration_since(now + interval.saturating_mul(burst).min(WITHOUT_END));
        if wait > max_wait {
            return Err(wait);
        }
        *full_at = Some(after);
        Ok(wait)
    }

    fn put_back(&self, time: Option<Instant>) {
        if let Some(shared) = &self.inner.shared {
            return shared.give_back(time);
        }
        let mut full_at = lock(&self.inner.taken);
        *full_at = full_at.and_then(|full_at| full_at.checked_sub(self.inner.rate.interval));
        drop(full_at);
        self.inner.returned.notify_waiters();
    }
}

impl fmt::Debug for RateLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TokenBucket { rate: Rate { interval, burst }, shared, .. } = &*self.inner;
        let mut form = f.debug_struct("RateLimit");
        form.field("interval", interval).field("burst", burst).field("shared", shared).finish_non_exhaustive()
    }
}

impl RateToken {
    /// Spends the token to begin a job, and returns when. Returns `Err(wait)` instead if the job would wait for
    /// longer than `max_wait`. A second limit is necessary because tokens are taken before messages are
    /// fetched: a storage that is slow after that returns many messages at once.
    pub(super) fn begin(self, max_wait: Duration) -> Result<HandlerStart, Duration> {
        let Some(limit) = &self.limit else { return Ok(HandlerStart::After(Duration::ZERO)) };
        let start = match (&limit.inner.shared, self.time) {
            (None, _) => HandlerStart::After(limit.count(&limit.inner.begun, max_wait)?),
            (Some(shared), Some(time)) if shared.spend(time) => {
                HandlerStart::After(time.saturating_duration_since(Instant::now()))
            }
            (Some(_), _) => {
                let limit = limit.clone();
                HandlerStart::Asks(Box::pin(async move {
                    match &limit.inner.shared {
                        Some(shared) => shared.begin(max_wait).await,
                        None => Ok(Duration::ZERO),
                    }
                }))
            }
        };
        self.spend();
        Ok(start)
    }

    fn spend(mut self) {
        self.limit = None;
    }
}

impl Drop for RateToken {
    fn drop(&mut self) {
        if let Some(limit) = &self.limit {
            limit.put_back(self.time);
        }
    }
}

#[cfg(test)]
mod tests;
