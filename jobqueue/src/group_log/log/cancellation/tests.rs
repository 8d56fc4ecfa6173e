use super::*;
use crate::group_log::log::tests::{START, behind, entry, later, sent, turn};
use crate::group_log::log::{Announced, Confirmed, Position};
use crate::storage::{MessageId, MessageRef, PopReceipt};
use crate::undelivered::{StoredMessage, UndeliveredRef};

/// The beginning of the first cancellation of a job that is sent once.
const MARKED: CancelBegun = CancelBegun::Marked { copies: false, may_be_deleted: false };

fn message() -> UndeliveredRef {
    let message = MessageRef { id: MessageId::new("1"), receipt: PopReceipt::new("secret") };
    UndeliveredRef::from(&StoredMessage {
        message,
        hidden_until: None,
        may_be_duplicated: false,
        may_be_deleted: false,
        payload: None,
    })
}

#[test]
fn a_cancelled_job_runs_in_no_copy_and_one_that_was_received_is_not_cancelled() {
    let job = entry("a", "1");
    let mut log = sent(&["1"]);
    assert_eq!(log.begin_cancel(&job, 7, &message(), START), MARKED);
    assert_eq!(log.end_cancel(&job, 7, true, START), CancelEnd::Cancelled);
    assert_eq!(log.claim_position(&job, turn(1, 1), START), Position::Ended(EndState::Cancelled));
    // Sent again, it runs.
    assert_eq!(log.announce(&job, 2, START), Announced::Entered);
    log.confirm(&job, 2, false, START);
    // Two messages: one is received between the mark and the deletion of the other.
    assert_eq!(
        log.begin_cancel(&job, 8, &message(), START),
        CancelBegun::Marked { copies: true, may_be_deleted: false }
    );
    assert_eq!(log.claim_position(&job, turn(2, 1), START), Position::First);
    assert_eq!(log.end_cancel(&job, 8, true, START), CancelEnd::TooLate);
    assert_eq!(log.begin_cancel(&job, 9, &message(), START), CancelBegun::TooLate);
}

#[test]
fn a_cancellation_that_another_process_completes_is_one() {
    let (job, mut log) = (entry("a", "1"), sent(&["1", "2"]));
    assert_eq!(log.begin_cancel(&job, 7, &message(), START), MARKED);
    let abandoned = log.abandoned(&entry("a", "2"), later(46)).unwrap();
    assert!(log.take_over_cancel(&abandoned, 8, later(46)));
    assert_eq!(log.end_cancel(&job, 8, true, later(46)), CancelEnd::Cancelled);
    assert_eq!(
        log.end_cancel(&job, 7, false, later(47)),
        CancelEnd::Cancelled,
        "its own deletion finds no message"
    );
    assert!(log.end(&job, turn(1, 1), EndState::Done, later(48)), "a copy is discarded");
    assert_eq!(log.announce(&job, 3, later(49)), Announced::Entered, "and the job may be sent again");
}

#[test]
fn a_cancellation_that_is_repeated_is_in_doubt() {
    let (job, mut log) = (entry("a", "1"), sent(&["1", "2"]));
    let again = CancelBegun::Marked { copies: false, may_be_deleted: true };
    assert_eq!(log.begin_cancel(&job, 7, &message(), START), MARKED);
    assert_eq!(
        log.begin_cancel(&job, 7, &message(), START),
        MARKED,
        "its own mark, whose write got no answer"
    );
    assert_eq!(log.begin_cancel(&job, 8, &message(), START), again);
    assert_eq!(
        log.begin_cancel(&job, 8, &message(), START),
        again,
        "its own mark, whose write got no answer"
    );
    assert_eq!(log.end_cancel(&job, 8, true, START), CancelEnd::Cancelled);
    // The record of a unique key may say so of a job without a mark.
    let deleted = message().deleted_perhaps(true);
    assert_eq!(log.begin_cancel(&job, 9, &message(), START), CancelBegun::Cancelled);
    assert_eq!(log.begin_cancel(&job, 9, &deleted, START), CancelBegun::Cancelled);
    assert_eq!(log.begin_cancel(&entry("a", "2"), 9, &deleted, START), again);
    let forgotten = CancelBegun::Marked { copies: false, may_be_deleted: true };
    assert_eq!(log.begin_cancel(&entry("a", "3"), 9, &deleted, START), forgotten);
    assert!(log.end(&entry("a", "2"), turn(2, 1), EndState::Done, START));
    assert_eq!(log.begin_cancel(&entry("a", "2"), 9, &deleted, START), CancelBegun::TooLate);
}

