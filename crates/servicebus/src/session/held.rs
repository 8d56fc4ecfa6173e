//! A session that this process holds.

use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, SystemTime};

use fe2o3_amqp::types::primitives::Value;
use scopeguard::guard;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::super::amqp::receiver::ReceiveLink;
use super::super::amqp::requests::{Node, NodeRequest};
use super::super::amqp::session::AcceptedSession;
use super::super::amqp::settlement::Settlement;
use super::super::amqp::{Links, LiveConnection, field, instant, map};
use super::super::error::{Fault, condition};
use super::pool::{Phase, PoolCore};
use jobqueue_storage::sync::lock;

/// The time that a renewal waits for the connection that holds the session before it tries another one.
const HOLDER_TIMEOUT: Duration = Duration::from_secs(2);
/// The assumed length of a lock if the service does not name its end.
const DEFAULT_LOCK_LENGTH: Duration = Duration::from_secs(60);
/// The time that a session is held if the outcome of its message's second settlement is unknown.
const DOUBTFUL_HOLD: Duration = Duration::from_secs(3);

/// The outcome of a message that was taken by a get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MessageOutcome {
    /// The message is completed or dead-lettered.
    Settled,
    /// The message is given back, or its state is unknown. The session is held until `until`, if that is set,
    /// and then released.
    GivenBack { until: Option<SystemTime> },
}

#[derive(Debug, Clone, Copy)]
struct LockEnd {
    /// By the service's clock.
    until: SystemTime,
    /// By the monotonic clock of this process.
    at: Instant,
}

impl LockEnd {
    /// Moves the end forward; a late answer to an earlier renewal does not move it back.
    fn renew(&mut self, until: SystemTime) {
        let later = until.duration_since(self.until).unwrap_or_default();
        *self = Self { until: self.until + later, at: self.at + later };
    }
}

/// A session that this process holds, with at most one message taken by a get.
#[derive(Debug)]
pub(crate) struct Session {
    id: String,
    pub(super) link: ReceiveLink,
    live: Arc<LiveConnection>,
    queue: String,
    lock_end: Mutex<LockEnd>,
    outcomes: mpsc::UnboundedSender<MessageOutcome>,
    number: u64,
    /// Fires when the session is lost or released while a get has its message: another receiver may get it.
    lost: CancellationToken,
    /// Set if the message is kept back; dropped with the session.
    kept_back: OnceLock<Arc<()>>,
    /// The pool. The session's phase is recorded there before the driver is notified, so that a concurrent
    /// `get` does not report an empty queue.
    shared: Weak<PoolCore>,
}

/// Releases the session when dropped, unless the message has reached a caller.
#[derive(Debug)]
pub(crate) struct SessionReleaseGuard(Option<Arc<Session>>);

