//! The record of a key: its states, and the changes of senders and cancellers. No request is made here.
//!
//! | state | a sender claims | a canceller claims | its owner finishes |
//! |---|---|---|---|
//! | none | → pending | nothing to cancel | – |
//! | pending: its sender may send, or its canceller delete | waits | waits | → sent, → free |
//! | pending, written by the caller itself: an answer was lost | owns it | owns it | |
//! | abandoned: pending for too long | → pending under the same id with the same window, *taken over* | as sent; a canceller left it, so its message *may be deleted* | → sent, → free |
//! | sent, within the window | joins the job | → pending, if the message is known | has finished |
//! | free: the window has passed (to a canceller, five minutes ago), the job is cancelled, or the queue was cleared | → pending; *sent before*, if it has the id of the window that has passed | nothing to cancel | – |
//!
//! A canceller of a sent job whose message is not that of the record claims nothing: it deletes its own
//! message, and another one of the job may run.
//!
//! A canceller finishes according to the outcome of its deletion:
//!
//! | the message | the record |
//! |---|---|
//! | deleted | → free |
//! | received by a worker | → sent, and the message is not known |
//! | certainly not deleted, because the storage refused it | → sent |
//! | unknown: an answer was lost, or the message is missing and may be deleted | stays pending, until it is abandoned |

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::clock::unix_millis;
use crate::group_log::EntryRef;
use crate::json_blob::{Edit, Version};
use crate::runtime::Runtime;
use crate::send::sent::Sent;
use crate::undelivered::{SKEW, StoredMessage, UndeliveredRef};

/// The time for which a sender or a canceller holds a key. A call that has seen the record unchanged for this
/// time considers its owner dead.
pub(super) const HOLD_PERIOD: Duration = Duration::from_secs(45);

/// The record of a key: its sender, and the end of its window. Times are milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UniqueRecord {
    pub(crate) id: String,
    pub(super) source: String,
    /// Identifies the sender or canceller that wrote the record: several of them may use the same id.
    pub(super) nonce: String,
    /// True if the message is stored.
    sent: bool,
    /// The time until which the owner may send or delete the message, by the owner's clock.
    pub(super) pending_until: u64,
    /// The end of the window; while the owner may send, the latest time at which it can end.
    pub(super) until: u64,
    /// The stored message, so that it can be cancelled; `None` if the message is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) message: Option<UndeliveredRef>,
    /// The job's position in its FIFO group. A cancellation gives it up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) position: Option<EntryRef>,
    /// True if a former sender, which died or got no answer, may have stored a message under this id.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) taken_over: bool,
    /// True if the application used this id and source in the window before, so that a message of that window
    /// may still wait.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) sent_before: bool,
}

impl UniqueRecord {
    pub(crate) fn pending(id: &str, source: &str, runtime: &Runtime, window: Duration) -> Self {
        let now = runtime.now();
        Self {
            id: id.to_owned(),
            source: source.to_owned(),
            nonce: nonce(runtime),
            sent: false,
            pending_until: unix_millis(now + HOLD_PERIOD),
            until: unix_millis(now + HOLD_PERIOD + window),
            message: None,
            position: None,
            taken_over: false,
            sent_before: false,
        }
    }

    fn is_of(&self, sent: &Sent) -> bool {
        self.id == *sent.id && sent.unique.as_ref().is_some_and(|unique| *unique.source == *self.source)
    }

    /// Returns whether the record is about another message than the one that this send stored, or about none
    /// that is known yet.
    fn is_of_another_message(&self, sent: &Sent) -> bool {
        match (&self.message, &sent.stored) {
            (Some(message), Some(stored)) => !message.is_of(stored),
            // A worker has received the message.
            (None, _) => !self.sent,
            (Some(_), None) => true,
        }
    }

    /// Returns whether the job may have another message beside that of the record.
    pub(super) fn may_be_duplicated(&self) -> bool {
        self.taken_over || self.sent_before
    }

    fn is_free(&self) -> bool {
        self.sent && self.until == 0
    }

    /// Returns the record `mine` of a sender that replaces this one.
    fn replaced_by(&self, mine: &Self) -> Self {
        let is_same_job = self.id == mine.id && self.source == mine.source;
        Self { sent_before: is_same_job && (self.sent_before || !self.is_free()), ..mine.clone() }
    }

    /// Returns the record of a stored message, which can be cancelled if it is known.
    pub(super) fn into_sent(self, message: Option<&StoredMessage>) -> Self {
        Self { sent: true, message: message.map(UndeliveredRef::from), ..self }
    }

    /// Returns the record with the job's position in its FIFO group, and the end of its window.
    pub(super) fn with_position_and_window(self, position: Option<EntryRef>, until: u64) -> Self {
        let until = if self.taken_over { until.min(self.until) } else { until };
        Self { position, until, ..self }
    }

    /// Returns the record with a renewed hold. Its window ends later, unless a former sender may have sent.
    pub(super) fn with_pending_until(self, pending_until: u64) -> Self {
        let later = if self.taken_over { 0 } else { pending_until.saturating_sub(self.pending_until) };
        Self { pending_until, until: self.until.saturating_add(later), ..self }
    }

    /// Returns the record of a free key, without a message.
    pub(super) fn into_free(self) -> Self {
        Self { sent: true, until: 0, message: None, ..self }
    }

    /// Returns whether the owner's hold has expired even allowing for clock skew.
    pub(super) fn has_certainly_expired(&self, now: SystemTime) -> bool {
        self.pending_until <= earliest(now)
    }

    /// Returns whether a send at `now` would join the job of the record, if its sender's clock is behind.
    pub(super) fn may_be_joined(&self, now: SystemTime) -> bool {
        self.sent && self.is_in_window(now)
    }