#[test]
fn a_job_sent_twice_that_no_worker_has_received_is_not_called_received() {
    let (job, mut log) = (entry("a", "1"), sent(&["1"]));
    log.announce(&job, 2, START);
    log.confirm(&job, 2, true, START);
    assert_eq!(log.begin_cancel(&job, 7, &message(), START), CancelBegun::Unknown);
    assert_eq!(log.claim_position(&job, turn(2, 1), START), Position::OtherCopy { overdue: false });
    assert_eq!(log.claim_position(&job, turn(1, 1), START), Position::First);
    assert_eq!(log.begin_cancel(&job, 7, &message(), START), CancelBegun::TooLate);
}

#[test]
fn a_cancellation_that_was_begun_is_finished_by_the_next_of_the_group() {
    let (first, next) = (entry("a", "1"), entry("a", "2"));
    let mut marked = sent(&["1", "2"]);
    marked.begin_cancel(&first, 7, &message(), START);
    assert_eq!(marked.claim_position(&next, turn(2, 1), later(44)), behind(1));
    assert!(marked.abandoned(&next, later(44)).is_none());
    let text = serde_json::to_string(&marked).unwrap();
    let marked: GroupLog = serde_json::from_str(&text).unwrap();
    assert_eq!(marked.position(&next, turn(2, 1), later(45)), None);
    let abandoned = marked.abandoned(&next, later(45)).unwrap();
    assert_eq!(abandoned.message, message());
    assert!(!format!("{marked:?} {abandoned:?}").contains("secret"), "receipts are secret");
    let with = |deleted: bool| {
        let mut log = marked.clone();
        assert!(log.take_over_cancel(&abandoned, 8, later(45)));
        assert!(log.abandoned(&next, later(89)).is_none(), "the others wait");
        assert!(!log.take_over_cancel(&abandoned, 9, later(45)), "one of them deletes the message");
        assert!(log.take_over_cancel(&abandoned, 8, later(45)), "its own mark, whose write got no answer");
        log.end_cancel(&first, 8, deleted, later(45));
        log
    };
    let mut log = with(true);
    assert_eq!(log.claim_position(&next, turn(2, 1), later(46)), Position::First);
    assert_eq!(
        log.claim_position(&first, turn(9, 1), later(46)),
        Position::Ended(EndState::Cancelled),
        "no copy of it runs"
    );
    let mut log = with(false);
    assert_eq!(log.claim_position(&next, turn(2, 1), later(46)), behind(1));
    assert_eq!(log.claim_position(&first, turn(1, 1), later(46)), Position::First);
}

/// A canceller that was overtaken does not deny what another process may have done.
#[test]
fn cancellation_without_its_mark_is_too_late_only_after_a_delivery() {
    let (job, mut marked) = (entry("a", "1"), sent(&["1", "2"]));
    marked.begin_cancel(&job, 7, &message(), START);
    let abandoned = marked.abandoned(&entry("a", "2"), later(46)).unwrap();
    let mut log = marked.clone();
    assert!(log.take_over_cancel(&abandoned, 8, later(46)));
    assert_eq!(log.end_cancel(&job, 7, false, later(47)), CancelEnd::Unknown, "another one deletes");
    assert_eq!(log.end_cancel(&job, 8, false, later(48)), CancelEnd::TooLate);
    assert_eq!(log.end_cancel(&job, 7, false, later(49)), CancelEnd::Unknown, "it may have deleted");

    let mut log = marked.clone();
    assert_eq!(log.claim_position(&job, turn(1, 1), START), Position::First);
    assert_eq!(log.end_cancel(&job, 7, false, START), CancelEnd::TooLate);

    // Sent again, and refused: the mark is as before.
    let mut log = marked;
    log.announce(&job, 3, START);
    log.retract(&job, 3);
    assert_eq!(log.end_cancel(&job, 7, true, START), CancelEnd::Cancelled);
    assert_eq!(log.claim_position(&job, turn(1, 1), START), Position::Ended(EndState::Cancelled));
}

