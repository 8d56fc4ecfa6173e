use super::*;
use crate::group_log::log::tests::{START, behind, entry, later, sent, turn};
use crate::group_log::log::{Announced, Confirmed, Position, SEND_PERIOD};
use crate::storage::{MessageId, MessageRef, PopReceipt};
use crate::undelivered::{StoredMessage, UndeliveredRef};

/// The nonces of the processes that cancel a job, or complete its cancellation.
const CANCELLER: u64 = 7;
const OTHER_CANCELLER: u64 = 8;
const TAKER: u64 = 9;
const OTHER_TAKER: u64 = 10;

/// The nonces of sends; the messages of a send have its nonce as their copy number.
const FIRST_SEND: u64 = 1;
const SECOND_SEND: u64 = 3;
/// The copy number of a message whose send the log does not know.
const UNKNOWN_SEND: u64 = 99;

/// The second from which on a mark that was set at the start counts as abandoned.
const MARK_ABANDONED: u64 = CANCELLATION_PERIOD.as_secs();

/// The result of beginning the first cancellation of a job that was sent once.
const MARKED: CancelBegun = CancelBegun::Marked { copies: false, may_be_deleted: false };
/// The result of beginning a later one, whose predecessor may have deleted the message.
const MARKED_IN_DOUBT: CancelBegun = CancelBegun::Marked { copies: false, may_be_deleted: true };
/// The result of beginning a cancellation of a job that may have several messages.
const MARKED_COPIES: CancelBegun = CancelBegun::Marked { copies: true, may_be_deleted: false };

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
fn cancelled_job_runs_in_no_copy_until_it_is_sent_again() {
    let (job, mut log) = (entry("a", "1"), sent(&["1"]));
    assert_eq!(log.begin_cancel(&job, CANCELLER, &message(), START), MARKED);
    assert_eq!(log.end_cancel(&job, CANCELLER, true, START), CancelEnd::Cancelled);
    let ended = Position::Ended(EndState::Cancelled);
    assert_eq!(log.claim_position(&job, turn(FIRST_SEND, 1), START), ended);
    assert_eq!(log.announce(&job, SECOND_SEND, START), Announced::Entered);
    assert_eq!(log.claim_position(&job, turn(SECOND_SEND, 1), START), Position::First);
}

#[test]
fn job_with_a_received_copy_is_not_cancelled() {
    let (job, mut log) = (entry("a", "1"), sent(&["1"]));
    log.confirm(&job, FIRST_SEND, false, START);
    assert_eq!(log.begin_cancel(&job, CANCELLER, &message(), START), MARKED_COPIES);
    // A copy is received between the mark and the deletion of the other.
    assert_eq!(log.claim_position(&job, turn(FIRST_SEND, 1), START), Position::First);
    assert_eq!(log.end_cancel(&job, CANCELLER, true, START), CancelEnd::TooLate);
    assert_eq!(log.begin_cancel(&job, OTHER_CANCELLER, &message(), START), CancelBegun::TooLate);
}

#[test]
fn cancellation_that_another_process_completes_is_reported_as_cancelled() {
    let (job, mut log) = (entry("a", "1"), sent(&["1", "2"]));
    assert_eq!(log.begin_cancel(&job, CANCELLER, &message(), START), MARKED);
    let abandoned = log.abandoned(&entry("a", "2"), later(46)).unwrap();
    assert!(log.take_over_cancel(&abandoned, TAKER, later(46)));
    assert_eq!(log.end_cancel(&job, TAKER, true, later(46)), CancelEnd::Cancelled);
    // The canceller's own deletion finds no message.
    assert_eq!(log.end_cancel(&job, CANCELLER, false, later(47)), CancelEnd::Cancelled);
    assert!(log.end(&job, turn(FIRST_SEND, 1), EndState::Done, later(48)), "a copy is discarded");
    let again = log.announce(&job, SECOND_SEND, later(49));
    assert_eq!(again, Announced::Entered, "and the job may be sent again");
}

#[test]
fn repeated_cancellation_is_in_doubt() {
    let (job, mut log) = (entry("a", "1"), sent(&["1", "2"]));
    let own_mark = "its own mark, whose write got no answer";
    assert_eq!(log.begin_cancel(&job, CANCELLER, &message(), START), MARKED);
    assert_eq!(log.begin_cancel(&job, CANCELLER, &message(), START), MARKED, "{own_mark}");
    assert_eq!(log.begin_cancel(&job, OTHER_CANCELLER, &message(), START), MARKED_IN_DOUBT);
    assert_eq!(log.begin_cancel(&job, OTHER_CANCELLER, &message(), START), MARKED_IN_DOUBT, "{own_mark}");
    assert_eq!(log.end_cancel(&job, OTHER_CANCELLER, true, START), CancelEnd::Cancelled);
    assert_eq!(log.begin_cancel(&job, CANCELLER, &message(), START), CancelBegun::Cancelled);
}