impl Session {
    /// Returns a session, and the driver's receiver for the outcomes of its messages.
    pub(super) fn new(
        accepted: AcceptedSession,
        live: Arc<LiveConnection>,
        number: u64,
        shared: &Arc<PoolCore>,
    ) -> (Self, mpsc::UnboundedReceiver<MessageOutcome>) {
        let (outcomes, receiver) = mpsc::unbounded_channel();
        let AcceptedSession { id, link, locked_until } = accepted;
        let now = shared.links.clock.now();
        let until = locked_until.unwrap_or(now + DEFAULT_LOCK_LENGTH);
        // Capped at the length of a lock, because a clock that is behind sees too much time left. Renewals
        // add the exact difference.
        let left = until.duration_since(now).unwrap_or_default().min(lock(&shared.state).longest_lock);
        let lock_end = Mutex::new(LockEnd { until, at: Instant::now() + left });
        let (queue, lost) = (shared.queue.clone(), CancellationToken::new());
        let shared = Arc::downgrade(shared);
        let kept_back = OnceLock::new();
        (Self { id, link, live, queue, lock_end, outcomes, number, lost, kept_back, shared }, receiver)
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Marks the session as lost while its message is taken.
    pub(super) fn mark_lost(&self) {
        self.lost.cancel();
    }

    /// Returns the token that fires when the session is lost while its message is taken.
    pub(crate) fn lost(&self) -> &CancellationToken {
        &self.lost
    }

    /// Keeps the message back until the session is released.
    pub(crate) fn keep_back(&self, noted: Arc<()>) {
        let _ = self.kept_back.set(noted);
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Returns the end of the session's lock by the service's clock.
    pub(crate) fn locked_until(&self) -> SystemTime {
        lock(&self.lock_end).until
    }

    /// Returns the end of the session's lock by the monotonic clock, which does not jump with the wall clock.
    pub(super) fn lock_ends_at(&self) -> Instant {
        lock(&self.lock_end).at
    }

    pub(crate) fn left(&self) -> Duration {
        self.lock_ends_at().saturating_duration_since(Instant::now())
    }

    /// Renews the lock; returns its new end. Like all clients of the service, uses the connection that holds
    /// the session, which also counts as use of the session's link. If that connection does not answer in
    /// time, because all threads of the program are busy, or cannot open another link, the connection of
    /// `links` is used as well.
    ///
    /// # Errors
    /// `SESSION_LOCK_LOST` if the session's link has ended: its message can no longer be settled.
    pub(crate) async fn renew(self: &Arc<Self>, links: &Arc<Links>) -> Result<SystemTime, Fault> {
        let session = Arc::clone(self);
        let mut renewing = links.runtime().spawn(async move { session.renew_here().await });
        let limit = HOLDER_TIMEOUT.min(self.left() / 8);
        let Ok(renewed) = timeout(limit, &mut renewing).await else {
            return tokio::select! {
                biased;
                renewed = renewing => renewed.unwrap_or_else(|ended| Err(Fault::not_sent(ended))),
                Ok(until) = self.renew_elsewhere(links) => Ok(until),
            };
        };
        match renewed {
            Ok(Err(Fault::NotSent(_))) | Err(_) => self.renew_elsewhere(links).await,
            Ok(renewed) => renewed,
        }
    }

    async fn renew_here(&self) -> Result<SystemTime, Fault> {
        let node = self.live.node(&self.queue).await;
        if self.link.is_gone() {
            return Err(lost());
        }
        self.renew_by(&node.map_err(Fault::not_sent)?, vec![self.link.association()]).await
    }

    /// Renews the session over another connection. It is not documented whether the service supports that, so
    /// a refusal does not show that the session is lost.
    async fn renew_elsewhere(&self, links: &Arc<Links>) -> Result<SystemTime, Fault> {
        let node = links.node(&self.queue).await.map_err(Fault::not_sent)?;
        self.renew_by(&node, Vec::new()).await.map_err(Fault::not_sent)
    }

    async fn renew_by(
        &self,
        node: &Node,
        properties: Vec<(&'static str, String)>,
    ) -> Result<SystemTime, Fault> {
        let answer = node.call(NodeRequest {
            operation: "com.microsoft:renew-session-lock",
            properties,
            body: map([("session-id", Value::String(self.id.clone()))]),
        });
        let Some(Value::Timestamp(until)) =
            answer.await?.and_then(|answer| field(&answer, "expiration").cloned())
        else {
            return Err(Fault::unreadable("the answer lacks the end of the session's lock"));
        };
        let until = instant(until.milliseconds());
        lock(&self.lock_end).renew(until);
        Ok(until)
    }

    /// Settles the taken message on the link that holds the session. If the link has given up the delivery,
    /// because the service was too busy to settle it, sends the request `retry`. Without its link, the
    /// session is lost. If the outcome is unknown, or the future is dropped, the session is released.
    pub(crate) async fn settle(&self, token: Uuid, how: Settlement, retry: NodeRequest) -> Result<(), Fault> {
        let mut outcome = guard(Some(MessageOutcome::GivenBack { until: None }), |outcome| {
            if let Some(outcome) = outcome {
                self.report(outcome);
            }
        });
        let (settled, is_retry) = match self.link.settle(token, how).await {
            Some(settled) => (settled, false),
            None => (self.settle_by_request(retry).await, true),
        };
        match &settled {
            Ok(()) => *outcome = Some(MessageOutcome::Settled),
            // The session stays held, and the caller retries.
            Err(fault) if fault.is_throttled() => *outcome = None,
            Err(Fault::NotSent(_)) if is_retry => *outcome = None,
            // The link has ended.
            Err(fault) if is_retry && fault.is_lock_lost() => *outcome = None,
            Err(_) if is_retry => {
                // By the end of this time, the caller has recorded that the message may be delivered again.
                let until = self.shared.upgrade().map(|shared| shared.links.clock.now() + DOUBTFUL_HOLD);
                *outcome = Some(MessageOutcome::GivenBack { until });
            }
            Err(_) => {}
        }
        settled
    }

    /// Settles the message by a request over the connection that holds the session. It is not documented
    /// whether the service supports that for every message, so any refusal other than "busy" leaves the state
    /// of the message unknown.
    async fn settle_by_request(&self, mut retry: NodeRequest) -> Result<(), Fault> {
        if self.link.is_gone() {
            return Err(lost());
        }
        retry.properties.push(self.link.association());
        let settled = async { self.live.node(&self.queue).await.map_err(Fault::not_sent)?.call(retry).await };
        match settled.await {
            Err(fault @ Fault::Refused { .. }) if !fault.is_throttled() => Err(Fault::lost(fault)),
            settled => settled.map(drop),
        }
    }

    /// Gives the message back by releasing the session, which counts no delivery: at once, or after holding
    /// the session until `until`.
    pub(crate) fn give_back(&self, until: Option<SystemTime>) -> Result<(), Fault> {
        if self.link.is_gone() {
            return Err(lost());
        }
        if until.is_none() {
            self.set_phase(Phase::Closing);
        }
        self.outcomes.send(MessageOutcome::GivenBack { until }).map_err(|_| lost())
    }

    fn set_phase(&self, phase: Phase) {
        if let Some(shared) = self.shared.upgrade() {
            shared.set_phase(self.number, phase);
        }
    }

    fn report(&self, outcome: MessageOutcome) {
        self.set_phase(if outcome == MessageOutcome::Settled { Phase::Asking } else { Phase::Closing });
        let _ = self.outcomes.send(outcome);
    }
}

impl SessionReleaseGuard {
    pub(super) fn new(session: &Arc<Session>) -> Self {
        Self(Some(Arc::clone(session)))
    }

    /// Keeps the session, because the message has reached a caller or was settled.
    pub(crate) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for SessionReleaseGuard {
    fn drop(&mut self) {
        if let Some(session) = self.0.take() {
            session.report(MessageOutcome::GivenBack { until: None });
        }
    }
}

/// Returns the fault for a message whose session's link has ended: another receiver may have the message.
fn lost() -> Fault {
    Fault::Refused {
        condition: condition::SESSION_LOCK_LOST.to_owned(),
        description: "the link that held the session has ended".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Each such pair of answers made the session's lock seem longer here than it was at the service.
    #[tokio::test(start_paused = true)]
    async fn crossing_renewal_answers_do_not_lengthen_a_lock() {
        let (until, at) = (SystemTime::UNIX_EPOCH, Instant::now());
        let mut end = LockEnd { until, at };
        for seconds in [30, 20, 40] {
            end.renew(until + Duration::from_secs(seconds));
        }
        assert_eq!(end.until, until + Duration::from_secs(40));
        assert_eq!(end.at, at + Duration::from_secs(40));
    }
}
