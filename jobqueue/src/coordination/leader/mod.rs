//! One holder among many processes.
//!
//! ```text
//!            acquire, raise the term            token fires       work is dropped     lease expires
//! candidate ─────────────────────────► leader ──────────────────────────────────────────────────► candidate
//!     ▲                                  │ ▲          5/6 of the lease     19/20           1
//!     └── poll ── taken by another       │ └── renewed every third of the lease, which begins anew
//!                                        └── released, broken, taken: at once
//! ```
//!
//! All times are monotonic and count from before the request that began the lease was sent, so this process believes to
//! lead for less time than the storage does. Belief is no proof: a machine that is suspended may find its clock standing
//! still. What must never happen twice has to be fenced by the [term](Leadership::term).

mod blob;
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

use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

pub use leadership::Leadership;

use crate::clock::WITHOUT_END;
use crate::clock::{Clock, SystemClock};
use crate::entropy;
use crate::error::{Error, ErrorKind};
use crate::lease::LeaseRenewer;
use crate::storage::{LeaseId, Storage};
use crate::sync::lock;
use crate::task;
use blob::{Attempt, LeaderBlob};
use hold::{End, Hold};

/// The container of the blobs whose leases decide who leads.
pub(super) const CONTAINER: &str = "jobqueue-leaders";
const DEFAULT_LEASE: Duration = Duration::from_secs(30);

/// A candidate for the leadership that a name stands for, among all processes that use the storage.
///
/// Leadership is the lease of a blob. When its holder stops, the lease is released and another candidate leads after at
/// most its poll interval. When the holder dies, another leads after at most the lease and a poll interval: 36 seconds
/// with the defaults. Azure says that it may take a minute more until an expired lease can be taken.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use jobqueue::{Leader, Storage};
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
    clock: Arc<dyn Clock>,
    renewer: Option<LeaseRenewer>,
    /// The highest term this process has seen.
    seen: AtomicU64,
    /// Held by an attempt until it has really come to its end, even if nobody waits for it any more.
    candidacy: Arc<tokio::sync::Mutex<Candidacy>>,
    current: Mutex<Weak<Hold>>,
}

#[derive(Debug)]
struct Candidacy {
    /// Kept until an acquisition is answered, so that repeating it is safe.
    proposed: LeaseId,
    not_before: Option<Instant>,
}

