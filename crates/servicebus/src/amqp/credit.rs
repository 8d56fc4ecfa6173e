//! The credit of a link at the service: as much as was requested, and never more than there are free slots.
//!
//! ```text
//!                get              the answer, with a subscription
//!   nothing ───────────► getting ──────────────────────────────────────────────► listening
//!      ▲                  │  ▲                                                       │
//!      └── all came, or ──┘  └─────────── a get, or arrivals are not fetched ────────┘
//!          drained
//! ```
//!
//! While listening, the service keeps the unused credit of the last get. After a get that found nothing, it
//! keeps the credit as long as there is a subscription, so that a message is delivered at once. After any
//! other get it keeps the credit until the next get, which should follow at once and raises the credit to its
//! own demand. So neither a busy worker nor a waiting one drains the link.
//!
//! A get that finds nothing drains the link to find out whether the queue is empty, if it is the first such
//! get on a new link, or after messages arrived or were put by this process. A message may be on its way for
//! longer than a get waits, and a worker that runs until it is idle would end too early.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use uuid::Uuid;

use super::super::error::Fault;
use super::receive_task::ReceiveTask;
use super::receiver::LockedMessage;
use super::values::{GET_WAIT, REQUEST_TIMEOUT};

/// The time that an unrequested message is kept. Then it is released, because the slot it was fetched for has
/// been reused.
const UNREQUESTED_TTL: Duration = Duration::from_secs(1);
/// The time that a get waits for more messages after the first.
const GATHER_TIME: Duration = Duration::from_millis(1);
/// The time that the service keeps the rest of the credit after a get that found messages. A worker with free
/// slots makes the next get earlier; a worker whose slots are used by another queue does not.
const CREDIT_LINGER: Duration = Duration::from_millis(10);

pub(super) type GetAnswer = oneshot::Sender<Result<Vec<LockedMessage>, Fault>>;

pub(super) struct WaitingGet {
    pub(super) count: u32,
    pub(super) answer: GetAnswer,
}

/// A get in progress, or the end of listening, whose messages are released.
pub(super) struct ActiveGet {
    /// The credit that the service has not used yet.
    missing: u32,
    at_most: u32,
    got: Vec<LockedMessage>,
    answer: Option<GetAnswer>,
    pub(super) until: Instant,
    pub(super) is_draining: bool,
    /// True if a rejected message used credit of the drain: there may be other messages behind it.
    has_rejected: bool,
}

/// Credit at the service without a pending get.
pub(super) struct Listening {
    /// The credit that the service has not used yet.
    credit: u32,
    /// True after a get that found nothing: the next get comes after an arrival.
    is_idle: bool,
    early: Vec<LockedMessage>,
    /// The time at which the early messages are released, or the credit ends; `None` if the credit ends only
    /// with the last subscription.
    pub(super) until: Option<Instant>,
}

impl Listening {
    /// Returns whether the credit ends with the last subscription.
    pub(super) fn is_idle(&self) -> bool {
        self.is_idle
    }
}

impl ReceiveTask {
    pub(super) async fn start_waiting_gets(&mut self) -> Result<(), Fault> {
        while self.getting.is_none() {
            let Some(WaitingGet { count, answer }) = self.waiting.pop_front() else { return Ok(()) };
            if !answer.is_closed() {
                self.begin_get(count, Some(answer)).await?;
            }
        }
        Ok(())
    }

    /// Begins a get: raises the service's credit to the requested number, or drains it if it is higher.
    async fn begin_get(&mut self, at_most: u32, answer: Option<GetAnswer>) -> Result<(), Fault> {
        self.since = self.channel.events.link(self.key).count;
        let (credit, early) =
            self.listening.take().map_or_else(Default::default, |present| (present.credit, present.early));
        let here = u32::try_from(early.len()).unwrap_or(u32::MAX);
        let is_draining = credit > 0 && credit.saturating_add(here) > at_most;
        let missing = if is_draining { credit } else { at_most.saturating_sub(here) };
        let until = Instant::now()
            + match (is_draining, early.is_empty()) {
                (true, _) => REQUEST_TIMEOUT,
                (false, true) => GET_WAIT,
                (false, false) => GATHER_TIME,
            };
        let got = early;
        self.getting =
            Some(ActiveGet { missing, at_most, got, answer, until, is_draining, has_rejected: false });
        match missing {
            0 => self.answer_get().await,
            _ if is_draining => self.receiver.drain().await.map_err(Fault::lost),
            more if more > credit => self.grant(more).await,
            _ => Ok(()),
        }
    }

    /// Sets the credit of the service. The client has not counted the credit that drains have used up.
    async fn grant(&mut self, credit: u32) -> Result<(), Fault> {
        let drained = self.channel.events.link(self.key).drained;
        self.receiver.set_credit(credit.wrapping_add(drained)).await.map_err(Fault::lost)
    }

