use std::fmt::Debug;

use super::*;
use crate::storage::{MessageId, MessageRef, PopReceipt};

/// A time within a hold that began at 0.
const SOON: u64 = 1_000;
/// The end of a hold that began at 0.
const HOLD_END: u64 = 45_000;
/// The end of a window that began at 0.
const WINDOW_END: u64 = 3_600_000;
const SKEW_MILLIS: u64 = 300_000;

/// Returns the record of the sender `nonce`, which has claimed the key at 0.
fn pending(nonce: &str) -> UniqueRecord {
    UniqueRecord {
        id: format!("of {nonce}"),
        source: format!("/{nonce}"),
        nonce: nonce.to_owned(),
        sent: false,
        pending_until: HOLD_END,
        until: WINDOW_END,
        message: None,
        position: None,
        taken_over: false,
        sent_before: false,
    }
}

/// Returns the record of the sender `first`, which has stored its message.
fn sent() -> UniqueRecord {
    let stored = StoredMessage {
        message: MessageRef { id: MessageId::new("1"), receipt: PopReceipt::new("secret") },
        hidden_until: None,
        may_be_duplicated: false,
        may_be_deleted: false,
        payload: None,
    };
    pending("first").into_sent(Some(&stored))
}

/// Returns the record that the caller writes to own the key.
fn written<T: Debug>(decision: Edit<UniqueRecord, Ownership<T>>) -> UniqueRecord {
    match decision {
        Edit::Write(record, Ownership::Mine) => record,
        other => panic!("{other:?}"),
    }
}

/// Returns the result of a decision that leaves the record as it is.
fn kept<R: Debug>(decision: Edit<UniqueRecord, R>) -> R {
    match decision {
        Edit::Keep(result) => result,
        other => panic!("{other:?}"),
    }
}

/// Decides the claim of the sender `second`.
fn claim(found: Option<UniqueRecord>, now: u64) -> Edit<UniqueRecord, Ownership<Option<String>>> {
    UniqueRecord::claim(found, &pending("second"), now, |found| found.pending_until <= now)
}

#[test]
fn sender_claims_a_free_key() {
    assert_eq!(written(claim(None, 0)), pending("second"));
    assert_eq!(written(claim(Some(pending("first")), WINDOW_END)), pending("second"));
    assert_eq!(written(claim(Some(sent()), WINDOW_END)), pending("second"));
    assert_eq!(written(claim(Some(sent().into_free()), SOON)), pending("second"));
}

#[test]
fn sender_waits_for_another_sender_and_owns_its_own_record() {
    assert_eq!(kept(claim(Some(pending("first")), SOON)), Ownership::Other(None));
    assert_eq!(kept(claim(Some(pending("second")), SOON)), Ownership::Mine);
}

#[test]
fn sender_joins_a_sent_job_within_its_window() {
    let joined = || Ownership::Other(Some("of first".to_owned()));
    assert_eq!(kept(claim(Some(sent()), SOON)), joined());
    assert_eq!(kept(claim(Some(sent()), HOLD_END)), joined());
}

#[test]
fn job_that_is_taken_over_keeps_its_id_source_and_window() {
    let first = UniqueRecord { until: HOLD_END + SOON, ..pending("first") };
    let taken_over = written(claim(Some(first.clone()), HOLD_END));
    assert!(taken_over.taken_over);
    assert_eq!(taken_over.id, first.id);
    assert_eq!(taken_over.source, first.source);
    assert_eq!(taken_over.with_pending_until(WINDOW_END).until, first.until);
}

/// Decides the claim of the canceller `canceller`.
fn claim_to_cancel(found: Option<UniqueRecord>, now: u64) -> Edit<UniqueRecord, Ownership<CancellerClaim>> {
    let at = SystemTime::UNIX_EPOCH + Duration::from_millis(now);
    UniqueRecord::claim_to_cancel(found, None, "canceller", at, |found| found.pending_until <= now)
}

#[test]
fn canceller_finds_nothing_to_cancel_without_a_known_message() {
    let cases = [
        ("there is no record", None, SOON),
        ("the sender died", Some(pending("first")), HOLD_END),
        ("a worker has received the message", Some(sent().into_sent(None)), SOON),
        ("the window has passed", Some(sent()), WINDOW_END + SKEW_MILLIS),
        ("the key is free", Some(sent().into_free()), SOON),
    ];
    for (case, found, now) in cases {
        let claim = kept(claim_to_cancel(found, now));
        assert!(matches!(claim, Ownership::Other(CancellerClaim::Nothing)), "{case}: {claim:?}");
    }
}

#[test]
fn canceller_waits_for_a_sender_and_owns_its_own_record() {
    let claim = kept(claim_to_cancel(Some(pending("first")), SOON));
    assert!(matches!(claim, Ownership::Other(CancellerClaim::Busy(None))), "{claim:?}");
    let claim = kept(claim_to_cancel(Some(pending("canceller")), SOON));
    assert!(matches!(claim, Ownership::Mine), "{claim:?}");
}

#[test]
fn canceller_holds_the_key_of_a_known_message() {
    let held = written(claim_to_cancel(Some(sent()), SOON));
    assert!(!held.sent);
    assert_eq!(held.nonce, "canceller");
    assert_eq!(held.pending_until, SOON + HOLD_END);
    assert!(!held.message.unwrap().may_be_deleted);
}

#[test]
fn canceller_that_died_may_have_deleted_the_message() {
    let abandoned = UniqueRecord { sent: false, pending_until: SOON, ..sent() };
    let held = written(claim_to_cancel(Some(abandoned), SOON));
    assert_eq!(held.nonce, "canceller");
    assert!(held.message.unwrap().may_be_deleted);
}

#[test]
fn only_the_owner_finishes_and_once() {
    let own = pending("first");
    let finish = |found| UniqueRecord::finish(found, &own, UniqueRecord::into_free);
    assert!(matches!(finish(Some(own.clone())), Edit::Write(free, true) if free.sent && free.until == 0));
    let sent_by_another = UniqueRecord { nonce: "second".to_owned(), ..sent() };
    for others in [None, Some(pending("second")), Some(sent_by_another)] {
        assert!(!kept(finish(others)));
    }
    let finished = own.clone().into_sent(None);
    assert!(kept(finish(Some(finished))), "its own write, whose answer was lost");
}
