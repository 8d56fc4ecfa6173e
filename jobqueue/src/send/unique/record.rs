//! The record of one key: its states, and the changes of senders and cancellers. No request is made here.
//!
//! | state | a sender claims | a canceller holds | its owner finishes |
//! |---|---|---|---|
//! | none | → pending | nothing to cancel | – |
//! | pending: its sender may send, or its canceller delete | waits | busy | → sent, → over |
//! | pending, written by the same one: an answer was lost | owns it | owns it | |
//! | abandoned: pending for too long | → pending under the same id, *taken over* | as sent; a canceller left it, so its message *may be deleted* | → sent, → over |
//! | sent, within the window | joins the job | → pending, if the message is known and no child of a batch | – |
//! | over: the window has passed, the job is cancelled, or the queue was cleared | → pending | nothing to cancel | – |
//!
//! A canceller finishes by what became of the message:
//!
//! | the message | the record |
//! |---|---|
//! | deleted | → over |
//! | received by a worker | → sent, and the message is not known |
//! | certainly not deleted, because the storage refused it | → sent |
//! | unknown: an answer was lost, or the message may be deleted and is not there | stays pending, until it is abandoned |

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::unix_millis;
use crate::group_log::EntryRef;
use crate::json_blob::{Edit, Version};
use crate::runtime::Runtime;
use crate::undelivered::{StoredMessage, UndeliveredRef};

/// The record of a key: its sender, and the end of its window. Times are milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) id: String,
    /// Identifies the sender or canceller that wrote the record: several may use the same id.
    #[serde(default)]
    pub(super) nonce: String,
    /// True if the message is stored.
    sent: bool,
    /// The time until which the sender may send.
    pub(super) pending_until: u64,
    pub(super) until: u64,
    /// The stored message, so that it can be cancelled; `None` if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) message: Option<UndeliveredRef>,
    /// The job's position in its FIFO group. A cancellation gives it up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) position: Option<EntryRef>,
    /// True if a former sender, which died or got no answer, may have stored a message under this id.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) taken_over: bool,
    /// The child of a batch that wrote the record. Another sender that takes over from it sends under the same id, and not as this child.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    child: Option<String>,
}

impl Record {
    pub(crate) fn pending(id: String, runtime: &Runtime, pending: Duration, window: Duration) -> Self {
        let now = runtime.now();
        let (pending_until, until) = (unix_millis(now + pending), unix_millis(now + window));
        let (sent, taken_over, message, position, child) = (false, false, None, None, None);
        Self { id, nonce: nonce(runtime), sent, pending_until, until, message, position, taken_over, child }
    }

    pub(super) fn of_child(self, child: Option<&str>) -> Self {
        Self { child: child.map(str::to_owned), ..self }
    }

    /// Returns the record of a stored message, which can be cancelled if it is known.
    pub(super) fn into_sent(self, message: Option<&StoredMessage>) -> Self {
        Self { sent: true, message: message.map(UndeliveredRef::from), ..self }
    }

    /// Returns the record with the job's position in its FIFO group.
    pub(crate) fn at(self, position: Option<EntryRef>) -> Self {
        Self { position, ..self }
    }

    /// Returns a record without a message: the key is free.
    pub(super) fn into_void(self) -> Self {
        Self { sent: true, until: 0, message: None, ..self }
    }

    /// Returns whether a send at `now` would join the job of the record.
    pub(super) fn is_joined(&self, now: u64) -> bool {
        self.sent && now < self.until
    }

    /// Frees the key of a job whose message was deleted, if the record is still `known`.
    pub(super) fn freed(found: Option<Self>, known: &Self) -> Edit<Self, ()> {
        match found {
            Some(found) if found == *known => Edit::Write(found.into_void(), ()),
            _ => Edit::Keep(()),
        }
    }

