use std::time::Duration;

use super::super::tests::{START, behind, entry, later, sent, turn};
use super::*;
use crate::group_log::log::{EndState, Position};

#[test]
fn an_overdue_message_is_passed_by_only_after_all_had_time_to_come() {
    const PATIENCE: Patience = Patience { hidden: Duration::ZERO, queue: Duration::from_secs(200) };
    let (gone, next) = (entry("a", "1"), entry("a", "2"));
    let mut log = sent(&["1", "2"]);
    let claim_position = |log: &mut GroupLog, seconds| log.claim_position(&next, turn(2, 1), later(seconds));
    assert!(!log.mark_overdue(&next, turn(2, 1), PATIENCE, later(299)), "it is not overdue");
    assert_eq!(claim_position(&mut log, 301), Position::Behind { ahead: 1, overdue: true });
    assert!(!log.mark_overdue(&next, turn(2, 1), PATIENCE, later(301)));
    // Nobody pressed for long, as when all workers were stopped: that counts for half of the wait.
    assert!(!log.mark_overdue(&next, turn(2, 2), PATIENCE, later(600)));
    for seconds in [650, 699] {
        assert!(!log.mark_overdue(&next, turn(2, seconds as u32), PATIENCE, later(seconds)));
    }
    let mut came = log.clone();
    assert_eq!(came.claim_position(&gone, turn(1, 1), later(699)), Position::First);
    assert!(!came.mark_overdue(&next, turn(2, 701), PATIENCE, later(701)), "it has come");
    assert!(log.mark_overdue(&next, turn(2, 701), PATIENCE, later(701)));
    assert_eq!(claim_position(&mut log, 701), Position::First);
    assert!(!log.extend(&gone, turn(1, 1), later(1_001).0), "its turn is lost");
    assert_eq!(log.claim_position(&gone, turn(1, 1), later(702)), behind(1), "late rather than never");
}

#[test]
fn many_messages_that_vanished_hold_up_their_group_for_one_wait() {
    const PATIENCE: Patience = Patience { hidden: Duration::ZERO, queue: Duration::from_secs(200) };
    let jobs: Vec<String> = (1..=40).map(|job| job.to_string()).collect();
    let mut log = sent(&jobs.iter().map(String::as_str).collect::<Vec<_>>());
    // The messages 20 and 40 are left. All others have vanished.
    let (alive, last) = ((entry("a", "20"), turn(20, 1)), (entry("a", "40"), turn(40, 1)));
    let mark_overdue =
        |log: &mut GroupLog, at| log.mark_overdue(&last.0, turn(40, at as u32), PATIENCE, later(at));
    assert!(!mark_overdue(&mut log, 301));
    assert_eq!(log.position(&alive.0, alive.1, later(302)), None, "a message that is pressed must answer");
    assert_eq!(
        log.claim_position(&alive.0, alive.1, later(302)),
        Position::Behind { ahead: 19, overdue: true }
    );
    assert!(log.position(&alive.0, alive.1, later(302)).is_some(), "it has answered");
    for seconds in [350, 400, 450, 500] {
        assert!(!mark_overdue(&mut log, seconds));
    }
    assert!(mark_overdue(&mut log, 501));
    assert_eq!(
        log.claim_position(&last.0, last.1, later(501)),
        Position::Behind { ahead: 20, overdue: false }
    );
    assert_eq!(log.claim_position(&alive.0, alive.1, later(502)), Position::First);
    assert!(log.end(&alive.0, alive.1, EndState::Done, later(503)));
    // The others had their time.
    assert_eq!(
        log.claim_position(&last.0, last.1, later(503)),
        Position::Behind { ahead: 19, overdue: true }
    );
    assert!(mark_overdue(&mut log, 503));
    assert_eq!(log.claim_position(&last.0, last.1, later(503)), Position::First);
}

#[test]
fn a_time_in_which_nobody_works_counts_for_half_of_the_wait_at_most() {
    const PATIENCE: Patience = Patience { hidden: Duration::ZERO, queue: Duration::from_secs(200) };
    let mut log = sent(&["1", "2", "3"]);
    let last = entry("a", "3");
    let mark_overdue =
        |log: &mut GroupLog, at| log.mark_overdue(&last, turn(3, at as u32), PATIENCE, later(at));
    assert!(!mark_overdue(&mut log, 301));
    assert!(!mark_overdue(&mut log, 5_000), "all workers were stopped");
    for seconds in [5_050, 5_099] {
        assert!(!mark_overdue(&mut log, seconds));
    }
    assert_eq!(
        log.claim_position(&entry("a", "2"), turn(2, 1), later(5_099)),
        Position::Behind { ahead: 1, overdue: true }
    );
    assert!(mark_overdue(&mut log, 5_100));
    assert_eq!(log.claim_position(&last, turn(3, 1), later(5_100)), behind(1), "the second has answered");
}

