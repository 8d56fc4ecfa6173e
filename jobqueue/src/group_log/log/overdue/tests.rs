use std::time::Duration;

use super::super::tests::{behind, entry, later, sent, turn};
use super::*;
use crate::group_log::log::{EndState, Position};

/// For messages that no worker has leased, in a queue with a round of 200 seconds.
const QUEUE_OF_200_S: OverdueWait = OverdueWait { hidden: Duration::ZERO, queue: Duration::from_secs(200) };
/// For messages that a killed worker may have leased for 720 seconds, in a queue with a round of 500 seconds.
const LEASED_FOR_720_S: OverdueWait =
    OverdueWait { hidden: Duration::from_secs(720), queue: Duration::from_secs(500) };

/// A delivery of a job of key `a`, some seconds after the start. By default the copy number is the number of
/// the job, and the dequeue count is the number of seconds, so that it grows from delivery to delivery.
#[derive(Debug, Clone, Copy)]
struct Delivery {
    seconds: u64,
    job: u64,
    turn: Turn,
}

struct At(u64);

fn at(seconds: u64) -> At {
    At(seconds)
}

impl At {
    fn job(self, job: u64) -> Delivery {
        Delivery { seconds: self.0, job, turn: turn(job, self.0 as u32) }
    }
}

impl Delivery {
    fn first_time(self) -> Self {
        self.nth_time(1)
    }

    fn nth_time(self, delivery: u32) -> Self {
        Self { turn: Turn { delivery, ..self.turn }, ..self }
    }

    fn copy(self, copy: u64) -> Self {
        Self { turn: Turn { copy, ..self.turn }, ..self }
    }

    fn entry(self) -> EntryRef {
        entry("a", &self.job.to_string())
    }

    /// Returns whether the delivery skips the overdue message before it.
    fn skips_overdue(self, log: &mut GroupLog, wait: OverdueWait) -> bool {
        log.mark_overdue(&self.entry(), self.turn, wait, later(self.seconds))
    }

    fn claims_position(self, log: &mut GroupLog) -> Position {
        log.claim_position(&self.entry(), self.turn, later(self.seconds))
    }

    fn cached_position(self, log: &GroupLog) -> Option<Position> {
        log.position(&self.entry(), self.turn, later(self.seconds))
    }

    fn completes(self, log: &mut GroupLog) -> bool {
        log.end(&self.entry(), self.turn, EndState::Done, later(self.seconds))
    }
}

/// Returns a log in which the jobs 1 to `last` of key `a` were sent one after the other.
fn sent_up_to(last: u64) -> GroupLog {
    let jobs: Vec<String> = (1..=last).map(|job| job.to_string()).collect();
    sent(&jobs.iter().map(String::as_str).collect::<Vec<_>>())
}

fn behind_overdue(ahead: usize) -> Position {
    Position::Behind { ahead, overdue: true }
}

#[test]
fn overdue_message_is_skipped_only_after_all_had_time_to_come() {
    let gone = entry("a", "1");
    let mut log = sent_up_to(2);
    let not_overdue_yet = at(299).job(2).first_time();
    assert!(!not_overdue_yet.skips_overdue(&mut log, QUEUE_OF_200_S));
    assert_eq!(at(301).job(2).first_time().claims_position(&mut log), behind_overdue(1));
    assert!(!at(301).job(2).first_time().skips_overdue(&mut log, QUEUE_OF_200_S));
    // No delivery came for long, as when all workers were stopped: that counts for half of the wait.
    assert!(!at(600).job(2).nth_time(2).skips_overdue(&mut log, QUEUE_OF_200_S));
    assert!(!at(650).job(2).skips_overdue(&mut log, QUEUE_OF_200_S));
    assert!(!at(699).job(2).skips_overdue(&mut log, QUEUE_OF_200_S));

    let mut arrived = log.clone();
    assert_eq!(at(699).job(1).first_time().claims_position(&mut arrived), Position::First);
    assert!(!at(701).job(2).skips_overdue(&mut arrived, QUEUE_OF_200_S), "the message has arrived");

    assert!(at(701).job(2).skips_overdue(&mut log, QUEUE_OF_200_S));
    assert_eq!(at(701).job(2).first_time().claims_position(&mut log), Position::First);
    assert!(!log.extend(&gone, turn(1, 1), later(1_001).0), "its turn is lost");
    let late = at(702).job(1).first_time();
    assert_eq!(late.claims_position(&mut log), behind(1), "late rather than never");
}