/// The first message is due tomorrow; the job is sent again after the mark of a cancellation.
fn sent_again() -> GroupLog {
    let (job, mut log) = (entry("a", "1"), sent(&["1", "2"]));
    log.confirm(&job, 1, true, later(86_400));
    assert_eq!(log.begin_cancel(&job, 7, &message(), START), MARKED);
    assert_eq!(log.announce(&job, 3, START), Announced::Entered);
    let text = serde_json::to_string(&log).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn job_that_is_sent_again_does_not_wait_for_its_cancelled_message() {
    let (job, next) = (entry("a", "1"), entry("a", "2"));
    let other_copy = Position::OtherCopy { overdue: false };
    let by_its_canceller = |log: &mut GroupLog| {
        let repeated = CancelBegun::Marked { copies: true, may_be_deleted: false };
        assert_eq!(log.begin_cancel(&job, 7, &message(), START), repeated, "its own mark");
        assert_eq!(log.begin_cancel(&job, 8, &message(), START), CancelBegun::Unknown, "of another send");
        assert_eq!(log.end_cancel(&job, 7, true, later(40)), CancelEnd::Cancelled);
    };
    let by_a_delivery = |log: &mut GroupLog, of: &EntryRef| {
        assert!(log.abandoned(of, later(44)).is_none());
        let abandoned = log.abandoned(of, later(45)).unwrap();
        assert!(log.take_over_cancel(&abandoned, 9, later(45)));
        assert_eq!(log.end_cancel(&job, 9, true, later(50)), CancelEnd::Cancelled);
        assert_eq!(log.end_cancel(&job, 7, true, later(51)), CancelEnd::Unknown);
    };
    let endings: [&dyn Fn(&mut GroupLog); 3] =
        [&by_its_canceller, &|log: &mut GroupLog| by_a_delivery(log, &job), &|log: &mut GroupLog| {
            by_a_delivery(log, &next)
        }];
    for end in endings {
        let mut log = sent_again();
        assert_eq!(log.claim_position(&job, turn(3, 1), START), other_copy);
        end(&mut log);
        // Its sender has died, or its message was refused: nothing is left of the job that the key would wait for.
        assert_eq!(log.clone().claim_position(&next, turn(2, 1), later(60)), behind(1));
        assert_eq!(log.clone().claim_position(&next, turn(2, 1), later(91)), Position::First);
        let mut refused = log.clone();
        refused.retract(&job, 3);
        assert_eq!(refused.claim_position(&next, turn(2, 1), later(60)), Position::First);
        assert_eq!(log.confirm(&job, 3, true, later(3_600)), Confirmed::Acknowledged);
        assert_eq!(log.claim_position(&job, turn(3, 1), later(60)), Position::First);

        // A delay of the second message counts, also if it was confirmed before the end.
        let mut log = sent_again();
        log.take_changed();
        assert_eq!(log.confirm(&job, 3, true, later(3_600)), Confirmed::Acknowledged);
        assert!(log.take_changed());
        end(&mut log);
        let overdue = Position::Behind { ahead: 1, overdue: true };
        assert_eq!(log.clone().claim_position(&next, turn(2, 1), later(3_900)), behind(1));
        assert_eq!(log.claim_position(&next, turn(2, 1), later(3_901)), overdue);
    }
}

#[test]
fn message_that_the_log_does_not_know_leaves_the_mark_of_a_cancellation() {
    let (job, mut log) = (entry("a", "1"), sent(&["1", "2"]));
    log.confirm(&job, 1, true, later(86_400));
    assert_eq!(log.begin_cancel(&job, 7, &message(), START), MARKED);
    assert_eq!(log.claim_position(&job, turn(99, 1), later(1)), Position::OtherCopy { overdue: false });
    assert_eq!(log.announce(&job, 3, later(2)), Announced::Entered);
    assert_eq!(log.confirm(&job, 3, true, later(3)), Confirmed::Acknowledged);
    assert_eq!(log.end_cancel(&job, 7, true, later(4)), CancelEnd::Cancelled);
    assert_eq!(log.claim_position(&job, turn(3, 1), later(60)), Position::First);
}

#[test]
fn job_that_is_sent_again_waits_for_a_message_that_is_not_deleted() {
    let job = entry("a", "1");
    // Its deletion was refused, or found a message that a worker has received.
    let mut log = sent_again();
    assert_eq!(log.end_cancel(&job, 7, false, START), CancelEnd::TooLate);
    assert!(log.abandoned(&job, later(90)).is_none());
    assert_eq!(log.claim_position(&job, turn(3, 1), START), Position::OtherCopy { overdue: false });
    // It is received: nothing of the cancellation is left.
    let mut log = sent_again();
    assert_eq!(log.claim_position(&job, turn(1, 1), START), Position::First);
    assert!(log.abandoned(&job, later(90)).is_none());
    assert_eq!(log.end_cancel(&job, 7, false, START), CancelEnd::TooLate);
    assert!(log.end(&job, turn(1, 1), EndState::Done, START));
}