#[test]
fn a_copy_whose_other_does_not_come_back_gets_the_turn() {
    const PATIENCE: Patience = Patience { hidden: Duration::ZERO, queue: Duration::from_secs(200) };
    let job = entry("a", "1");
    let mut log = GroupLog::default();
    assert_eq!(log.claim_position(&job, turn(1, 1), START), Position::First);
    assert_eq!(log.claim_position(&job, turn(2, 1), later(301)), Position::OtherCopy { overdue: true });
    assert!(!log.mark_overdue(&job, turn(1, 2), PATIENCE, later(301)), "it is the one in turn itself");
    assert!(!log.mark_overdue(&job, turn(2, 1), PATIENCE, later(301)));
    assert!(!log.mark_overdue(&job, turn(2, 2), PATIENCE, later(400)));
    assert!(!log.mark_overdue(&job, turn(2, 3), PATIENCE, later(450)));
    assert!(log.mark_overdue(&job, turn(2, 4), PATIENCE, later(502)));
    assert_eq!(log.claim_position(&job, turn(2, 1), later(502)), Position::First);
    assert!(!log.extend(&job, turn(1, 1), later(803).0) && log.extend(&job, turn(2, 1), later(803).0));
    assert!(!log.end(&job, turn(1, 1), EndState::Done, later(503)));
}

#[test]
fn a_pause_in_which_all_slots_were_taken_counts_for_half_of_the_wait_at_most() {
    const PATIENCE: Patience = Patience { hidden: Duration::ZERO, queue: Duration::from_secs(200) };
    let mut log = sent(&["1", "2", "3", "4"]);
    let (first, last) = (entry("a", "1"), entry("a", "4"));
    let mark_overdue =
        |log: &mut GroupLog, at| log.mark_overdue(&last, turn(4, at as u32), PATIENCE, later(at));
    assert!(!mark_overdue(&mut log, 301));
    // The first comes, and runs in the only slot for more than three minutes: no other message is received.
    assert_eq!(log.claim_position(&first, turn(1, 1), later(302)), Position::First);
    assert!(log.end(&first, turn(1, 1), EndState::Done, later(500)));
    assert!(!mark_overdue(&mut log, 501), "2 and 3 had no chance to come");
    let answer = log.claim_position(&entry("a", "3"), turn(3, 1), later(520));
    assert_eq!(answer, Position::Behind { ahead: 1, overdue: true });
    assert!(!mark_overdue(&mut log, 600));
    assert!(mark_overdue(&mut log, 601), "2 does not come");
    assert_eq!(log.claim_position(&entry("a", "3"), turn(3, 1), later(602)), Position::First);
}

// audit 5, O1: a message that was put back is behind all others.
#[test]
fn message_that_waits_in_a_long_queue_is_not_passed_by() {
    const PATIENCE: Patience = Patience { hidden: Duration::ZERO, queue: Duration::from_secs(200) };
    let mut log = sent(&["1", "2", "3", "4"]);
    // Each of these comes for the first time; the round began with the second.
    for (seconds, copy) in [(301, 2), (400, 3), (500, 4), (600, 4)] {
        let entry = entry("a", &copy.to_string());
        assert!(!log.mark_overdue(&entry, turn(copy, 1), PATIENCE, later(seconds)), "{seconds}");
    }
    let text = serde_json::to_string(&log.entries).unwrap();
    let mut read = GroupLog { entries: serde_json::from_str(&text).unwrap(), ..log.clone() };
    assert!(
        read.mark_overdue(&entry("a", "2"), turn(2, 2), PATIENCE, later(601)),
        "the queue has gone round"
    );
    let mut gone = log.clone();
    for seconds in (700..4_300).step_by(100) {
        assert!(!gone.mark_overdue(&entry("a", "4"), turn(4, seconds as u32), PATIENCE, later(seconds)));
    }
    let last = (700..=4_400).step_by(100);
    let passed =
        last.filter(|at| log.mark_overdue(&entry("a", "4"), turn(4, *at as u32), PATIENCE, later(*at)));
    assert_eq!(
        passed.collect::<Vec<_>>().first(),
        Some(&4_400),
        "the message that began the round is gone too"
    );
}

