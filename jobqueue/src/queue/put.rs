//! Putting messages until the storage has taken them, or the time of their send is up.
//!
//! Throttled requests are sent again as long as there is time, all together: each waits as long as any was asked to. After a lost answer a
//! message is sent once more. All its copies have one id, and each a payload of its own.

use std::borrow::Cow;
use std::time::Duration;

use tokio::time::Instant;

use super::errors::send_error;
use super::queue_core::QueueCore;
use super::send::Prepared;
use super::unreceived::Stored;
use crate::error::{Error, ErrorKind};
use crate::storage::{Certainty, PutMessage, PutOutcome, StoreError, Tries};

/// The time that a send is tried before it is reported as failed.
pub(super) const SEND_BUDGET: Duration = Duration::from_secs(30);
/// The most resends after a lost answer, and after a failure that certainly stored nothing.
const RESENDS: (u32, u32) = (1, 4);

/// A message that is being put.
struct Putting<'p> {
    prepared: &'p Prepared,
    put: Cow<'p, PutMessage>,
    tries: Tries,
}

impl<'p> Putting<'p> {
    fn new(prepared: &'p Prepared, started: Instant) -> Self {
        let tries = Tries::until(started + SEND_BUDGET, RESENDS.0, RESENDS.1);
        Self { prepared, put: Cow::Borrowed(&prepared.put), tries }
    }

    fn stored(&self, outcome: PutOutcome) -> Stored {
        self.prepared.stored(outcome.message, self.tries.is_in_doubt())
    }
}

impl QueueCore {
    /// Puts a message whose send began at `started`.
    ///
    /// # Errors
    /// [`Rejected`](ErrorKind::Rejected) if no try stored it, [`Unknown`](ErrorKind::Unknown) if any may have.
    pub(super) async fn put_patiently(&self, prepared: &Prepared, started: Instant) -> Result<Stored, Error> {
        let mut putting = Putting::new(prepared, started);
        loop {
            self.ready(started).await;
            match self.store().put(&self.name, (*putting.put).clone()).await {
                Ok(outcome) => return Ok(putting.stored(outcome)),
                Err(error) => tokio::time::sleep(self.put_failed(&mut putting, error, started).await?).await,
            }
        }
    }

    /// Puts messages whose sends began at `started`; the answers stand in their order.
    pub(super) async fn put_all(&self, ready: &[&Prepared], started: Instant) -> Vec<Result<Stored, Error>> {
        let mut answers: Vec<_> = ready.iter().map(|_| Err(unanswered())).collect();
        let mut open: Vec<_> = ready.iter().map(|one| Putting::new(one, started)).enumerate().collect();
        while !open.is_empty() {
            self.ready(started).await;
            let puts = open.iter().map(|(_, putting)| (*putting.put).clone()).collect();
            let mut outcomes = self.store().put_all(&self.name, puts).await.into_iter();
            let (mut failed, mut longest) = (Vec::new(), Duration::ZERO);
            for (place, mut putting) in open {
                match outcomes.next() {
                    Some(Ok(outcome)) => answers[place] = Ok(putting.stored(outcome)),
                    Some(Err(error)) => match self.put_failed(&mut putting, error, started).await {
                        Ok(wait) => {
                            longest = longest.max(wait);
                            failed.push((place, putting));
                        }
                        Err(error) => answers[place] = Err(error),
                    },
                    // A storage that leaves some unanswered has told nothing of them.
                    None => {}
                }
            }
            open = failed;
            tokio::time::sleep(longest).await;
        }
        answers
    }

    /// Takes in the failure of a try; returns how long to wait before the next.
    async fn put_failed(
        &self,
        putting: &mut Putting<'_>,
        error: StoreError,
        started: Instant,
    ) -> Result<Duration, Error> {
        let in_doubt = error.is_ambiguous();
        let wait = match putting.tries.pause(error) {
            Ok(wait) => wait,
            Err(error) => {
                let certainty = error.certainty();
                if certainty == Certainty::NotApplied {
                    self.remove_unsent(putting.prepared).await;
                }
                return Err(send_error(error, certainty));
            }
        };
        if in_doubt {
            putting.put = Cow::Owned(self.resend_of(putting.prepared, started + SEND_BUDGET).await?);
        }
        Ok(wait)
    }
}

/// The error of a message that the storage has passed over.
pub(super) fn unanswered() -> Error {
    Error::new(ErrorKind::Unknown, "the storage gave no answer for this message")
}