#[test]
fn many_messages_that_vanished_hold_up_their_group_for_one_wait() {
    // The messages 20 and 40 are left. All others have vanished.
    const ALIVE: u64 = 20;
    const LAST: u64 = 40;
    let mut log = sent_up_to(LAST);
    assert!(!at(301).job(LAST).skips_overdue(&mut log, QUEUE_OF_200_S));
    let alive = at(302).job(ALIVE).first_time();
    assert_eq!(alive.cached_position(&log), None, "a message that is marked must answer");
    assert_eq!(alive.claims_position(&mut log), behind_overdue(19));
    assert!(alive.cached_position(&log).is_some(), "it has answered");
    for seconds in [350, 400, 450, 500] {
        assert!(!at(seconds).job(LAST).skips_overdue(&mut log, QUEUE_OF_200_S), "{seconds}");
    }
    assert!(at(501).job(LAST).skips_overdue(&mut log, QUEUE_OF_200_S));
    assert_eq!(at(501).job(LAST).first_time().claims_position(&mut log), behind(20));
    assert_eq!(at(502).job(ALIVE).first_time().claims_position(&mut log), Position::First);
    assert!(at(503).job(ALIVE).first_time().completes(&mut log));
    // The others had their time.
    assert_eq!(at(503).job(LAST).first_time().claims_position(&mut log), behind_overdue(19));
    assert!(at(503).job(LAST).skips_overdue(&mut log, QUEUE_OF_200_S));
    assert_eq!(at(503).job(LAST).first_time().claims_position(&mut log), Position::First);
}

#[test]
fn time_in_which_no_worker_runs_counts_for_half_of_the_wait_at_most() {
    let mut log = sent_up_to(3);
    assert!(!at(301).job(3).skips_overdue(&mut log, QUEUE_OF_200_S));
    assert!(!at(5_000).job(3).skips_overdue(&mut log, QUEUE_OF_200_S), "all workers were stopped");
    assert!(!at(5_050).job(3).skips_overdue(&mut log, QUEUE_OF_200_S));
    assert!(!at(5_099).job(3).skips_overdue(&mut log, QUEUE_OF_200_S));
    assert_eq!(at(5_099).job(2).first_time().claims_position(&mut log), behind_overdue(1));
    assert!(at(5_100).job(3).skips_overdue(&mut log, QUEUE_OF_200_S));
    let third = at(5_100).job(3).first_time();
    assert_eq!(third.claims_position(&mut log), behind(1), "the second has answered");
}

#[test]
fn copy_gets_the_turn_if_the_other_copy_does_not_come_back() {
    let job = entry("a", "1");
    let mut log = GroupLog::default();
    let first = |seconds| at(seconds).job(1).copy(1);
    let second = |seconds| at(seconds).job(1).copy(2);
    assert_eq!(first(0).first_time().claims_position(&mut log), Position::First);
    let other_copy = Position::OtherCopy { overdue: true };
    assert_eq!(second(301).first_time().claims_position(&mut log), other_copy);
    let own_turn = first(301).nth_time(2);
    assert!(!own_turn.skips_overdue(&mut log, QUEUE_OF_200_S), "this copy itself has the turn");
    assert!(!second(301).nth_time(1).skips_overdue(&mut log, QUEUE_OF_200_S));
    assert!(!second(400).nth_time(2).skips_overdue(&mut log, QUEUE_OF_200_S));
    assert!(!second(450).nth_time(3).skips_overdue(&mut log, QUEUE_OF_200_S));
    assert!(second(502).nth_time(4).skips_overdue(&mut log, QUEUE_OF_200_S));
    assert_eq!(second(502).first_time().claims_position(&mut log), Position::First);
    assert!(!log.extend(&job, turn(1, 1), later(803).0), "the first copy has lost its turn");
    assert!(log.extend(&job, turn(2, 1), later(803).0));
    assert!(!first(503).first_time().completes(&mut log));
}

#[test]
fn pause_in_which_all_slots_were_taken_counts_for_half_of_the_wait_at_most() {
    let mut log = sent_up_to(4);
    assert!(!at(301).job(4).skips_overdue(&mut log, QUEUE_OF_200_S));
    // The first comes, and runs in the only slot for more than three minutes: no other message is received.
    assert_eq!(at(302).job(1).first_time().claims_position(&mut log), Position::First);
    assert!(at(500).job(1).first_time().completes(&mut log));
    assert!(!at(501).job(4).skips_overdue(&mut log, QUEUE_OF_200_S), "2 and 3 had no chance to come");
    assert_eq!(at(520).job(3).first_time().claims_position(&mut log), behind_overdue(1));
    assert!(!at(600).job(4).skips_overdue(&mut log, QUEUE_OF_200_S));
    assert!(at(601).job(4).skips_overdue(&mut log, QUEUE_OF_200_S), "2 does not come");
    assert_eq!(at(602).job(3).first_time().claims_position(&mut log), Position::First);
}

