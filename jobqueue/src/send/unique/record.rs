//! The record of one key: its states, and the changes of senders and cancellers. No request is made here.
//!
//! | state | a sender claims | a canceller holds | its owner finishes |
//! |---|---|---|---|
//! | none | → pending | nothing to cancel | – |
//! | pending: its sender may send, or its canceller delete | waits | waits | → sent, → over |
//! | pending, written by the same one: an answer was lost | owns it | owns it | |
//! | abandoned: pending for too long | → pending under the same id, *taken over* | as sent; a canceller left it, so its message *may be deleted* | → sent, → over |
//! | sent, within the window | joins the job | → pending, if the message is known | has finished |
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

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::clock::unix_millis;
use crate::group_log::EntryRef;
use crate::json_blob::{Edit, Version};
use crate::runtime::Runtime;
use crate::send::sent::Sent;
use crate::undelivered::{SKEW, StoredMessage, UndeliveredRef};

/// The time for which a sender or a canceller holds a key. A call that has seen its record unchanged for as long considers its owner dead.
pub(super) const PENDING: Duration = Duration::from_secs(45);

/// The record of a key: its sender, and the end of its window. Times are milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) id: String,
    pub(super) source: String,
    /// Identifies the sender or canceller that wrote the record: several may use the same id.
    pub(super) nonce: String,
    /// True if the message is stored.
    sent: bool,
    /// The time until which the sender may send, by its clock.
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
}

impl Record {
    pub(crate) fn pending(id: &str, source: &str, runtime: &Runtime, window: Duration) -> Self {
        let (id, source, now) = (id.to_owned(), source.to_owned(), runtime.now());
        let (pending_until, until) = (unix_millis(now + PENDING), unix_millis(now + window));
        let (sent, taken_over, message, position) = (false, false, None, None);
        let nonce = nonce(runtime);
        Self { id, source, nonce, sent, pending_until, until, message, position, taken_over }
    }

    fn is_of(&self, sent: &Sent) -> bool {
        self.id == *sent.id && sent.unique.as_ref().is_some_and(|unique| *unique.source == *self.source)
    }

    /// Returns the record of a stored message, which can be cancelled if it is known.
    pub(super) fn into_sent(self, message: Option<&StoredMessage>) -> Self {
        Self { sent: true, message: message.map(UndeliveredRef::from), ..self }
    }

    /// Returns the record with the job's position in its FIFO group.
    pub(crate) fn at(self, position: Option<EntryRef>) -> Self {
        Self { position, ..self }
    }

    pub(super) fn held_until(self, pending_until: u64) -> Self {
        Self { pending_until, ..self }
    }

    /// Returns a record without a message: the key is free.
    pub(super) fn into_void(self) -> Self {
        Self { sent: true, until: 0, message: None, ..self }
    }

    /// Returns whether the hold of the owner is over, by whichever clock: another one has written its time.
    pub(super) fn is_surely_over(&self, now: SystemTime) -> bool {
        self.pending_until <= now.checked_sub(SKEW).map_or(0, unix_millis)
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

    /// Decides a sender's claim of the key at `now` with the record `mine`. `is_abandoned` says of a pending record whether its owner has died.
    /// The job of another owner is that with the id that is returned.
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
            // Its sender died and may have sent, so the job stays for its window.
            (false, true) => {
                let (id, source) = (found.id, found.source);
                Edit::Write(Self { id, source, taken_over: true, ..mine.clone() }, Ownership::Mine)
            }
            (_, false) => Edit::Write(mine.clone(), Ownership::Mine),
        }
    }

    /// Decides a canceller's hold on the key from `now` on, if its job is the one that was `sent` or none is given. `is_abandoned` says of a
    /// pending record whether its owner has died.
    pub(super) fn hold(
        found: Option<Self>,
        sent: Option<&Sent>,
        nonce: &str,
        now: SystemTime,
        is_abandoned: impl Fn(&Self) -> bool,
    ) -> Edit<Self, Ownership<ClaimState>> {
        let Some(found) = found.filter(|found| sent.is_none_or(|sent| found.is_of(sent))) else {
            return Edit::Keep(Ownership::Other(ClaimState::Nothing));
        };
        match (found.sent, unix_millis(now) < found.until) {
            (false, _) if found.nonce == nonce => Edit::Keep(Ownership::Mine),
            (false, _) if !is_abandoned(&found) => Edit::Keep(Ownership::Other(ClaimState::Busy(None))),
            (sent, true) => match found.message {
                // A canceller that died or got no answer has left a record that is not sent.
                Some(message) => {
                    let message = Some(message.deleted_perhaps(!sent));
                    let (nonce, pending_until) = (nonce.to_owned(), unix_millis(now + PENDING));
                    let held = Self { sent: false, nonce, pending_until, message, ..found };
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
            // Its own write, whose answer was lost.
            Some(found) if found.sent && found.nonce == own.nonce => Edit::Keep(true),
            Some(found) if found.nonce == own.nonce => Edit::Write(outcome(found), true),
            _ => Edit::Keep(false),
        }
    }
}

/// A key that this process holds.
#[derive(Debug)]
pub(in crate::send) struct Hold {
    pub(super) record: Version<Record>,
    /// The time after which another process may take the key over: this one must not put its message later.
    pub(super) until: Instant,
}

impl Hold {
    /// Returns the hold on a key whose record, which a request from `begun` on has written, is `record`.
    pub(super) fn new(record: Version<Record>, begun: Instant) -> Self {
        Self { record, until: begun + PENDING }
    }

    pub(super) fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }
}

