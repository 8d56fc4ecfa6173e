use std::collections::BTreeSet;

use super::*;
use crate::envelope::Identity;
use crate::group_log::entry::Turn;

pub(super) const START: Millis = Millis(1_000_000);
/// In seconds from the start.
const AFTER_THE_SEND: u64 = SEND_PERIOD.as_secs() + 10;

pub(super) fn later(seconds: u64) -> Millis {
    Millis(START.after(Duration::from_secs(seconds)))
}

pub(super) fn entry(key: &str, job: &str) -> EntryRef {
    EntryRef::new(key, &Identity::new("/test", job))
}

pub(super) fn turn(copy: u64, delivery: u32) -> Turn {
    Turn { copy, delivery, lock: 0 }
}

/// Returns a log in which jobs of key `a` were sent one after the other.
pub(super) fn sent(jobs: &[&str]) -> GroupLog {
    let mut log = GroupLog::default();
    for (nonce, job) in (1..).zip(jobs) {
        assert_eq!(log.announce(&entry("a", job), nonce, START), Announced::Entered);
        assert_eq!(log.confirm(&entry("a", job), nonce, true, START), Confirmed::Acknowledged);
    }
    log
}

pub(super) fn behind(ahead: usize) -> Position {
    Position::Behind { ahead, overdue: false }
}

#[test]
fn next_job_of_a_group_has_its_turn_when_the_first_is_done() {
    let (first, second) = (entry("a", "1"), entry("a", "2"));
    let mut log = sent(&["1", "2"]);
    assert_eq!(log.claim_position(&second, turn(2, 1), START), behind(1));
    assert_eq!(log.claim_position(&entry("b", "3"), turn(3, 1), START), Position::First);
    assert_eq!(log.claim_position(&first, turn(1, 1), START), Position::First);
    assert!(log.end(&first, turn(1, 1), EndState::Done, START));
    assert_eq!(
        log.claim_position(&first, turn(1, 2), START),
        Position::Ended(EndState::Done),
        "done, and delivered again"
    );
    assert_eq!(log.claim_position(&second, turn(2, 2), START), Position::First);
}

#[test]
fn first_delivery_of_a_single_message_changes_nothing_and_later_ones_are_recorded() {
    let first = entry("a", "1");
    let mut log = sent(&["1"]);
    log.take_changed();
    for (delivery, changes) in [(1, false), (1, false), (2, true), (2, false)] {
        let known = log.position(&first, turn(1, delivery), START);
        assert_eq!(known, (!changes).then_some(Position::First));
        assert_eq!(log.claim_position(&first, turn(1, delivery), START), Position::First);
        assert_eq!(log.take_changed(), changes, "delivery {delivery}");
    }
    assert!(!log.end(&first, turn(1, 1), EndState::Done, START), "a former delivery ends nothing");
    assert!(!log.may_end(&first, turn(1, 1)));
    assert!(log.may_end(&first, turn(1, 2)));
    assert_eq!(log.claim_position(&first, turn(1, 1), START), Position::Superseded);
    assert!(log.end(&first, turn(1, 2), EndState::Done, START));
}

#[test]
fn later_delivery_is_recorded_while_it_waits_and_then_needs_no_write() {
    let (first, second) = (entry("a", "1"), entry("a", "2"));
    let mut log = sent(&["1", "2"]);
    assert_eq!(log.position(&second, turn(2, 1), START), Some(behind(1)));
    assert_eq!(log.position(&second, turn(2, 3), START), None, "to be recorded");
    assert_eq!(log.claim_position(&second, turn(2, 3), START), behind(1));
    assert_eq!(log.position(&second, turn(2, 3), START), Some(behind(1)));
    assert!(log.end(&first, turn(1, 1), EndState::Done, START));
    assert_eq!(log.position(&second, turn(2, 3), START), Some(Position::First));
    assert_eq!(log.claim_position(&second, turn(2, 2), START), Position::Superseded);
    assert_eq!(log.position(&second, turn(2, 4), START), None, "a newer one is recorded first");
}