/// The record of a unique key may say that the message may be deleted, although the log has no mark.
#[test]
fn message_that_may_be_deleted_leaves_a_cancellation_in_doubt_unless_the_job_has_ended() {
    let (cancelled, stored, forgotten) = (entry("a", "1"), entry("a", "2"), entry("a", "3"));
    let mut log = sent(&["1", "2"]);
    log.begin_cancel(&cancelled, CANCELLER, &message(), START);
    log.end_cancel(&cancelled, CANCELLER, true, START);
    let deleted = message().deleted_perhaps(true);
    assert_eq!(log.begin_cancel(&cancelled, CANCELLER, &deleted, START), CancelBegun::Cancelled);
    assert_eq!(log.begin_cancel(&stored, CANCELLER, &deleted, START), MARKED_IN_DOUBT);
    assert_eq!(log.begin_cancel(&forgotten, CANCELLER, &deleted, START), MARKED_IN_DOUBT);
    assert!(log.end(&stored, turn(2, 1), EndState::Done, START));
    assert_eq!(log.begin_cancel(&stored, CANCELLER, &deleted, START), CancelBegun::TooLate);
}

#[test]
fn job_sent_twice_that_no_worker_has_received_is_not_called_received() {
    let (job, mut log) = (entry("a", "1"), sent(&["1"]));
    log.announce(&job, SECOND_SEND, START);
    log.confirm(&job, SECOND_SEND, true, START);
    assert_eq!(log.begin_cancel(&job, CANCELLER, &message(), START), CancelBegun::Unknown);
    let other_copy = Position::OtherCopy { overdue: false };
    assert_eq!(log.claim_position(&job, turn(SECOND_SEND, 1), START), other_copy);
    assert_eq!(log.claim_position(&job, turn(FIRST_SEND, 1), START), Position::First);
    assert_eq!(log.begin_cancel(&job, CANCELLER, &message(), START), CancelBegun::TooLate);
}

#[test]
fn abandoned_cancellation_is_completed_by_the_next_job_of_the_group() {
    let (first, next) = (entry("a", "1"), entry("a", "2"));
    let mut marked = sent(&["1", "2"]);
    marked.begin_cancel(&first, CANCELLER, &message(), START);
    assert_eq!(marked.claim_position(&next, turn(2, 1), later(MARK_ABANDONED - 1)), behind(1));
    assert!(marked.abandoned(&next, later(MARK_ABANDONED - 1)).is_none());
    let text = serde_json::to_string(&marked).unwrap();
    let marked: GroupLog = serde_json::from_str(&text).unwrap();
    assert_eq!(marked.position(&next, turn(2, 1), later(MARK_ABANDONED)), None);
    let abandoned = marked.abandoned(&next, later(MARK_ABANDONED)).unwrap();
    assert_eq!(abandoned.message, message());
    assert!(!format!("{marked:?} {abandoned:?}").contains("secret"), "receipts are secret");

    let completed = |deleted: bool| {
        let (mut log, now) = (marked.clone(), later(MARK_ABANDONED));
        assert!(log.take_over_cancel(&abandoned, TAKER, now));
        let before_its_end = later(2 * MARK_ABANDONED - 1);
        assert!(log.abandoned(&next, before_its_end).is_none(), "the others wait");
        assert!(!log.take_over_cancel(&abandoned, OTHER_TAKER, now), "a single process deletes the message");
        assert!(log.take_over_cancel(&abandoned, TAKER, now), "its own mark, whose write got no answer");
        log.end_cancel(&first, TAKER, deleted, now);
        log
    };
    let mut log = completed(true);
    assert_eq!(log.claim_position(&next, turn(2, 1), later(46)), Position::First);
    let copy = log.claim_position(&first, turn(UNKNOWN_SEND, 1), later(46));
    assert_eq!(copy, Position::Ended(EndState::Cancelled), "no copy of the job runs");
    let mut log = completed(false);
    assert_eq!(log.claim_position(&next, turn(2, 1), later(46)), behind(1));
    assert_eq!(log.claim_position(&first, turn(FIRST_SEND, 1), later(46)), Position::First);
}