/// Returns a random name for one sender or canceller.
pub(super) fn nonce(runtime: &Runtime) -> String {
    format!("{:016x}", runtime.random_u64())
}

/// The result of holding a key to cancel its job.
#[derive(Debug)]
pub(super) enum ClaimState {
    /// The job was sent, and the key is held: others wait as they do for a sender.
    Held(Box<Hold>, StoredMessage),
    Nothing,
    /// Another process is sending or cancelling, with this record if it was read.
    Busy(Option<Box<Record>>),
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
        let (id, source, nonce) = (format!("of {nonce}"), format!("/{nonce}"), nonce.to_owned());
        let (pending_until, until, sent, taken_over) = (PENDING, WINDOW, false, false);
        Record { id, source, nonce, sent, pending_until, until, message: None, position: None, taken_over }
    }

    fn sent() -> Record {
        let message = MessageRef { id: MessageId::new("1"), receipt: PopReceipt::new("secret") };
        let (may_be_duplicated, may_be_deleted) = (false, false);
        let stored =
            StoredMessage { message, hidden_until: None, may_be_duplicated, may_be_deleted, payload: None };
        pending("first").into_sent(Some(&stored))
    }

    fn claimed(found: Option<Record>, now: u64) -> String {
        match Record::claim(found, &pending("second"), now, |found| found.pending_until <= now) {
            Edit::Write(record, Ownership::Mine) if record.taken_over => format!("takes over, {}", record.id),
            Edit::Write(record, Ownership::Mine) => format!("pending, {}", record.id),
            Edit::Keep(Ownership::Mine) => "owns it".to_owned(),
            Edit::Keep(Ownership::Other(Some(joined))) => format!("joins, {joined}"),
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
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(now);
        match Record::hold(found, None, "canceller", at, |found| found.pending_until <= now) {
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
            Edit::Keep(Ownership::Other(ClaimState::Busy(None))) => "waits",
            _ => "another",
        }
    }

    #[test]
    fn job_that_is_taken_over_keeps_its_source() {
        let claim = Record::claim(Some(pending("first")), &pending("second"), PENDING, |_| true);
        let Edit::Write(taken_over, Ownership::Mine) = claim else { panic!("{claim:?}") };
        assert_eq!((&*taken_over.id, &*taken_over.source), ("of first", "/first"));
    }

    #[test]
    fn canceller_holds_what_the_table_allows() {
        assert_eq!(held(None, 0), "nothing");
        assert_eq!(held(Some(pending("first")), SENT), "waits");
        assert_eq!(held(Some(pending("canceller")), SENT), "owns it");
        assert_eq!(held(Some(pending("first")), PENDING), "nothing", "its message is not known");
        assert_eq!(held(Some(sent()), SENT), "holds it");
        assert_eq!(held(Some(sent().into_sent(None)), SENT), "nothing", "its message was received");
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
        for others in [None, Some(pending("second")), Some(Record { nonce: "second".to_owned(), ..sent() })] {
            assert!(matches!(finish(others), Edit::Keep(false)));
        }
        let finished = Some(own.clone().into_sent(None));
        assert!(matches!(finish(finished), Edit::Keep(true)), "its own write, whose answer was lost");
    }
}
