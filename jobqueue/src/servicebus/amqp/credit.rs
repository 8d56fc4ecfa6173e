//! The credit that the service has for a link: as much as was asked for, and never more than there are free slots.
//!
//! ```text
//!                get                nothing came, and somebody waits for arrivals
//!   nothing ───────────► getting ──────────────────────────────────────────────► listening
//!      ▲                  │  ▲                                                       │
//!      └── all came, or ──┘  └─────────── a get, or nobody fetches what came ────────┘
//!          drained
//! ```
//!
//! While listening, the service keeps the credit of the last get, so that a message comes at once; nothing is sent meanwhile.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use uuid::Uuid;

use super::super::error::Fault;
use super::connection::LIMIT;
use super::receive_task::ReceiveTask;
use super::receiver::{Taken, not_sent};

/// The time that a message waits which came without a get. Then it is given back: the slot that it came for is in use.
const EARLY: Duration = Duration::from_secs(1);

pub(super) type GetAnswer = oneshot::Sender<Result<Vec<Taken>, Fault>>;

/// A get that waits for its turn.
pub(super) struct Asked {
    pub(super) count: u32,
    pub(super) wait: Duration,
    pub(super) answer: GetAnswer,
}

/// A get that is under way, or the end of listening, whose messages are given back.
pub(super) struct Getting {
    /// The credit that the service has not used yet.
    missing: u32,
    /// The number of messages that the caller can take.
    at_most: u32,
    got: Vec<Taken>,
    answer: Option<GetAnswer>,
    pub(super) until: Instant,
    pub(super) is_draining: bool,
}

/// Credit that the service has while nobody asks.
pub(super) struct Listening {
    /// The credit that the service has not used yet.
    credit: u32,
    /// The messages that nobody has asked for yet.
    early: Vec<Taken>,
    /// The time at which they are given back; without any, the time to see whether anybody still waits.
    pub(super) until: Instant,
}

fn lost(error: impl std::fmt::Display) -> Fault {
    Fault::Lost(error.to_string())
}

impl ReceiveTask {
    /// Begins the next get, if none is under way.
    pub(super) async fn next(&mut self) -> Result<(), Fault> {
        while self.getting.is_none() {
            let Some(Asked { count, wait, answer }) = self.asked.pop_front() else { return Ok(()) };
            if !answer.is_closed() {
                self.begin(count, wait, Some(answer)).await?;
            }
        }
        Ok(())
    }

    /// Begins a get. If the service has credit already, what comes for that is the answer.
    async fn begin(&mut self, at_most: u32, wait: Duration, answer: Option<GetAnswer>) -> Result<(), Fault> {
        let (since, ahead) = self.seen.ahead(self.receiver.name(), self.received);
        self.since = since;
        let until = Instant::now() + wait;
        let Some(Listening { credit, early, .. }) = self.listening.take() else {
            let getting =
                Getting { missing: at_most, at_most, got: Vec::new(), answer, until, is_draining: false };
            self.getting = Some(getting);
            return self.receiver.set_credit(at_most.wrapping_add(ahead)).await.map_err(lost);
        };
        let until = Instant::now() + LIMIT;
        self.getting =
            Some(Getting { missing: credit, at_most, got: early, answer, until, is_draining: credit > 0 });
        match credit {
            0 => self.answer().await,
            _ => self.receiver.drain().await.map_err(lost),
        }
    }

    /// Takes a delivery in; `None` for one that could not be decoded, or has no lock.
    pub(super) async fn came(&mut self, taken: Option<Taken>) -> Result<(), Fault> {
        if let Some(getting) = &mut self.getting {
            getting.missing = getting.missing.saturating_sub(1);
            getting.got.extend(taken);
            return match (getting.missing, getting.is_draining) {
                (0, _) => self.answer().await,
                // What else is there comes with the answer to the drain.
                (_, false) => self.late().await,
                (_, true) => self.finish_if_drained().await,
            };
        }
        let Some(listening) = &mut self.listening else {
            // Nobody waits for it any more.
            if let Some(taken) = taken {
                self.give_back(taken.lock).await;
            }
            return Ok(());
        };
        listening.credit = listening.credit.saturating_sub(1);
        if let Some(taken) = taken {
            if listening.early.is_empty() {
                listening.until = Instant::now() + EARLY;
            }
            listening.early.push(taken);
        }
        if self.arrivals.has_subscribers() {
            self.arrivals.notify();
            return Ok(());
        }
        self.stop_listening().await
    }

    /// Does what is due: drains what was not delivered in time, or gives back what nobody has fetched. Ends the link when a
    /// drain gets no answer.
    pub(super) async fn late(&mut self) -> Result<(), Fault> {
        match (&mut self.getting, &mut self.listening) {
            (Some(getting), _) if getting.is_draining => Err(Fault::Lost("a drain got no answer".to_owned())),
            (Some(getting), _) => {
                getting.is_draining = true;
                getting.until = Instant::now() + LIMIT;
                self.receiver.drain().await.map_err(lost)
            }
            (None, Some(listening)) if listening.early.is_empty() && self.arrivals.has_subscribers() => {
                listening.until = Instant::now() + EARLY;
                Ok(())
            }
            (None, Some(_)) => self.stop_listening().await,
            (None, None) => Ok(()),
        }
    }

    async fn stop_listening(&mut self) -> Result<(), Fault> {
        self.begin(0, LIMIT, None).await
    }

    /// Answers the get, and gives back what the caller cannot take. Listens if there was nothing.
    async fn answer(&mut self) -> Result<(), Fault> {
        let Some(Getting { at_most, mut got, answer, .. }) = self.getting.take() else { return Ok(()) };
        let (was_empty, was_asked) = (got.is_empty(), answer.is_some());
        let mut surplus = got.split_off(got.len().min(at_most as usize));
        if let Some(answer) = answer
            && let Err(Ok(got)) = answer.send(Ok(got))
        {
            surplus.extend(got);
        }
        for taken in surplus {
            self.give_back(taken.lock).await;
        }
        if was_empty && was_asked && self.asked.is_empty() && self.arrivals.has_subscribers() {
            let (_, ahead) = self.seen.ahead(self.receiver.name(), self.received);
            let until = Instant::now() + EARLY;
            self.listening = Some(Listening { credit: at_most, early: Vec::new(), until });
            self.receiver.set_credit(at_most.wrapping_add(ahead)).await.map_err(lost)?;
        }
        Ok(())
    }

    /// Makes a message visible at once.
    async fn give_back(&mut self, lock: Uuid) {
        if let Some(delivery) = self.deliveries.remove(&lock) {
            let _ = self.receiver.release(delivery).await;
        }
    }

    /// Answers the get when all deliveries before the end of the drain have been received.
    pub(super) async fn finish_if_drained(&mut self) -> Result<(), Fault> {
        let sent = self.seen.drained(self.receiver.name(), self.since);
        match sent {
            Some(sent) if self.received >= sent => self.answer().await,
            _ => Ok(()),
        }
    }

    /// Answers all who wait when the link has ended.
    pub(super) fn fail(&mut self, fault: &Fault) {
        if let Some(Getting { got, answer: Some(answer), .. }) = self.getting.take() {
            // What came is locked: it can be settled without the link.
            let _ = answer.send(if got.is_empty() { Err(fault.clone()) } else { Ok(got) });
        }
        for Asked { answer, .. } in self.asked.drain(..) {
            let _ = answer.send(Err(not_sent()));
        }
        // Who listens asks again, over another link.
        self.arrivals.notify();
    }
}