#[test]
fn delivery_that_is_not_counted_reads_the_log_and_the_one_before_it_ends_nothing() {
    let first = entry("a", "1");
    let mut log = sent(&["1", "2"]);
    let [older, newer] = [10, 20].map(|lock| Turn { lock, ..turn(1, 1) });
    for delivery in [older, newer] {
        assert_eq!(log.position(&first, delivery, START), None, "the job may have ended");
        assert_eq!(log.claim_position(&first, delivery, START), Position::First);
        assert_eq!(log.position(&first, delivery, START), Some(Position::First));
    }
    assert_eq!(log.claim_position(&first, older, START), Position::Superseded);
    assert!(!log.extend(&first, older, START.after(GRACE)));
    assert!(!log.may_end(&first, older));
    assert!(!log.end(&first, older, EndState::Done, START));
    assert!(log.may_end(&first, newer));
    assert!(log.end(&first, newer, EndState::Done, START));
    assert_eq!(log.claim_position(&entry("a", "2"), Turn { lock: 30, ..turn(2, 1) }, START), Position::First);
}

#[test]
fn late_confirmation_makes_no_entry() {
    let first = entry("a", "1");
    let mut log = GroupLog::default();
    log.announce(&first, 1, START);
    assert_eq!(log.claim_position(&first, turn(1, 1), START), Position::First);
    assert!(log.end(&first, turn(1, 1), EndState::DeadLettered, START));
    assert_eq!(log.confirm(&first, 1, true, START), Confirmed::Acknowledged);
    assert_eq!(log.claim_position(&entry("a", "2"), turn(2, 1), START), Position::First);
    // A redriven job joins again at the tail.
    assert_eq!(log.claim_position(&first, turn(3, 1), START), behind(1));
    assert_eq!(GroupLog::default().confirm(&first, 1, true, START), Confirmed::Gone);
}

#[test]
fn announced_job_whose_sender_died_blocks_for_a_bounded_time_and_is_not_lost() {
    let (lost, next) = (entry("a", "lost"), entry("a", "next"));
    let mut log = GroupLog::default();
    log.announce(&lost, 1, START);
    log.announce(&next, 2, START);
    log.confirm(&next, 2, true, START);
    assert_eq!(log.claim_position(&next, turn(2, 1), later(80)), behind(1));
    assert_eq!(log.position(&next, turn(2, 1), later(AFTER_THE_SEND)), None, "to be skipped");
    assert_eq!(log.claim_position(&next, turn(2, 1), later(AFTER_THE_SEND)), Position::First);
    // Its message arrives after all.
    let mut late = log.clone();
    assert_eq!(late.claim_position(&lost, turn(1, 1), later(AFTER_THE_SEND + 1)), behind(1));
    assert!(late.end(&next, turn(2, 1), EndState::Done, later(AFTER_THE_SEND + 1)));
    assert_eq!(late.claim_position(&lost, turn(1, 2), later(AFTER_THE_SEND + 2)), Position::First);
    // Its sender confirms after all.
    assert_eq!(log.confirm(&lost, 1, true, later(AFTER_THE_SEND + 1)), Confirmed::Acknowledged);
    assert_eq!(log.claim_position(&lost, turn(1, 1), later(AFTER_THE_SEND + 2)), behind(1));
}

#[test]
fn job_that_is_sent_again_keeps_its_position_unless_it_is_done() {
    let mut log = sent(&["1", "2"]);
    assert_eq!(log.announce(&entry("a", "1"), 9, START), Announced::Entered);
    assert_eq!(log.claim_position(&entry("a", "2"), turn(2, 1), START), behind(1));
    // There may be two messages now. The first may already run.
    assert_eq!(
        log.claim_position(&entry("a", "1"), turn(9, 1), START),
        Position::OtherCopy { overdue: false }
    );
    assert_eq!(log.claim_position(&entry("a", "1"), turn(1, 1), START), Position::First);
    assert!(
        !log.end(&entry("a", "1"), turn(9, 1), EndState::Done, START),
        "the end of the copy does not end the job"
    );
    assert!(log.end(&entry("a", "1"), turn(1, 1), EndState::Done, START));
    assert_eq!(log.claim_position(&entry("a", "1"), turn(9, 2), START), Position::Ended(EndState::Done));
    assert_eq!(log.announce(&entry("a", "1"), 10, START), Announced::AlreadyDone);
}

