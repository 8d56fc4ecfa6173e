//! A session that this process holds.

use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use tokio::sync::mpsc;
use uuid::Uuid;

use super::super::amqp::receiver::ReceiveLink;
use super::super::amqp::session::Accepted;
use super::super::amqp::settlement::Settlement;
use super::super::error::Fault;
use crate::sync::lock;

/// The length of a lock that the service has not told.
const USUAL_LOCK: Duration = Duration::from_secs(60);

/// The fate of the message of a session that is out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is completed or dead-lettered.
    Settled,
    /// It was given back, and is visible to all.
    GivenBack,
    /// It is given back, and must not be delivered before a time.
    Delayed { lock: Uuid, until: SystemTime },
}

/// A session that this process holds. The message that is out refers to it.
#[derive(Debug)]
pub(in crate::servicebus) struct Session {
    id: String,
    pub(super) link: ReceiveLink,
    link_name: String,
    until: Mutex<SystemTime>,
    fates: mpsc::UnboundedSender<Fate>,
}

impl Session {
    /// Returns a session, and what its driver hears of the message that is out.
    pub(super) fn new(accepted: Accepted) -> (Self, mpsc::UnboundedReceiver<Fate>) {
        let (fates, heard) = mpsc::unbounded_channel();
        let Accepted { id, link, link_name, locked_until } = accepted;
        let until = Mutex::new(locked_until.unwrap_or_else(|| SystemTime::now() + USUAL_LOCK));
        (Self { id, link, link_name, until, fates }, heard)
    }

    pub(in crate::servicebus) fn id(&self) -> &str {
        &self.id
    }

    /// Returns the name of the link that holds the session.
    pub(in crate::servicebus) fn link_name(&self) -> &str {
        &self.link_name
    }

    /// Returns the end of the session's lock, by the service's clock.
    pub(in crate::servicebus) fn locked_until(&self) -> SystemTime {
        *lock(&self.until)
    }

    /// Notes the new end of the lock.
    pub(in crate::servicebus) fn renewed(&self, until: SystemTime) {
        *lock(&self.until) = until;
    }

    /// Settles the message that is out, on the link that holds the session. Without the link the session is lost.
    pub(in crate::servicebus) async fn settle(&self, token: Uuid, how: Settlement) -> Result<(), Fault> {
        let fate = match how {
            Settlement::Abandon => Fate::GivenBack,
            Settlement::Complete | Settlement::DeadLetter(_) => Fate::Settled,
        };
        let settled = self.link.settle(token, how).await.unwrap_or_else(|| Err(lost()));
        if settled.is_ok() {
            let _ = self.fates.send(fate);
        }
        settled
    }

    /// Gives the message back at a time; until then the session is held.
    pub(in crate::servicebus) fn give_back_at(&self, token: Uuid, until: SystemTime) -> Result<(), Fault> {
        if self.link.is_gone() {
            return Err(lost());
        }
        self.fates.send(Fate::Delayed { lock: token, until }).map_err(|_| lost())
    }
}

/// The fault of a message whose session's link has ended: it is somebody else's now.
fn lost() -> Fault {
    Fault::Refused {
        condition: "com.microsoft:session-lock-lost".to_owned(),
        description: "the link that held the session has ended".to_owned(),
    }
}