    /// Processes a delivery; `None` stands for one that could not be decoded, or has no lock.
    pub(super) async fn on_message(&mut self, taken: Option<LockedMessage>) -> Result<(), Fault> {
        self.is_empty = false;
        if let Some(getting) = &mut self.getting {
            if taken.is_none() && !getting.is_draining {
                // It answers no get, so another message is requested in its place.
                let missing = getting.missing;
                return self.grant(missing).await;
            }
            getting.missing = getting.missing.saturating_sub(1);
            getting.has_rejected |= taken.is_none();
            getting.got.extend(taken);
            return match (getting.missing, getting.is_draining) {
                (0, _) => self.answer_get().await,
                (_, true) => self.finish_if_drained().await,
                (_, false) if self.arrivals.has_subscribers() => {
                    getting.until = getting.until.min(Instant::now() + GATHER_TIME);
                    Ok(())
                }
                // Further messages arrive with the answer to the drain.
                (_, false) => self.on_timeout().await,
            };
        }
        // A message for which no get waits is dropped, which releases it.
        let Some(listening) = &mut self.listening else { return Ok(()) };
        listening.credit = listening.credit.saturating_sub(1);
        if let Some(taken) = taken {
            if listening.early.is_empty() {
                listening.until = Some(Instant::now() + UNREQUESTED_TTL);
            }
            listening.early.push(taken);
        }
        if self.arrivals.has_subscribers() {
            self.arrivals.notify();
            return Ok(());
        }
        self.stop_listening().await
    }

    /// Runs due timers: answers an expired get, after a drain if there is no subscription, and releases
    /// unfetched messages. Ends the link if a drain is not answered.
    pub(super) async fn on_timeout(&mut self) -> Result<(), Fault> {
        match (&mut self.getting, &self.listening) {
            (Some(getting), _) if getting.is_draining => {
                // A link that is dropped ends the AMQP session when a message arrives for it.
                self.closing = Some(oneshot::channel().0);
                Err(Fault::lost("a drain got no answer"))
            }
            (Some(getting), _)
                if getting.answer.is_some()
                    && (self.is_empty && self.notifications_at_drain == self.arrivals.count()
                        || !getting.got.is_empty())
                    && self.arrivals.has_subscribers() =>
            {
                self.answer_get().await
            }
            (Some(getting), _) => {
                self.notifications_at_drain = self.arrivals.count();
                getting.is_draining = true;
                getting.until = Instant::now() + REQUEST_TIMEOUT;
                self.receiver.drain().await.map_err(Fault::lost)
            }
            (None, Some(_)) => self.stop_listening().await,
            (None, None) => Ok(()),
        }
    }

    pub(super) async fn stop_listening(&mut self) -> Result<(), Fault> {
        self.begin_get(0, None).await
    }

    /// Answers the get, also with messages in excess of its count. The service keeps credit that was not
    /// drained. A get that received only rejected messages begins again.
    async fn answer_get(&mut self) -> Result<(), Fault> {
        let Some(ActiveGet { missing, at_most, got, answer, is_draining, has_rejected, .. }) =
            self.getting.take()
        else {
            return Ok(());
        };
        let (is_idle, was_asked) = (got.is_empty(), answer.is_some());
        if is_idle && has_rejected {
            // The drain has used up all credit.
            if let Some(answer) = answer {
                self.waiting.push_front(WaitingGet { count: at_most, answer });
            }
            return Ok(());
        }
        self.is_empty |= is_draining && is_idle;
        // Messages that no caller receives are released.
        if let Some(answer) = answer {
            let _ = answer.send(Ok(got));
        }
        let rest = if is_draining { 0 } else { missing };
        let begins_to_listen =
            is_idle && was_asked && self.waiting.is_empty() && self.arrivals.has_subscribers();
        let credit = if rest == 0 && begins_to_listen { at_most } else { rest };
        if credit > 0 {
            let until = (!is_idle).then(|| Instant::now() + CREDIT_LINGER);
            self.listening = Some(Listening { credit, is_idle, early: Vec::new(), until });
        }
        if credit > rest { self.grant(credit).await } else { Ok(()) }
    }

    /// Releases a message that reached no caller.
    pub(super) async fn give_back(&mut self, lock: Uuid) {
        if let Some(delivery) = self.deliveries.remove(&lock) {
            let _ = self.receiver.release(delivery).await;
        }
    }

    /// Answers the get when all deliveries before the end of the drain have been received.
    pub(super) async fn finish_if_drained(&mut self) -> Result<(), Fault> {
        match self.channel.events.link(self.key).drained_since(self.since) {
            Some(sent) if self.received >= sent => self.answer_get().await,
            _ => Ok(()),
        }
    }

    /// Answers all waiting gets when the link has ended.
    pub(super) fn fail(&mut self, fault: &Fault) {
        if let Some(ActiveGet { got, answer: Some(answer), .. }) = self.getting.take() {
            // These messages are locked, and can be settled without the link.
            let _ = answer.send(if got.is_empty() { Err(fault.clone()) } else { Ok(got) });
        }
        for WaitingGet { answer, .. } in self.waiting.drain(..) {
            let _ = answer.send(Err(Fault::not_sent("the link has ended")));
        }
        // Subscribers make their next get over a new link.
        self.arrivals.notify();
    }
}