#[test]
fn done_job_stays_done_whatever_ends_its_other_messages() {
    let job = entry("a", "1");
    let mut log = sent(&["1"]);
    assert_eq!(log.claim_position(&job, turn(1, 1), START), Position::First);
    assert!(log.end(&job, turn(1, 1), EndState::Done, START));
    // A second message has used up its deliveries, or its payload is gone.
    assert!(log.end(&job, turn(1, 2), EndState::DeadLettered, START));
    assert!(log.end(&job, turn(9, 1), EndState::DeadLettered, START));
    assert_eq!(log.claim_position(&job, turn(9, 2), START), Position::Ended(EndState::Done));
    assert_eq!(log.announce(&job, 10, START), Announced::AlreadyDone);
}

#[test]
fn only_the_confirmed_message_counts_as_the_single_one() {
    let job = entry("a", "1");
    let mut log = sent(&["1"]);
    // A message of a former send under the same id, whose entry is forgotten: the known message may run.
    assert_eq!(log.position(&job, turn(99, 1), START), None);
    let other = Position::OtherCopy { overdue: false };
    assert_eq!(log.claim_position(&job, turn(99, 1), START), other);
    assert_eq!(log.claim_position(&job, turn(1, 1), START), Position::First);
    // The former message may be dead-lettered for too many deliveries; the job continues.
    assert!(log.end(&job, turn(99, 1), EndState::DeadLettered, START));
    assert_eq!(log.claim_position(&entry("a", "2"), turn(2, 1), START), behind(1));
    assert!(log.end(&job, turn(1, 1), EndState::Done, START));
    assert_eq!(log.claim_position(&job, turn(99, 2), START), Position::Ended(EndState::Done));
}

#[test]
fn done_job_hides_no_job_of_another_key_or_source() {
    let job = |key: &str, source: &str| EntryRef::new(key, &Identity::new(source, "1"));
    let mut log = GroupLog::default();
    log.end(&job("a", "/test"), turn(1, 1), EndState::Done, START);
    assert_eq!(log.announce(&job("a", "/test"), 2, START), Announced::AlreadyDone);
    assert_eq!(log.announce(&job("b", "/test"), 2, START), Announced::Entered);
    assert_eq!(log.announce(&job("a", "/other"), 2, START), Announced::Entered);
}

#[test]
fn refused_send_leaves_no_entry_unless_another_announced_it() {
    let job = entry("a", "1");
    let mut log = GroupLog::default();
    log.announce(&job, 1, START);
    log.announce(&job, 2, START);
    log.retract(&job, 1);
    assert_eq!(log.claim_position(&entry("a", "2"), turn(3, 1), START), behind(1));
    log.retract(&job, 2);
    assert_eq!(log.claim_position(&entry("a", "2"), turn(3, 1), START), Position::First);
}

#[test]
fn message_that_keeps_coming_stays_expected() {
    let mut log = sent(&["1", "2"]);
    log.extend(&entry("a", "1"), turn(1, 1), later(5_000).0);
    assert_eq!(log.claim_position(&entry("a", "2"), turn(2, 1), later(4_999)), behind(1));
    // The next job has its full time from the moment at which it becomes the first.
    log.end(&entry("a", "1"), turn(1, 1), EndState::Done, later(4_999));
    assert_eq!(log.claim_position(&entry("a", "3"), turn(3, 1), later(5_200)), behind(1));
}

