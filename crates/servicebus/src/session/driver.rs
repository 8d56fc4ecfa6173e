//! Drives one session: requests its messages one at a time, and releases it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use uuid::Uuid;

use super::super::amqp::LiveConnection;
use super::super::amqp::receiver::LockedMessage;
use super::super::amqp::session::AcceptedSession;
use super::held::{MessageOutcome, Session, SessionReleaseGuard};
use super::pool::{ClaimedMessage, Phase, PoolCore, PoolState};
use jobqueue_storage::log;

/// The time that a message waits for a get. Then its session is released, because the slot that it was
/// fetched for has been reused.
const OFFER_TTL: Duration = Duration::from_secs(1);
/// The time after which a session is released although it has more messages, so that other sessions get their
/// turn.
const MAX_TURN: Duration = Duration::from_secs(30);
/// The time after the end of a lock by which the service should have detached the link.
const DETACH_GRACE: Duration = Duration::from_secs(10);
const MIN_RENEWAL_PAUSE: Duration = Duration::from_millis(100);
const RENEWAL_RETRY_PAUSE: Duration = Duration::from_secs(1);
/// The most sessions of a queue that a process holds until their delays are over. The service allows 5,000
/// receivers per queue, for all processes together.
const MAX_HELD_SESSIONS: usize = 1_000;
/// The time that a session above that limit is held. Then it is released, and the service offers other
/// sessions before it offers this one again.
const SHORT_HOLD: Duration = Duration::from_secs(10);
/// A lock is renewed before the next message if less than this is left, and less than half of its length.
const MIN_LOCK_LEFT: Duration = Duration::from_secs(30);

pub(super) struct Driver {
    shared: Arc<PoolCore>,
    session: Arc<Session>,
    outcomes: mpsc::UnboundedReceiver<MessageOutcome>,
    half_lock: Duration,
}

impl Driver {
    /// Returns the driver of an accepted session, and registers the session in the pool.
    pub(super) fn new(shared: Arc<PoolCore>, accepted: AcceptedSession, live: Arc<LiveConnection>) -> Self {
        let number = shared.change(|state| {
            state.last_session += 1;
            state.phases.insert(state.last_session, Phase::Asking);
            state.last_session
        });
        let (session, outcomes) = Session::new(accepted, live, number, &shared);
        let half_lock = session.left() / 2;
        Self { shared, session: Arc::new(session), outcomes, half_lock }
    }

    pub(super) async fn run(mut self) {
        let begun = Instant::now();
        loop {
            self.set_phase(Phase::Asking);
            let Some(taken) = self.ask().await else { break };
            if !self.offer(taken).await || begun.elapsed() >= MAX_TURN {
                break;
            }
        }
        self.set_phase(Phase::Closing);
        self.session.link.close().await;
    }

    fn set_phase(&self, phase: Phase) {
        self.shared.set_phase(self.session.number(), phase);
    }

    /// Requests the next message; `None` if there is none, or the session is lost.
    async fn ask(&self) -> Option<LockedMessage> {
        let stop = self.shared.stop.clone();
        let asked = async {
            self.renew_if_short().await;
            self.session.link.get(1).await
        };
        let answer = tokio::select! {
            biased;
            () = stop.cancelled() => Ok(Vec::new()),
            answer = asked => answer,
        };
        match answer {
            Ok(mut taken) if !taken.is_empty() => taken.pop(),
            answer => {
                if let Err(error) = answer {
                    // The id of a session is a key, which no log shows.
                    log::debug!(queue = self.shared.queue, %error, "a session of Service Bus was lost");
                }
                None
            }
        }
    }

