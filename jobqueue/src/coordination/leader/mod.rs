//! Leader election: one leader among many processes.
//!
//! ```text
//!            acquire, raise the term            token fires       work is dropped     lease expires
//! candidate ─────────────────────────► leader ──────────────────────────────────────────────────► candidate
//!     ▲                                  │ ▲          5/6 of the lease     19/20           1
//!     └── poll ── taken by another       │ └── renewed every third of the lease, which starts again
//!                                        └── released, broken, taken: at once
//! ```
//!
//! All times are monotonic and count from before the request that began the lease was sent, so a leadership
//! ends in this process before it ends in the storage. This is not a proof: while a machine is suspended, its
//! clock may stand still. Pass the [term](Leadership::term) as a fencing token to effects that must never
//! happen twice.

pub(crate) mod blob;
mod hold;
mod leadership;
#[cfg(test)]
mod tests;

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

pub use leadership::Leadership;

pub(super) use hold::LeadershipEnd;

use crate::clock::WITHOUT_END;
use crate::error::{Error, ErrorKind};
use crate::job::outcome::chain;
use crate::lease::LeaseRenewer;
use crate::queue_core::no_renewer;
use crate::storage::{LeaseId, Storage};
use crate::sync::lock;
use blob::{Attempt, LeaderBlob};
use hold::LeaderLease;

pub(super) const DEFAULT_LEASE: Duration = Duration::from_secs(30);

/// A candidate for one named leadership, among all processes that use the storage.
///
/// The leader is the holder of a blob's lease. When the leader stops, it releases the lease, and another
/// candidate leads after at most one poll interval. When the leader dies, another candidate leads after at
/// most the lease and a poll interval: 36 seconds with the defaults. Azure documents that an expired lease
/// may be blocked for another minute. While another candidate leads, a candidate reads the lease once per
/// poll interval; on a database it tries to acquire the lease instead.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use jobqueue::leader::Leader;
/// use jobqueue::Storage;
///
/// let leader = Leader::new(&Storage::memory(), "traffic")?;
/// let term = leader.run_while_leader(|leadership| async move { leadership.term() }).await?;
/// assert!(term > 0);
/// assert!(!leader.has_control());
/// # Ok(()) }
/// ```
pub struct Leader {
    storage: Storage,
    name: String,
    lease: Duration,
    poll: Option<Duration>,
    /// The highest term that this process has seen.
    seen: AtomicU64,
    /// Locked by an attempt until the attempt has ended, even if its caller was dropped.
    candidacy: Arc<tokio::sync::Mutex<CandidateState>>,
    current: Mutex<Weak<LeaderLease>>,
}

#[derive(Debug)]
struct CandidateState {
    /// The proposed lease id, kept until an acquisition is answered, so that repeating the request is safe.
    /// An id is never proposed again after its release.
    proposed: LeaseId,
    /// The time before which this candidate does not try.
    not_before: Option<Instant>,
}

impl Leader {
    /// Returns a candidate for the leadership called `name`: 1–200 ASCII letters, digits and `-_.=/`.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) if the name is not allowed.
    pub fn new(storage: &Storage, name: impl Into<String>) -> Result<Self, Error> {
        let name = name.into();
        if name.len() > 200 {
            return Err(Error::new(ErrorKind::Invalid, "the name of a leadership has 1 to 200 characters"));
        }
        blob::name(&name)?;
        Ok(Self {
            storage: storage.clone(),
            name,
            lease: DEFAULT_LEASE,
            poll: None,
            seen: AtomicU64::new(0),
            candidacy: Arc::new(tokio::sync::Mutex::new(CandidateState {
                proposed: LeaseId::random(storage.runtime()),
                not_before: None,
            })),
            current: Mutex::default(),
        })
    }

    jobqueue_storage::setters! {
        /// Sets the duration of the lease: 15–60 whole seconds; the default is 30. The lease is renewed every
        /// third of its duration. [`try_lead`](Self::try_lead) and the methods built on it fail for another
        /// duration.
        lease(lease: Duration);

        /// Sets the interval at which a candidate tries while another candidate leads, with a jitter of a
        /// fifth. The default is a sixth of the lease.
        poll_interval(interval: Duration) => poll =
            Some(interval.clamp(Duration::from_millis(10), WITHOUT_END));
    }