    /// Returns whether the window lasts by the clock of any sender.
    fn is_in_window(&self, now: SystemTime) -> bool {
        earliest(now) < self.until
    }

    /// Frees the key of a job whose message was deleted, if the record is still `known`.
    pub(super) fn freed(found: Option<Self>, known: &Self) -> Edit<Self, ()> {
        match found {
            Some(found) if found == *known => Edit::Write(found.into_free(), ()),
            _ => Edit::Keep(()),
        }
    }

    /// Decides a sender's claim of the key at `now` with the record `mine`. `is_abandoned` decides whether
    /// the owner of a pending record counts as dead. On conflict, returns the id of the job that was sent
    /// under the key, or `None` while another owner is sending or cancelling.
    pub(super) fn claim(
        found: Option<Self>,
        mine: &Self,
        now: u64,
        is_abandoned: impl Fn(&Self) -> bool,
    ) -> Edit<Self, Ownership<Option<String>>> {
        let Some(found) = found else { return Edit::Write(mine.clone(), Ownership::Mine) };
        // Our own write succeeded, but its answer was lost.
        if !found.sent && found.nonce == mine.nonce {
            return Edit::Keep(Ownership::Mine);
        }
        match (found.sent, now < found.until) {
            (true, true) => Edit::Keep(Ownership::Other(Some(found.id))),
            (false, _) if !is_abandoned(&found) => Edit::Keep(Ownership::Other(None)),
            // The owner died and may have sent, so the job stays for its window. A longer window could last
            // until that message has run, and a send that joins it then would be lost.
            (false, true) => {
                let (id, source) = (found.id, found.source);
                let until = found.until;
                Edit::Write(Self { id, source, until, taken_over: true, ..mine.clone() }, Ownership::Mine)
            }
            (_, false) => Edit::Write(found.replaced_by(mine), Ownership::Mine),
        }
    }

    /// Decides a canceller's claim of the key at `now`. If `sent` is given, only the key of that job is
    /// claimed. `is_abandoned` decides whether the owner of a pending record counts as dead.
    pub(super) fn claim_to_cancel(
        found: Option<Self>,
        sent: Option<&Sent>,
        nonce: &str,
        now: SystemTime,
        is_abandoned: impl Fn(&Self) -> bool,
    ) -> Edit<Self, Ownership<CancellerClaim>> {
        let Some(found) = found.filter(|found| sent.is_none_or(|sent| found.is_of(sent))) else {
            return Edit::Keep(Ownership::Other(CancellerClaim::Nothing));
        };
        match (found.sent, found.is_in_window(now)) {
            (false, _) if found.nonce == nonce => Edit::Keep(Ownership::Mine),
            (false, _) if !is_abandoned(&found) => Edit::Keep(Ownership::Other(CancellerClaim::Busy(None))),
            _ if sent.is_some_and(|sent| !found.is_free() && found.is_of_another_message(sent)) => {
                Edit::Keep(Ownership::Other(CancellerClaim::OtherMessage))
            }
            (sent, true) => match found.message {
                // A canceller that died or got no answer has left a record that is not sent.
                Some(message) => {
                    let message = Some(message.deleted_perhaps(!sent));
                    let (nonce, pending_until) = (nonce.to_owned(), unix_millis(now + HOLD_PERIOD));
                    let held = Self { sent: false, nonce, pending_until, message, ..found };
                    Edit::Write(held, Ownership::Mine)
                }
                None => Edit::Keep(Ownership::Other(CancellerClaim::Nothing)),
            },
            _ => Edit::Keep(Ownership::Other(CancellerClaim::Nothing)),
        }
    }

    /// Finishes the record `own` if the key still belongs to its owner. Returns whether it does.
    pub(super) fn finish(
        found: Option<Self>,
        own: &Self,
        outcome: impl Fn(Self) -> Self,
    ) -> Edit<Self, bool> {
        match found {
            // Its own write, whose answer was lost.
            Some(found) if found.sent && found.nonce == own.nonce => Edit::Keep(true),
            Some(found) if found.nonce == own.nonce => Edit::Write(outcome(found), true),
            _ => Edit::Keep(false),
        }
    }
}

/// A key that this process holds.
#[derive(Debug)]
pub(in crate::send) struct KeyClaim {
    pub(super) record: Version<UniqueRecord>,
    /// The time after which another process may take the key over: this process must not put its message
    /// later.
    pub(super) until: Instant,
}

impl KeyClaim {
    /// Returns the claim of a key by `record`, which was written by a request that began at `begun`.
    pub(super) fn new(record: Version<UniqueRecord>, begun: Instant) -> Self {
        Self { record, until: begun + HOLD_PERIOD }
    }

    pub(super) fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }
}

/// Returns the earliest time that the clock of another process shows at `now`, in milliseconds since 1970.
fn earliest(now: SystemTime) -> u64 {
    now.checked_sub(SKEW).map_or(0, unix_millis)
}

/// Returns a random name for a sender or a canceller.
pub(super) fn nonce(runtime: &Runtime) -> String {
    format!("{:016x}", runtime.random_u64())
}

/// The result of claiming a key to cancel its job.
#[derive(Debug)]
pub(super) enum CancellerClaim {
    /// The job was sent, and the caller holds the key: others wait as they do for a sender.
    Held(Box<KeyClaim>, StoredMessage),
    Nothing,
    /// The job to be cancelled was sent again under its id, or its sender did not record its message.
    OtherMessage,
    /// Another process is sending or cancelling, with this record if it was read.
    Busy(Option<Box<UniqueRecord>>),
}

/// The owner of a key whose record was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ownership<T> {
    Mine,
    Other(T),
}

#[cfg(test)]
mod tests;