/// A canceller that was overtaken does not deny the deletion that another process may have made.
#[test]
fn cancellation_without_its_mark_is_too_late_only_after_a_delivery() {
    let (job, mut marked) = (entry("a", "1"), sent(&["1", "2"]));
    marked.begin_cancel(&job, CANCELLER, &message(), START);
    let abandoned = marked.abandoned(&entry("a", "2"), later(46)).unwrap();
    let mut log = marked.clone();
    assert!(log.take_over_cancel(&abandoned, TAKER, later(46)));
    let end = log.end_cancel(&job, CANCELLER, false, later(47));
    assert_eq!(end, CancelEnd::Unknown, "the taker deletes the message");
    assert_eq!(log.end_cancel(&job, TAKER, false, later(48)), CancelEnd::TooLate);
    let end = log.end_cancel(&job, CANCELLER, false, later(49));
    assert_eq!(end, CancelEnd::Unknown, "the taker may have deleted it");

    let mut log = marked.clone();
    assert_eq!(log.claim_position(&job, turn(FIRST_SEND, 1), START), Position::First);
    assert_eq!(log.end_cancel(&job, CANCELLER, false, START), CancelEnd::TooLate);

    // The job is sent again, and the send is refused: the mark is as before.
    let mut log = marked;
    log.announce(&job, SECOND_SEND, START);
    log.retract(&job, SECOND_SEND);
    assert_eq!(log.end_cancel(&job, CANCELLER, true, START), CancelEnd::Cancelled);
    let ended = Position::Ended(EndState::Cancelled);
    assert_eq!(log.claim_position(&job, turn(FIRST_SEND, 1), START), ended);
}

/// Returns a log in which the job `1`, whose message is due tomorrow, is being cancelled.
fn marked_and_due_tomorrow() -> GroupLog {
    let (job, mut log) = (entry("a", "1"), sent(&["1", "2"]));
    log.confirm(&job, FIRST_SEND, true, later(86_400));
    assert_eq!(log.begin_cancel(&job, CANCELLER, &message(), START), MARKED);
    log
}