    /// Decides a sender's claim of the key at `now` with the record `mine`.
    pub(super) fn claim(found: Option<Self>, mine: &Self, now: u64) -> Edit<Self, Ownership<Option<Joined>>> {
        let Some(found) = found else { return Edit::Write(mine.clone(), Ownership::Mine) };
        match (found.sent, now < found.until, now < found.pending_until) {
            // Our own write succeeded, but its answer was lost.
            (false, ..) if found.nonce == mine.nonce => Edit::Keep(Ownership::Mine),
            (true, true, _) => {
                let joined = Joined { id: found.id, child: found.child };
                Edit::Keep(Ownership::Other(Some(joined)))
            }
            (false, _, true) => Edit::Keep(Ownership::Other(None)),
            // Its sender died and may have sent, so the id stays for its window. A child of a batch has the id of its place: no other
            // belongs to the batch.
            (false, true, false) => {
                let id = if mine.child.is_some() { mine.id.clone() } else { found.id };
                Edit::Write(Self { id, taken_over: true, ..mine.clone() }, Ownership::Mine)
            }
            (_, false, _) => Edit::Write(mine.clone(), Ownership::Mine),
        }
    }

    /// Decides a canceller's hold on the key from `now` until `until`, if its job is `id` or no id is given.
    pub(super) fn hold(
        found: Option<Self>,
        id: Option<&str>,
        nonce: &str,
        now: u64,
        until: u64,
    ) -> Edit<Self, Ownership<ClaimState>> {
        let Some(found) = found.filter(|found| id.is_none_or(|id| found.id == id)) else {
            return Edit::Keep(Ownership::Other(ClaimState::Nothing));
        };
        match (found.sent, now < found.until, now < found.pending_until) {
            (false, ..) if found.nonce == nonce => Edit::Keep(Ownership::Mine),
            (false, _, true) => Edit::Keep(Ownership::Other(ClaimState::Busy)),
            (_, true, _) if found.child.is_some() => Edit::Keep(Ownership::Other(ClaimState::OfBatch)),
            (sent, true, _) => match found.message {
                // A canceller that died or got no answer has left a record that is not sent.
                Some(message) => {
                    let message = Some(message.deleted_perhaps(!sent));
                    let nonce = nonce.to_owned();
                    let held = Self { sent: false, nonce, pending_until: until, message, ..found };
                    Edit::Write(held, Ownership::Mine)
                }
                None => Edit::Keep(Ownership::Other(ClaimState::Nothing)),
            },
            _ => Edit::Keep(Ownership::Other(ClaimState::Nothing)),
        }
    }

    /// Changes the record `own` by its owner if it still stands. Returns whether it does.
    pub(super) fn finish(
        found: Option<Self>,
        own: &Self,
        outcome: impl Fn(Self) -> Self,
    ) -> Edit<Self, bool> {
        match found {
            Some(found) if !found.sent && found.nonce == own.nonce => Edit::Write(outcome(found), true),
            _ => Edit::Keep(false),
        }
    }
}

/// Returns a random name for one sender or canceller.
pub(super) fn nonce(runtime: &Runtime) -> String {
    format!("{:016x}", runtime.random_u64())
}

/// A job that was sent earlier.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) id: String,
    /// The child of a batch as which it was sent.
    pub(super) child: Option<String>,
}

/// The result of holding a key to cancel its job.
#[derive(Debug)]
pub(super) enum ClaimState {
    /// The job was sent, and the key is held: others wait as they do for a sender.
    Held(Box<Version<Record>>, StoredMessage),
    Nothing,
    /// Another process is sending or cancelling.
    Busy,
    /// The job is a child of a batch, which waits for its end.
    OfBatch,
}

/// The decision about a record that was read.
#[derive(Debug)]
pub(super) enum Ownership<T> {
    Mine,
    Other(T),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::{MessageId, MessageRef, PopReceipt};

    const PENDING: u64 = 45_000;
    const WINDOW: u64 = 3_600_000;
    const SENT: u64 = 1_000;

    /// Returns the record of a sender that has claimed the key at 0.
    fn pending(nonce: &str) -> Record {
        let (id, nonce) = (format!("of {nonce}"), nonce.to_owned());
        let (pending_until, until, sent, taken_over) = (PENDING, WINDOW, false, false);
        Record {
            id,
            nonce,
            sent,
            pending_until,
            until,
            message: None,
            position: None,
            taken_over,
            child: None,
        }
    }