#[test]
fn refused_repetition_of_a_send_leaves_nothing() {
    let (job, mut log) = (entry("a", "1"), sent(&["1"]));
    let before = log.entries.clone();
    log.announce(&job, 2, START);
    log.retract(&job, 2);
    assert_eq!(log.entries, before);
    // The first send was repeated after a lost answer.
    log.confirm(&job, 1, false, START);
    let before = log.entries.clone();
    log.announce(&job, 2, START);
    log.retract(&job, 2);
    assert_eq!(log.entries, before);
}

#[test]
fn entries_have_a_fixed_size_and_few_ended_jobs_are_remembered() {
    const JOBS: u64 = 300;
    let long = "x".repeat(60_000);
    let job = |number: u64| entry("a", &format!("{number}{long}"));
    let mut log = GroupLog::default();
    for number in 0..JOBS {
        log.announce(&job(number), number, START);
        log.confirm(&job(number), number, true, START);
    }
    let text = serde_json::to_string(&log).unwrap();
    assert!(text.len() < JOBS as usize * 100, "{} bytes", text.len());
    assert_eq!(serde_json::from_str::<GroupLog>(&text).unwrap().entries, log.entries);
    for number in 0..JOBS {
        assert!(log.end(&job(number), turn(number, 1), EndState::Done, START));
    }
    assert_eq!(log.entries.len(), 0);
    assert_eq!(log.ended.len(), MAX_ENDED);
}

/// Returns a log that is full of jobs of key `a` whose messages are announced, but not confirmed.
fn full_log() -> GroupLog {
    let mut log = GroupLog::default();
    for number in 0..MAX_ENTRIES as u64 {
        assert_eq!(log.announce(&entry("a", &number.to_string()), number, START), Announced::Entered);
    }
    log
}

#[test]
fn full_log_takes_a_job_when_announcements_have_expired() {
    let mut log = full_log();
    let job = entry("b", "one more");
    assert_eq!(log.claim_position(&job, turn(1, 1), START), Position::Full);
    assert_eq!(log.announce(&job, 1, later(80)), Announced::Full);
    assert_eq!(log.announce(&job, 1, later(AFTER_THE_SEND)), Announced::Entered);
}

#[test]
fn entries_of_dead_senders_are_skipped_at_once_and_few_are_kept() {
    let mut log = full_log();
    let last = entry("a", &(MAX_ENTRIES - 1).to_string());
    assert_eq!(log.claim_position(&last, turn(1, 1), later(AFTER_THE_SEND)), Position::First);
    assert_eq!(log.entries.len(), MAX_SKIPPED + 1);
}

#[test]
fn keys_share_all_logs() {
    let logs: BTreeSet<u16> = (0..50_000).map(|n| entry(&n.to_string(), "x").log).collect();
    assert!(logs.len() > 3_600 && logs.iter().all(|log| *log < super::super::entry::LOGS));
}

#[test]
fn repeated_sends_and_dead_senders_leave_little() {
    let mut log = sent(&["1"]);
    for nonce in 2..1_000 {
        assert_eq!(log.announce(&entry("a", "1"), nonce, START), Announced::Entered);
    }
    assert_eq!(log.entries[0].nonces.len(), MAX_NONCES);
    // A forgotten send, whose message is stored.
    assert_eq!(log.confirm(&entry("a", "1"), 2, true, START), Confirmed::Acknowledged);
    log.retract(&entry("a", "1"), 2);
    assert_eq!(log.claim_position(&entry("a", "1"), turn(1, 1), START), Position::First);
    // Announcements of keys that never come again are removed by any send an hour later.
    for number in 0..100 {
        log.announce(&entry(&format!("once {number}"), "1"), number, START);
    }
    log.announce(&entry("b", "1"), 1, later(3_600));
    assert_eq!(log.entries.len(), 102);
    log.announce(&entry("b", "2"), 2, later(3_800));
    assert_eq!(log.entries.len(), 3);
}