// A message that was put back is behind all others.
#[test]
fn message_that_waits_in_a_long_queue_is_not_passed_by() {
    let mut log = sent_up_to(4);
    // Each of these comes for the first time; the round began with the second.
    for (seconds, job) in [(301, 2), (400, 3), (500, 4), (600, 4)] {
        assert!(!at(seconds).job(job).first_time().skips_overdue(&mut log, QUEUE_OF_200_S), "{seconds}");
    }
    let text = serde_json::to_string(&log.entries).unwrap();
    let mut read = GroupLog { entries: serde_json::from_str(&text).unwrap(), ..log.clone() };
    let second = at(601).job(2).nth_time(2);
    assert!(second.skips_overdue(&mut read, QUEUE_OF_200_S), "the queue has gone round");
    // Or the message that began the round is gone too: twenty times the wait.
    for seconds in (700..4_400).step_by(100) {
        assert!(!at(seconds).job(4).skips_overdue(&mut log, QUEUE_OF_200_S), "{seconds}");
    }
    assert!(at(4_400).job(4).skips_overdue(&mut log, QUEUE_OF_200_S));
}

// The worker of the head was killed, and the head's lease is longer than the time after which its message
// counts as overdue.
#[test]
fn message_that_is_still_leased_when_it_is_overdue_is_not_passed_by() {
    let mut log = sent_up_to(40);
    // Each comes for the first time, a minute after the one before it. The head is visible at 1,020 at the
    // latest, behind a queue of 26 minutes.
    for (job, seconds) in (2..=28).zip((301..).step_by(60)) {
        assert!(!at(seconds).job(job).first_time().skips_overdue(&mut log, LEASED_FOR_720_S), "{job}");
    }
    let second_time = |job: u64| at(1_815 + 60 * job).job(job).nth_time(2);
    for job in 2..=13 {
        let skips = second_time(job).skips_overdue(&mut log, LEASED_FOR_720_S);
        assert!(!skips, "{job} was put back before the head was visible");
    }
    assert!(second_time(14).skips_overdue(&mut log, LEASED_FOR_720_S), "the queue has gone round");
}

// The worker of the second was killed just after it had received it. The first is gone.
#[test]
fn message_behind_the_first_that_is_still_leased_is_not_passed_by() {
    // These jobs come again and again, 50 seconds after one another, in rounds of 1,350 seconds.
    const OTHERS: std::ops::RangeInclusive<u64> = 3..=29;
    let mut log = sent_up_to(29);
    let mut others = (1_u32..).flat_map(|round| OTHERS.map(move |job| (round, job)));
    for seconds in (301..3_050).step_by(50) {
        // The second is visible from 1,700 on, and comes in the next round.
        if seconds == 1_101 {
            at(1_100).job(2).first_time().claims_position(&mut log);
        }
        let (round, job) = others.next().unwrap();
        let delivery = at(seconds).job(job).nth_time(round);
        delivery.claims_position(&mut log);
        let skips = delivery.skips_overdue(&mut log, LEASED_FOR_720_S);
        assert_eq!(skips, seconds == 2_401, "the first is given up, at {seconds}");
    }
    assert_eq!(at(3_050).job(2).nth_time(2).claims_position(&mut log), Position::First);
}

// A round of the queue takes longer than the estimate.
#[test]
fn key_whose_first_message_is_gone_goes_on_although_the_queue_is_slow() {
    const OVERDUE_WAIT: OverdueWait =
        OverdueWait { hidden: Duration::from_secs(150), queue: Duration::from_secs(50) };
    let mut log = sent_up_to(4);
    // The others come together, every 1,000 seconds, each time in another order.
    let orders = [[2, 3, 4], [4, 2, 3], [3, 2, 4], [2, 4, 3], [4, 3, 2]];
    let mut skipped_by = Vec::new();
    for (round, order) in (1_u32..).zip(orders) {
        let began = 301 + 1_000 * u64::from(round - 1);
        for (seconds, job) in (began..).step_by(5).zip(order) {
            if at(seconds).job(job).nth_time(round).skips_overdue(&mut log, OVERDUE_WAIT) {
                skipped_by.push((round, job));
            }
        }
    }
    let message_that_began_the_round_in_the_second = 4;
    assert_eq!(skipped_by.first(), Some(&(3, message_that_began_the_round_in_the_second)));
}

#[test]
fn job_that_is_sent_again_while_it_is_overdue_has_its_full_time() {
    const OVERDUE_WAIT: OverdueWait = OverdueWait { hidden: Duration::ZERO, queue: Duration::from_secs(150) };
    const SECOND_SEND: u64 = 9;
    let gone = entry("a", "1");
    let mut log = sent_up_to(2);
    assert!(!at(301).job(2).nth_time(1).skips_overdue(&mut log, OVERDUE_WAIT));
    assert!(!at(400).job(2).nth_time(2).skips_overdue(&mut log, OVERDUE_WAIT));
    log.announce(&gone, SECOND_SEND, later(410));
    log.confirm(&gone, SECOND_SEND, true, later(410));
    let third_time = at(711).job(2).nth_time(3);
    assert!(!third_time.skips_overdue(&mut log, OVERDUE_WAIT), "the queue went round without it");
}