    fn sent() -> Record {
        let message = MessageRef { id: MessageId::new("1"), receipt: PopReceipt::new("secret") };
        let (may_be_duplicated, may_be_deleted) = (false, false);
        let stored =
            StoredMessage { message, hidden_until: None, may_be_duplicated, may_be_deleted, payload: None };
        pending("first").into_sent(Some(&stored))
    }

    fn claimed(found: Option<Record>, now: u64) -> String {
        match Record::claim(found, &pending("second"), now) {
            Edit::Write(record, Ownership::Mine) if record.taken_over => format!("takes over, {}", record.id),
            Edit::Write(record, Ownership::Mine) => format!("pending, {}", record.id),
            Edit::Keep(Ownership::Mine) => "owns it".to_owned(),
            Edit::Keep(Ownership::Other(Some(joined))) => format!("joins, {}", joined.id),
            Edit::Keep(Ownership::Other(None)) => "waits".to_owned(),
            Edit::Write(_, Ownership::Other(_)) => "writes another's record".to_owned(),
        }
    }

    #[test]
    fn sender_claims_what_the_table_allows() {
        assert_eq!(claimed(None, 0), "pending, of second");
        assert_eq!(claimed(Some(pending("first")), SENT), "waits");
        assert_eq!(claimed(Some(pending("second")), SENT), "owns it");
        assert_eq!(claimed(Some(pending("first")), PENDING), "takes over, of first");
        assert_eq!(claimed(Some(sent()), SENT), "joins, of first");
        assert_eq!(claimed(Some(sent()), PENDING), "joins, of first");
        for over in [(pending("first"), WINDOW), (sent(), WINDOW), (sent().into_void(), SENT)] {
            assert_eq!(claimed(Some(over.0), over.1), "pending, of second");
        }
    }

    fn held(found: Option<Record>, now: u64) -> &'static str {
        match Record::hold(found, None, "canceller", now, now + PENDING) {
            Edit::Write(Record { sent: false, nonce, message: Some(message), .. }, Ownership::Mine)
                if nonce == "canceller" =>
            {
                if message.may_be_deleted {
                    "holds it, in doubt"
                } else {
                    "holds it"
                }
            }
            Edit::Keep(Ownership::Mine) => "owns it",
            Edit::Keep(Ownership::Other(ClaimState::Nothing)) => "nothing",
            Edit::Keep(Ownership::Other(ClaimState::Busy)) => "busy",
            Edit::Keep(Ownership::Other(ClaimState::OfBatch)) => "child of a batch",
            _ => "another",
        }
    }

    #[test]
    fn canceller_holds_what_the_table_allows() {
        assert_eq!(held(None, 0), "nothing");
        assert_eq!(held(Some(pending("first")), SENT), "busy");
        assert_eq!(held(Some(pending("canceller")), SENT), "owns it");
        assert_eq!(held(Some(pending("first")), PENDING), "nothing", "its message is not known");
        assert_eq!(held(Some(sent()), SENT), "holds it");
        assert_eq!(held(Some(sent().into_sent(None)), SENT), "nothing", "its message was received");
        assert_eq!(held(Some(sent().of_child(Some("batch/1"))), SENT), "child of a batch");
        assert_eq!(held(Some(sent()), WINDOW), "nothing");
        assert_eq!(held(Some(sent().into_void()), SENT), "nothing");
        // Its first canceller died.
        let abandoned = Record { sent: false, pending_until: SENT, ..sent() };
        assert_eq!(held(Some(abandoned), SENT), "holds it, in doubt");
    }

    #[test]
    fn only_the_owner_finishes_and_once() {
        let own = pending("first");
        let finish = |found| Record::finish(found, &own, Record::into_void);
        assert!(matches!(finish(Some(own.clone())), Edit::Write(over, true) if over.sent && over.until == 0));
        for others in [None, Some(pending("second")), Some(sent())] {
            assert!(matches!(finish(others), Edit::Keep(false)));
        }
    }
}