// review 6, O2: the worker of the head was killed, and the head's lease is longer than the time after which it is called overdue.
#[test]
fn message_that_is_still_leased_when_it_is_overdue_is_not_passed_by() {
    const PATIENCE: Patience = Patience { hidden: Duration::from_secs(720), queue: Duration::from_secs(500) };
    let jobs: Vec<String> = (1..=40).map(|job| job.to_string()).collect();
    let mut log = sent(&jobs.iter().map(String::as_str).collect::<Vec<_>>());
    let mut comes = |copy: u64, delivery, seconds| {
        let job = entry("a", &copy.to_string());
        log.mark_overdue(&job, turn(copy, delivery), PATIENCE, later(seconds))
    };
    // Each comes for the first time, once a minute. The head is visible at 1,020 at the latest, behind a queue of 26 minutes.
    for (copy, seconds) in (2..=28).zip((301..).step_by(60)) {
        assert!(!comes(copy, 1, seconds), "{copy}");
    }
    for copy in 2..=13 {
        assert!(!comes(copy, 2, 1_815 + copy * 60), "{copy} was put back before the head was visible");
    }
    assert!(comes(14, 2, 2_655), "the queue has gone round");
}

// review 7, X5: the worker of the second was killed just after it had received it. The first is gone.
#[test]
fn message_behind_the_first_that_is_still_leased_is_not_passed_by() {
    const PATIENCE: Patience = Patience { hidden: Duration::from_secs(720), queue: Duration::from_secs(500) };
    let jobs: Vec<String> = (1..=29).map(|job| job.to_string()).collect();
    let mut log = sent(&jobs.iter().map(String::as_str).collect::<Vec<_>>());
    let second = entry("a", "2");
    // The others come each 50 seconds, in rounds of 1,350. The second came at 1,100; it is visible from 1,700, and comes in the next round.
    for (nth, seconds) in (0_u32..).zip((301..3_050).step_by(50)) {
        if seconds == 1_101 {
            log.claim_position(&second, turn(2, 1), later(1_100));
        }
        let (copy, delivery) = (3 + nth % 27, 1 + nth / 27);
        let (job, turn) = (entry("a", &copy.to_string()), turn(copy.into(), delivery));
        log.claim_position(&job, turn, later(seconds));
        let skipped = log.mark_overdue(&job, turn, PATIENCE, later(seconds));
        assert_eq!(skipped, seconds == 2_401, "the first is given up, at {seconds}");
    }
    assert_eq!(log.claim_position(&second, turn(2, 2), later(3_050)), Position::First);
}

// review 6, O3: a round of the queue takes longer than the guess.
#[test]
fn key_whose_first_message_is_gone_goes_on_although_the_queue_is_slow() {
    const PATIENCE: Patience = Patience { hidden: Duration::from_secs(150), queue: Duration::from_secs(50) };
    let mut log = sent(&["1", "2", "3", "4"]);
    // The others come together, each time in another order, at 301, 1,301, …
    let orders = [[2, 3, 4], [4, 2, 3], [3, 2, 4], [2, 4, 3], [4, 3, 2]];
    let mut passed_by = Vec::new();
    for (delivery, order) in (1..).zip(orders) {
        for (nth, copy) in (0..).zip(order) {
            let (entry, seconds) =
                (entry("a", &copy.to_string()), 1_000 * u64::from(delivery) - 699 + nth * 5);
            if log.mark_overdue(&entry, turn(copy, delivery), PATIENCE, later(seconds)) {
                passed_by.push((delivery, copy));
            }
        }
    }
    assert_eq!(
        passed_by.first(),
        Some(&(3, 4)),
        "the message that began the round in the second one comes again"
    );
}

#[test]
fn job_that_is_sent_again_while_it_is_overdue_has_its_full_time() {
    const PATIENCE: Patience = Patience { hidden: Duration::ZERO, queue: Duration::from_secs(150) };
    let (gone, next) = (entry("a", "1"), entry("a", "2"));
    let mut log = sent(&["1", "2"]);
    for (delivery, seconds) in [(1, 301), (2, 400)] {
        assert!(!log.mark_overdue(&next, turn(2, delivery), PATIENCE, later(seconds)));
    }
    log.announce(&gone, 9, later(410));
    log.confirm(&gone, 9, true, later(410));
    assert!(!log.mark_overdue(&next, turn(2, 3), PATIENCE, later(711)), "the queue went round without it");
}