    /// Returns the leadership's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether this candidate leads now, by its own monotonic clock. Returns false shortly before the
    /// lease can expire.
    pub fn has_control(&self) -> bool {
        self.current_lease().is_some_and(|lease| lease.has_control())
    }

    /// Returns the term of this candidate while it leads.
    pub fn term(&self) -> Option<u64> {
        self.current_lease().filter(|lease| lease.has_control()).map(|lease| lease.term)
    }

    fn current_lease(&self) -> Option<Arc<LeaderLease>> {
        lock(&self.current).upgrade()
    }

    /// Tries once to become the leader. Returns `None` while another candidate leads, or while this candidate
    /// already leads.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for a [lease](Self::lease) outside 15–60 seconds,
    /// [`Configuration`](ErrorKind::Configuration) if the thread that renews leases cannot be started,
    /// [`Storage`](ErrorKind::Storage) if the storage fails.
    ///
    /// # Cancel safety
    /// If the future is dropped after the lease was acquired, the next call uses that lease, or it expires.
    pub async fn try_lead(&self) -> Result<Option<Leadership>, Error> {
        self.attempt(false).await
    }

    /// Tries once to become the leader; with `reads_first`, only if a read does not show that another
    /// candidate leads.
    fn attempt(&self, reads_first: bool) -> BoxFuture<'_, Result<Option<Leadership>, Error>> {
        Box::pin(async move {
            check_lease(self.lease)?;
            let mut candidacy = Arc::clone(&self.candidacy).lock_owned().await;
            if self.current_lease().is_some_and(|lease| !lease.closed.is_cancelled()) {
                return Ok(None);
            }
            if candidacy.not_before.is_some_and(|moment| Instant::now() < moment) {
                return Ok(None);
            }
            let blob = LeaderBlob::new(&self.storage, blob::name(&self.name)?, self.lease)?;
            let runtime = self.storage.runtime();
            let (seen, now) = (self.seen.load(Ordering::Acquire), runtime.now());
            let (candidate_blob, next) = (blob.clone(), LeaseId::random(runtime));
            // Runs on the runtime of the renewals, over separate connections, so that neither the
            // application's runtime nor its hanging calls can delay the attempt.
            let attempt = LeaseRenewer::spawn_detached(runtime, async move {
                let attempt = async {
                    if reads_first && candidate_blob.is_held().await? {
                        return Ok(Attempt::Taken);
                    }
                    candidate_blob.acquire(&mut candidacy.proposed, next, seen, now).await
                };
                (attempt.await, candidacy)
            });
            let attempt = attempt.map_err(no_renewer)?;
            let Ok((attempt, mut candidacy)) = AbortOnDropHandle::new(attempt).await else {
                let text = "the attempt to lead was ended: its runtime is shutting down, or the adapter of the storage has panicked";
                return Err(Error::new(ErrorKind::Storage, text));
            };
            let Attempt::Acquired { requested, term } = attempt? else { return Ok(None) };
            let lease = std::mem::replace(&mut candidacy.proposed, LeaseId::random(runtime));
            self.seen.fetch_max(term, Ordering::AcqRel);
            let leader_lease = LeaderLease::new(blob, lease, term, requested);
            *lock(&self.current) = Arc::downgrade(&leader_lease);
            let renewals =
                LeaseRenewer::spawn_detached(runtime, Arc::clone(&leader_lease).renew_until_closed());
            let renewals = renewals.map_err(no_renewer)?;
            crate::log::info!(leader = %self.name, term, "leading");
            Ok(Some(Leadership::new(leader_lease, renewals)))
        })
    }

    /// Waits until this candidate leads. Logs failures and tries again, after a pause that doubles up to the
    /// lease.
    ///
    /// # Errors
    /// Only errors that no retry can fix: a [lease](Self::lease) outside 15–60 seconds, a storage without
    /// leases, a thread that cannot be started.
    ///
    /// # Cancel safety
    /// As [`try_lead`](Self::try_lead).
    pub async fn lead(&self) -> Result<Leadership, Error> {
        // On a database an attempt costs no more than a read.
        let is_database = self.storage.blob_powers().transaction_place.is_some();
        let poll = self.poll.unwrap_or(self.lease / 6);
        let (mut reads_first, mut pause) = (false, poll);
        loop {
            match self.attempt(reads_first).await {
                Ok(Some(leadership)) => return Ok(leadership),
                Ok(None) => (reads_first, pause) = (!is_database, poll),
                Err(error) if error.is_retryable() => {
                    crate::log::warn!(leader = %self.name, error = %chain(&error), "trying to become leader failed; trying again");
                    // A lease that a read shows may belong to this candidate, from a request without an
                    // answer.
                    (reads_first, pause) = (false, (pause * 2).min(self.lease.max(poll)));
                }
                Err(error) => return Err(error),
            }
            tokio::time::sleep(self.storage.runtime().jitter(pause, 0.8..=1.2)).await;
        }
    }

    /// Waits for leadership, runs `work` while it lasts, and returns the result of `work`. When leadership is
    /// lost, `work` is dropped, and called again in the next term that this candidate leads. Work that returns
    /// after its token has fired counts as dropped: only work that returns before ends the candidacy.
    ///
    /// The token of the [`Leadership`] fires one sixth of the lease before the lease can expire, and `work`
    /// is dropped before the lease can expire. If the lease turns out to be broken or taken, `work` is
    /// dropped immediately. Once control has ended, `work` is never polled again, for instance after the
    /// process was suspended. Tasks or threads that `work` has started must watch [`Leadership::has_control`]
    /// or the token themselves.
    ///
    /// The lease is renewed even while `work` blocks its thread, so such work keeps the leadership.
    ///
    /// To stop, drop the future; the lease is then released in the background.
    ///
    /// # Errors
    /// As [`lead`](Self::lead).
    ///
    /// # Cancel safety
    /// If the future is dropped, the work is dropped too.
    pub async fn run_while_leader<T, F: Future<Output = T>>(
        &self,
        mut work: impl FnMut(Leadership) -> F,
    ) -> Result<T, Error> {
        loop {
            let leadership = self.lead().await?;
            let term = self.run_term(leadership, |leadership| {
                let lease = Arc::clone(&leadership.lease);
                let running = work(leadership);
                async move {
                    let output = running.await;
                    if lease.end().is_some() {
                        // The loss has ended the work, which is therefore dropped like work that goes on.
                        std::future::pending::<()>().await;
                    }
                    output
                }
            });
            if let Some(output) = term.await {
                return Ok(output);
            }
        }
    }

    /// Runs `work` in one term, and releases the lease. Returns `None` if leadership was lost before `work`
    /// ended.
    pub(super) async fn run_term<T, F: Future<Output = T>>(
        &self,
        leadership: Leadership,
        work: impl FnOnce(Leadership) -> F,
    ) -> Option<T> {
        let done = while_leading(&leadership, work(leadership.share())).await;
        let end = leadership.lease.end();
        leadership.release().await;
        if done.is_some() {
            return done;
        }
        crate::log::warn!(leader = %self.name, term = leadership.term(), ?end, "leadership lost");
        if end == Some(LeadershipEnd::Broken) {
            self.yield_leadership().await;
        }
        None
    }

    /// Pauses this candidate, so that another candidate can lead: the lease was broken on purpose.
    pub(super) async fn yield_leadership(&self) {
        self.candidacy.lock().await.not_before = Some(Instant::now() + self.lease * 2);
    }
}

/// Polls `work` while this process has control; `None` if control ended first.
async fn while_leading<T>(leadership: &Leadership, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    let mut control_ended = pin!(leadership.control_ended());
    std::future::poll_fn(|context| {
        // The clock is checked first: after a suspension of the process, `work` must not be polled again.
        if !leadership.has_control() || control_ended.as_mut().poll(context).is_ready() {
            return Poll::Ready(None);
        }
        work.as_mut().poll(context).map(Some)
    })
    .await
}

pub(super) fn check_lease(lease: Duration) -> Result<(), Error> {
    if !(15..=60).contains(&lease.as_secs()) || lease.subsec_nanos() != 0 {
        return Err(Error::new(ErrorKind::Invalid, "a leader's lease lasts 15 to 60 whole seconds"));
    }
    Ok(())
}

impl fmt::Debug for Leader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Leader");
        shown.field("name", &self.name).field("lease", &self.lease).field("term", &self.term());
        shown.finish_non_exhaustive()
    }
}