impl Leader {
    /// A candidate for the leadership called `name`: 1–200 ASCII letters, digits and `-_.=/`.
    ///
    /// # Errors
    /// A name that is not allowed.
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
            clock: Arc::new(SystemClock),
            renewer: None,
            seen: AtomicU64::new(0),
            candidacy: Arc::new(tokio::sync::Mutex::new(Candidacy {
                proposed: LeaseId::random(),
                not_before: None,
            })),
            current: Mutex::default(),
        })
    }

    /// Sets how long the lease lasts: 15–60 whole seconds; the default is 30. It is renewed every third of that. Another duration
    /// is reported by [`try_lead`](Self::try_lead) and what is built on it.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets how often a candidate tries while another leads, give or take a fifth. The default is a sixth of the lease.
    #[must_use]
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll = Some(interval.clamp(Duration::from_millis(10), WITHOUT_END));
        self
    }

    /// Renews on the current runtime instead of a thread of its own, and takes the time from `clock`: for tests on paused
    /// time.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn virtual_time(self, clock: Arc<dyn Clock>) -> Self {
        self.with(clock, Some(LeaseRenewer::on_this_runtime()))
    }

    pub(super) fn with(mut self, clock: Arc<dyn Clock>, renewer: Option<LeaseRenewer>) -> Self {
        (self.clock, self.renewer) = (clock, renewer);
        self
    }

    /// The leadership's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether this candidate leads now, by its own monotonic clock. Says no shortly before the lease can expire.
    pub fn has_control(&self) -> bool {
        self.held().is_some_and(|hold| hold.has_control())
    }

    /// The term this candidate leads in, if it leads.
    pub fn term(&self) -> Option<u64> {
        self.held().filter(|hold| hold.has_control()).map(|hold| hold.term())
    }

    fn held(&self) -> Option<Arc<Hold>> {
        lock(&self.current).upgrade()
    }

    /// Tries once to become the leader; `None` while another leads, or this candidate does already.
    ///
    /// # Errors
    /// A [lease](Self::lease) that cannot be had, or what the storage says.
    ///
    /// # Cancel safety
    /// If the future is dropped after the lease was taken, the lease is taken up by the next call, or expires.
    pub async fn try_lead(&self) -> Result<Option<Leadership>, Error> {
        check_lease(self.lease)?;
        let candidacy = Arc::clone(&self.candidacy).lock_owned().await;
        if self.held().is_some_and(|hold| !hold.is_closed()) {
            return Ok(None);
        }
        if candidacy.not_before.is_some_and(|moment| Instant::now() < moment) {
            return Ok(None);
        }
        let renewer = match &self.renewer {
            Some(renewer) => renewer.clone(),
            None => LeaseRenewer::process().map_err(|e| {
                Error::new(ErrorKind::Configuration, "the thread that renews leases could not be started")
                    .with_source(e)
            })?,
        };
        let blob = LeaderBlob::new(self.storage.blobs_apart(), blob::name(&self.name)?, self.lease);
        let (seen, clock, standing) =
            (self.seen.load(Ordering::Acquire), Arc::clone(&self.clock), blob.clone());
        // Where renewals run: through connections of their own, which neither the application's runtime nor a call of its
        // that hangs can hold up.
        let attempt = task::spawn_on(renewer.runtime(), async move {
            let attempt = standing.acquire(candidacy.proposed, seen, &*clock).await;
            (attempt, candidacy)
        });
        let Ok((attempt, mut candidacy)) = AbortOnDropHandle::new(attempt).await else {
            return Err(Error::new(ErrorKind::Storage, "the thread that renews leases has ended"));
        };
        let Attempt::Acquired { requested, term } = attempt? else { return Ok(None) };
        let lease = std::mem::replace(&mut candidacy.proposed, LeaseId::random());
        self.seen.fetch_max(term, Ordering::AcqRel);
        let hold = Hold::new(blob, lease, term, requested);
        *lock(&self.current) = Arc::downgrade(&hold);
        let renewals = task::spawn_on(renewer.runtime(), Arc::clone(&hold).renew_until_closed());
        tracing::info!(leader = %self.name, term, "leading");
        Ok(Some(Leadership::new(hold, renewals)))
    }

    /// Waits until this candidate leads. What goes wrong on the way is logged and tried again.
    ///
    /// # Errors
    /// What no waiting will mend: a [lease](Self::lease) that cannot be had, a storage without leases, a thread that cannot be
    /// started.
    ///
    /// # Cancel safety
    /// As [`try_lead`](Self::try_lead).
    pub async fn lead(&self) -> Result<Leadership, Error> {
        loop {
            match self.try_lead().await {
                Ok(Some(leadership)) => return Ok(leadership),
                Ok(None) => {}
                Err(error) if error.is_retryable() => {
                    tracing::warn!(leader = %self.name, error = %chain(&error), "could not stand for leader; trying again");
                }
                Err(error) => return Err(error),
            }
            tokio::time::sleep(self.pause()).await;
        }
    }

    /// Waits for leadership, runs `work` while it lasts, and returns what `work` returns. When leadership is lost, `work`
    /// is dropped and called anew in the next term this candidate leads.
    ///
    /// The token of the [`Leadership`] fires a sixth of the lease before the lease can expire, and the work is dropped before
    /// it does. When the lease turns out to be broken or taken, the work is dropped at once. It is also never polled
    /// once the time is over, for instance after the process was stopped and continued; what it has handed to other tasks or
    /// threads has to watch [`Leadership::has_control`] or the token itself.
    ///
    /// To stop, drop this future; the lease is then released in the background.
    ///
    /// # Errors
    /// As [`lead`](Self::lead).
    ///
    /// # Cancel safety
    /// If the future is dropped, so is the work.
    pub async fn run_while_leader<T, F: Future<Output = T>>(
        &self,
        mut work: impl FnMut(Leadership) -> F,
    ) -> Result<T, Error> {
        loop {
            let leadership = self.lead().await?;
            let done = while_leading(&leadership, work(leadership.share())).await;
            let end = leadership.end();
            leadership.release().await;
            if let Some(output) = done {
                return Ok(output);
            }
            tracing::warn!(leader = %self.name, term = leadership.term(), ?end, "leadership lost");
            if end == Some(End::Broken) {
                // Somebody broke it on purpose: let another candidate lead, if there is one.
                self.candidacy.lock().await.not_before = Some(Instant::now() + self.lease * 2);
            }
        }
    }

    fn pause(&self) -> Duration {
        let poll = self.poll.unwrap_or(self.lease / 6);
        entropy::jitter(poll, 0.8..1.2)
    }
}

/// Polls `work` as long as there is control; `None` if control ended first.
async fn while_leading<T>(leadership: &Leadership, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    let mut over = pin!(leadership.over());
    std::future::poll_fn(|context| {
        // The clock first: after a pause of the process the work must not get another turn.
        if !leadership.has_control() || over.as_mut().poll(context).is_ready() {
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

fn chain(error: &Error) -> String {
    crate::job::outcome::chain(error)
}

impl fmt::Debug for Leader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Leader");
        shown.field("name", &self.name).field("lease", &self.lease).field("term", &self.term());
        shown.finish_non_exhaustive()
    }
}