    /// Offers a message to the gets, and waits for its outcome. Returns whether the next message may follow.
    async fn offer(&mut self, taken: LockedMessage) -> bool {
        let LockedMessage { lock, message, guard } = taken;
        let session = Arc::clone(&self.session);
        let session_guard = SessionReleaseGuard::new(&self.session);
        // From here on, the message is released together with its session.
        guard.keep();
        self.shared.change(|state| {
            state.phases.insert(session.number(), Phase::Offered);
            state.offers.push_back(ClaimedMessage { lock, message, session, guard: session_guard });
        });
        self.shared.arrivals.notify();
        let expires_at = Instant::now() + OFFER_TTL;
        let mut may_expire = true;
        loop {
            tokio::select! {
                biased;
                outcome = self.outcomes.recv() => match outcome {
                    Some(MessageOutcome::Settled) => return true,
                    Some(MessageOutcome::GivenBack { until: Some(until) }) => {
                        self.hold(until).await;
                        return false;
                    }
                    Some(MessageOutcome::GivenBack { until: None }) | None => return false,
                },
                () = self.shared.stop.cancelled() => break,
                () = self.session.link.ended() => break,
                () = sleep_until(expires_at), if may_expire => {
                    may_expire = false;
                    if self.retract(lock) {
                        self.shared.change(PoolState::forget_free_slots);
                        return false;
                    }
                }
                // The holder has not renewed the lock, and the service has not reported it as lost.
                () = sleep_until(self.session.lock_ends_at() + DETACH_GRACE) => {
                    if self.session.lock_ends_at() + DETACH_GRACE <= Instant::now() {
                        break;
                    }
                }
            }
        }
        // A handler may have the message: its lock counts as lost before the session is released.
        self.session.mark_lost();
        self.retract(lock);
        false
    }

    /// Takes an offered message back and begins to release the session. Returns `false` if a get has taken
    /// the message.
    fn retract(&self, lock: Uuid) -> bool {
        let offer = self.shared.change(|state| {
            let place = state.offers.iter().position(|offer| offer.lock == lock)?;
            state.phases.insert(self.session.number(), Phase::Closing);
            state.offers.remove(place)
        });
        // The offer is dropped here, outside the lock, because its drop changes the state as well.
        offer.is_some()
    }

    /// Holds the session until a time, or until the session is lost or the pool is dropped.
    async fn hold(&self, until: SystemTime) {
        let wait = until.duration_since(self.shared.links.clock.now()).unwrap_or_default();
        let number = self.session.number();
        let held = self.shared.change(|state| {
            // A session whose message is in doubt keeps its phase: the queue is not empty.
            if let Some(phase) = state.phases.get_mut(&number).filter(|phase| **phase == Phase::Out) {
                *phase = Phase::Held;
            }
            state.count(Phase::Held)
        });
        if held == MAX_HELD_SESSIONS {
            log::warn!(
                queue = self.shared.queue,
                "this process holds the maximum number of delayed sessions; further ones are released and taken in turn"
            );
        }
        let until = Instant::now() + hold_time(wait, held);
        loop {
            let left = self.session.left();
            tokio::select! {
                biased;
                () = self.shared.stop.cancelled() => return,
                () = self.session.link.ended() => return,
                () = sleep_until(until) => return,
                () = sleep(left.saturating_sub(self.half_lock).max(MIN_RENEWAL_PAUSE)) => {
                    if self.session.renew(&self.shared.links).await.is_err() {
                        sleep(RENEWAL_RETRY_PAUSE).await;
                    }
                }
            }
        }
    }

    /// Renews the lock if the next message would get too little time.
    async fn renew_if_short(&self) {
        if self.session.left() < self.half_lock.min(MIN_LOCK_LEFT)
            && let Err(error) = self.session.renew(&self.shared.links).await
        {
            log::debug!(queue = self.shared.queue, %error, "the lock of a session was not renewed");
        }
    }
}

/// Returns how long to hold a session whose delay lasts `wait`, if `held` sessions are held including it.
fn hold_time(wait: Duration, held: usize) -> Duration {
    if held > MAX_HELD_SESSIONS { wait.min(SHORT_HOLD) } else { wait }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let number = self.session.number();
        self.shared.change(|state| state.phases.remove(&number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_long_held_sessions_is_bounded() {
        let day = Duration::from_secs(86_400);
        assert_eq!(hold_time(day, MAX_HELD_SESSIONS), day);
        assert_eq!(hold_time(day, MAX_HELD_SESSIONS + 1), SHORT_HOLD);
        assert_eq!(hold_time(Duration::ZERO, MAX_HELD_SESSIONS + 1), Duration::ZERO);
    }
}