/// Returns a log in which the job `1` was sent again while its first message was being cancelled.
fn sent_again() -> GroupLog {
    let mut log = marked_and_due_tomorrow();
    assert_eq!(log.announce(&entry("a", "1"), SECOND_SEND, START), Announced::Entered);
    let text = serde_json::to_string(&log).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Ends the cancellation of the first message by its canceller.
fn end_by_canceller(log: &mut GroupLog) {
    let job = entry("a", "1");
    let begun = log.begin_cancel(&job, CANCELLER, &message(), START);
    assert_eq!(begun, MARKED_COPIES, "its own mark");
    let begun = log.begin_cancel(&job, OTHER_CANCELLER, &message(), START);
    assert_eq!(begun, CancelBegun::Unknown, "of another send");
    assert_eq!(log.end_cancel(&job, CANCELLER, true, later(40)), CancelEnd::Cancelled);
}

/// Ends the cancellation of the first message by a delivery of the job `delivered`, after the canceller died.
fn end_by_delivery(log: &mut GroupLog, delivered: &str) {
    let (job, delivered) = (entry("a", "1"), entry("a", delivered));
    assert!(log.abandoned(&delivered, later(MARK_ABANDONED - 1)).is_none());
    let abandoned = log.abandoned(&delivered, later(MARK_ABANDONED)).unwrap();
    assert!(log.take_over_cancel(&abandoned, TAKER, later(MARK_ABANDONED)));
    assert_eq!(log.end_cancel(&job, TAKER, true, later(50)), CancelEnd::Cancelled);
    assert_eq!(log.end_cancel(&job, CANCELLER, true, later(51)), CancelEnd::Unknown);
}

/// Checks that the job waits for its second message, and its key for nothing else, after `end` has ended the
/// cancellation of the first message.
fn assert_only_the_second_message_counts(end: impl Fn(&mut GroupLog)) {
    const BEFORE_THE_SEND_EXPIRES: u64 = 60;
    const AFTER_THE_SEND_EXPIRED: u64 = SEND_PERIOD.as_secs() + 1;
    let (job, next) = (entry("a", "1"), entry("a", "2"));
    let mut log = sent_again();
    let second = log.claim_position(&job, turn(SECOND_SEND, 1), START);
    assert_eq!(second, Position::OtherCopy { overdue: false });
    end(&mut log);

    // The second sender dies: nothing is left of the job that the key would wait for.
    let next_at = |log: &GroupLog, seconds| log.clone().claim_position(&next, turn(2, 1), later(seconds));
    assert_eq!(next_at(&log, BEFORE_THE_SEND_EXPIRES), behind(1));
    assert_eq!(next_at(&log, AFTER_THE_SEND_EXPIRED), Position::First);
    // The second message is refused.
    let mut refused = log.clone();
    refused.retract(&job, SECOND_SEND);
    assert_eq!(next_at(&refused, BEFORE_THE_SEND_EXPIRES), Position::First);
    // The second message is stored, and runs.
    assert_eq!(log.confirm(&job, SECOND_SEND, true, later(3_600)), Confirmed::Acknowledged);
    let second = log.claim_position(&job, turn(SECOND_SEND, 1), later(BEFORE_THE_SEND_EXPIRES));
    assert_eq!(second, Position::First);
}

/// Checks that the key waits for the second message until it is due, if it was confirmed before `end` ends
/// the cancellation of the first.
fn assert_delay_of_the_second_message_counts(end: impl Fn(&mut GroupLog)) {
    const DELAY: u64 = 3_600;
    const DUE: u64 = DELAY + GRACE.as_secs();
    let (job, next) = (entry("a", "1"), entry("a", "2"));
    let mut log = sent_again();
    log.take_changed();
    assert_eq!(log.confirm(&job, SECOND_SEND, true, later(DELAY)), Confirmed::Acknowledged);
    assert!(log.take_changed());
    end(&mut log);
    assert_eq!(log.clone().claim_position(&next, turn(2, 1), later(DUE)), behind(1));
    let overdue = Position::Behind { ahead: 1, overdue: true };
    assert_eq!(log.claim_position(&next, turn(2, 1), later(DUE + 1)), overdue);
}

#[test]
fn job_that_is_sent_again_does_not_wait_for_its_cancelled_message() {
    assert_only_the_second_message_counts(end_by_canceller);
    assert_delay_of_the_second_message_counts(end_by_canceller);
}

#[test]
fn job_that_is_sent_again_does_not_wait_for_a_message_that_its_own_delivery_deleted() {
    assert_only_the_second_message_counts(|log| end_by_delivery(log, "1"));
    assert_delay_of_the_second_message_counts(|log| end_by_delivery(log, "1"));
}

#[test]
fn job_that_is_sent_again_does_not_wait_for_a_message_that_the_next_job_deleted() {
    assert_only_the_second_message_counts(|log| end_by_delivery(log, "2"));
    assert_delay_of_the_second_message_counts(|log| end_by_delivery(log, "2"));
}

#[test]
fn message_that_the_log_does_not_know_leaves_the_mark_of_a_cancellation() {
    let (job, mut log) = (entry("a", "1"), marked_and_due_tomorrow());
    let unknown = log.claim_position(&job, turn(UNKNOWN_SEND, 1), later(1));
    assert_eq!(unknown, Position::OtherCopy { overdue: false });
    assert_eq!(log.announce(&job, SECOND_SEND, later(2)), Announced::Entered);
    assert_eq!(log.confirm(&job, SECOND_SEND, true, later(3)), Confirmed::Acknowledged);
    assert_eq!(log.end_cancel(&job, CANCELLER, true, later(4)), CancelEnd::Cancelled);
    assert_eq!(log.claim_position(&job, turn(SECOND_SEND, 1), later(60)), Position::First);
}

#[test]
fn job_that_is_sent_again_waits_for_a_message_that_is_not_deleted() {
    let job = entry("a", "1");
    // Its deletion was refused, or found a message that a worker has received.
    let mut log = sent_again();
    assert_eq!(log.end_cancel(&job, CANCELLER, false, START), CancelEnd::TooLate);
    assert!(log.abandoned(&job, later(2 * MARK_ABANDONED)).is_none());
    let second = log.claim_position(&job, turn(SECOND_SEND, 1), START);
    assert_eq!(second, Position::OtherCopy { overdue: false });
    // The first message is received: nothing of the cancellation is left.
    let mut log = sent_again();
    assert_eq!(log.claim_position(&job, turn(FIRST_SEND, 1), START), Position::First);
    assert!(log.abandoned(&job, later(2 * MARK_ABANDONED)).is_none());
    assert_eq!(log.end_cancel(&job, CANCELLER, false, START), CancelEnd::TooLate);
    assert!(log.end(&job, turn(FIRST_SEND, 1), EndState::Done, START));
}
