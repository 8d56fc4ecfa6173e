use super::*;
use crate::envelope::Identity;
use crate::group_log::OverdueWait;
use crate::group_log::entry::Turn;
use crate::group_log::log::{Confirmed, Position};
use std::time::Duration;

const START: Millis = Millis(1_000_000);
/// For messages that no worker has leased, in a queue with a round of 200 seconds.
const QUEUE_OF_200_S: OverdueWait = OverdueWait { hidden: Duration::ZERO, queue: Duration::from_secs(200) };

fn later(seconds: u64) -> Millis {
    Millis(START.after(Duration::from_secs(seconds)))
}

/// Returns the announcement of the `number`-th send of key `a`.
fn send(number: u64) -> Announcement {
    let entry = EntryRef::new("a", &Identity::new("/test", number.to_string()));
    Announcement { entry, nonce: number, delay: Duration::ZERO, announced_at: None }
}

fn sends(numbers: std::ops::Range<u64>) -> Vec<Announcement> {
    numbers.map(send).collect()
}

fn key() -> KeyHash {
    send(1).entry.key
}

fn confirmed(mut log: GroupLog, sends: &[Announcement]) -> GroupLog {
    for Announcement { entry, nonce, .. } in sends {
        assert_eq!(log.confirm(entry, *nonce, true, START), Confirmed::Acknowledged);
    }
    log
}

fn page(sends: &[Announcement]) -> GroupLog {
    let mut page = GroupLog::default();
    assert!(page.announce_in_page(true, sends, START).is_ok());
    confirmed(page, sends)
}

/// Returns a head with the sends 1 to 32, and linked pages from number 7 on.
fn head(pages: u64) -> GroupLog {
    let mut head = GroupLog::default();
    assert!(head.announce_all(&sends(1..33), START).is_ok());
    assert_eq!(head.announce_all(&[send(33)], START), Err(AnnounceRefusal::Full));
    for page in 7..7 + pages {
        let last = (page > 7).then(|| page - 1);
        assert!(head.link(key(), last, page));
    }
    confirmed(head, &sends(1..33))
}

/// Ends all jobs of the head, and returns their numbers in the order of their turns.
fn drain(head: &mut GroupLog) -> Vec<u64> {
    let mut done = Vec::new();
    while let Some(number) = (1..200).find(|number| {
        let turn = Turn { copy: *number, delivery: 1, lock: 0 };
        head.position(&send(*number).entry, turn, START) == Some(Position::First)
    }) {
        let turn = Turn { copy: number, delivery: 1, lock: 0 };
        assert!(head.end(&send(number).entry, turn, EndState::Done, START));
        done.push(number);
    }
    done
}

fn in_page(number: u64, page: u64) -> EntryRef {
    EntryRef { page: Some(page), ..send(number).entry }
}

#[test]
fn pages_come_into_the_head_in_their_order_and_once() {
    let mut log = head(2);
    assert!(!log.is_low(key()));
    let numbers = drain(&mut log);
    assert_eq!(numbers, (1..33).collect::<Vec<_>>(), "pages hold up their group");
    assert!(log.is_low(key()));
    let (mut first, mut second) = (page(&sends(33..65)), page(&sends(65..70)));
    let behind = Position::Behind { ahead: PAGE, overdue: false };
    assert_eq!(log.claim_position(&in_page(65, 8), Turn { copy: 65, delivery: 1, lock: 0 }, START), behind);
    log.adopt(key(), 8, &second.clone().close(), START);
    assert_eq!(log.first_page(key()), Some(7), "the second page waits for the first");
    for _ in 0..2 {
        log.adopt(key(), 7, &first.close(), START);
        assert_eq!(log.first_page(key()), Some(8));
    }
    log.adopt(key(), 8, &second.close(), START);
    assert_eq!(log.first_page(key()), None);
    assert_eq!(drain(&mut log), (33..70).collect::<Vec<_>>());
    assert!(log.announce_all(&[send(70)], START).is_ok(), "the head takes sends again");
}

#[test]
fn page_that_refused_a_job_takes_none_when_it_has_room_again() {
    let mut page = page(&sends(33..65));
    assert_eq!(page.announce_in_page(false, &[send(65)], START), Err(AnnounceRefusal::Full));
    let (ended, turn) = (send(40).entry, Turn { copy: 40, delivery: 1, lock: 0 });
    assert!(page.end(&ended, turn, EndState::DeadLettered, START), "its entries count");
    assert_eq!(page.announce_in_page(false, &[send(66)], START), Err(AnnounceRefusal::Full));
    assert!(page.announce_in_page(false, &[send(41)], START).is_ok(), "a job that it has is sent again");
    let stored: GroupLog = serde_json::from_value(serde_json::to_value(&page).unwrap()).unwrap();
    assert!(stored.is_open());
    assert_eq!(stored.page, page.page);
    assert_eq!(stored.clone().close().entries.len(), 31);
}

#[test]
fn closed_page_or_one_that_is_gone_takes_nothing() {
    let mut page = page(&[send(33)]);
    drop(page.close());
    assert_eq!(page.announce_in_page(true, &[send(34)], START), Err(AnnounceRefusal::Closed));
    assert_eq!(GroupLog::default().announce_in_page(false, &[send(34)], START), Err(AnnounceRefusal::Closed));
    assert_eq!(
        GroupLog::default().close(),
        GroupLog::default(),
        "nothing is written for a page that is gone"
    );
}

#[test]
fn page_of_a_sender_that_was_slower_does_not_count() {
    let mut log = head(1);
    assert!(log.link(key(), None, 7), "the answer to the first write was lost");
    assert!(!log.link(key(), None, 900), "another process has begun with other numbers");
    assert!(log.link(key(), Some(7), 8));
    assert!(!log.link(key(), Some(6), 7 + 100));
    log.adopt(key(), 7, &GroupLog::default(), START);
    assert!(!log.link(key(), Some(6), 7), "it was taken over already");
    log.adopt(key(), 8, &GroupLog::default(), START);
    assert!(!log.link(key(), Some(7), 8), "it was taken over already");
}

#[test]
fn message_without_a_position_joins_behind_the_pages_that_exist() {
    let mut log = head(2);
    let turn = Turn { copy: 150, delivery: 1, lock: 0 };
    let ahead = 32 + 2 * PAGE;
    assert_eq!(log.claim_position(&send(150).entry, turn, START), Position::Behind { ahead, overdue: false });
    assert!(log.link(key(), None, 9));
    for (number, sends) in [(7, sends(33..65)), (8, sends(65..97)), (9, sends(97..99))] {
        log.adopt(key(), number, &page(&sends).close(), START);
    }
    assert_eq!(drain(&mut log), (1..97).collect::<Vec<_>>());
    // The entry has no record of its only message: the turn is recorded.
    assert_eq!(log.claim_position(&send(150).entry, turn, START), Position::First);
    assert!(log.end(&send(150).entry, turn, EndState::Done, START));
    assert_eq!(drain(&mut log), [97, 98]);
}

#[test]
fn many_messages_without_positions_join_a_few_at_a_time() {
    let mut log = GroupLog::default();
    for number in 1..200 {
        let turn = Turn { copy: number, delivery: 1, lock: 0 };
        let position = log.claim_position(&send(number).entry, turn, START);
        let crowded = Position::Crowded { ahead: 2 * PAGE };
        assert_eq!(position == crowded, number > 2 * PAGE as u64, "{number}");
    }
    // The others need no read, unless the first job is overdue.
    let turn = Turn { copy: 100, delivery: 2, lock: 0 };
    let crowded = Position::Crowded { ahead: 2 * PAGE };
    assert_eq!(log.position(&send(100).entry, turn, START), Some(crowded));
    assert_eq!(log.position(&send(100).entry, turn, Millis(START.after(GRACE) + 1)), None);
    assert_eq!(log.group(key()).count(), 2 * PAGE);
}

#[test]
fn job_that_is_sent_again_into_a_page_has_one_position() {
    let again = |number, nonce| Announcement { nonce, ..send(number) };
    let mut log = head(1);
    let turn = Turn { copy: 1, delivery: 1, lock: 0 };
    assert_eq!(log.claim_position(&send(1).entry, turn, START), Position::First);
    assert!(log.end(&send(1).entry, turn, EndState::Done, START));
    let sends = [again(1, 101), again(2, 102), send(33)];
    log.adopt(key(), 7, &page(&sends).close(), START);
    assert_eq!(log.group(key()).count(), 32, "1 is done, 2 has its position already");
    // The first message of 2 may run, without a record of it.
    let second = Turn { copy: 102, delivery: 1, lock: 0 };
    assert_eq!(log.claim_position(&send(2).entry, second, START), Position::OtherCopy { overdue: false });
    assert_eq!(
        log.claim_position(&send(2).entry, Turn { copy: 2, delivery: 1, lock: 0 }, START),
        Position::First
    );
}

#[test]
fn ends_and_cancellations_in_a_page_count_in_the_head() {
    let mut page = page(&sends(33..36));
    assert!(page.end(&send(34).entry, Turn { copy: 34, delivery: 1, lock: 0 }, EndState::Done, START));
    let mut log = head(1);
    log.adopt(key(), 7, &page.close(), START);
    assert_eq!(
        log.claim_position(&in_page(34, 7), Turn { copy: 34, delivery: 2, lock: 0 }, START),
        Position::Ended(EndState::Done)
    );
    let mut expected: Vec<u64> = (1..36).collect();
    expected.retain(|number| *number != 34);
    assert_eq!(drain(&mut log), expected);
}

/// The job was dead-lettered, sent again behind others, and cancelled there.
#[test]
fn end_in_a_page_replaces_an_older_one_of_the_head_unless_the_job_is_done() {
    for (older, expected) in [(EndState::DeadLettered, EndState::Cancelled), (EndState::Done, EndState::Done)]
    {
        let (mut log, mut page) = (head(1), page(&sends(33..36)));
        log.note_ended(&send(34).entry, older);
        let at = page.find(&send(34).entry).unwrap();
        page.remove(at, START);
        page.note_ended(&send(34).entry, EndState::Cancelled);
        log.adopt(key(), 7, &page.close(), START);
        assert_eq!(log.ended(&send(34).entry), Some(expected));
    }
}

#[test]
fn messages_in_pages_pass_by_the_ones_that_vanished_before_them() {
    let (paged, turn) = (in_page(33, 7), Turn { copy: 33, delivery: 1, lock: 0 });
    let again = |seconds: u64| Turn { delivery: seconds as u32, ..turn };
    let mut log = head(1);
    let behind = |overdue| Position::Behind { ahead: 32, overdue };
    assert_eq!(log.claim_position(&paged, turn, later(301)), behind(true));
    for seconds in [301, 350, 400, 450, 500] {
        assert!(!log.mark_overdue(&paged, again(seconds), QUEUE_OF_200_S, later(seconds)));
    }
    assert!(log.mark_overdue(&paged, again(501), QUEUE_OF_200_S, later(501)));
    assert!(log.is_low(key()));
    log.adopt(key(), 7, &page(&[send(33)]).close(), later(501));
    assert_eq!(log.claim_position(&paged, turn, later(501)), Position::First);
}

#[test]
fn one_wait_suffices_for_all_pages_from_which_no_message_has_come() {
    let turn = |copy| Turn { copy, delivery: 1, lock: 0 };
    let again = |copy, seconds: u64| Turn { copy, delivery: seconds as u32, lock: 0 };
    let mut log = head(4);
    for seconds in [301, 350, 400, 450, 500] {
        assert!(!log.mark_overdue(&in_page(65, 8), again(65, seconds), QUEUE_OF_200_S, later(seconds)));
        assert!(!log.mark_overdue(&in_page(130, 10), again(130, seconds), QUEUE_OF_200_S, later(seconds)));
    }
    assert!(
        log.mark_overdue(&in_page(130, 10), again(130, 501), QUEUE_OF_200_S, later(501)),
        "the head is given up"
    );
    log.adopt(key(), 7, &page(&sends(33..65)).close(), later(501));
    assert!(
        log.mark_overdue(&in_page(130, 10), again(130, 501), QUEUE_OF_200_S, later(501)),
        "and page 7 with it"
    );
    // The message of 65 may be on its way again; the message of 66 may come with it.
    log.adopt(key(), 8, &page(&sends(65..97)).close(), later(501));
    assert!(!log.mark_overdue(&in_page(130, 10), again(130, 502), QUEUE_OF_200_S, later(502)));
    assert_eq!(log.claim_position(&send(65).entry, turn(65), later(502)), Position::First);
}

/// Lets a delivery of page 10 mark the messages before it at these seconds. Returns whether it skips the
/// first of them in the end.
fn skips_overdue(log: &mut GroupLog, seconds: &[u64]) -> bool {
    let mut skipped = false;
    for second in seconds {
        let turn = Turn { copy: 130, delivery: *second as u32, lock: 0 };
        skipped = log.mark_overdue(&in_page(130, 10), turn, QUEUE_OF_200_S, later(*second));
    }
    skipped
}

#[test]
fn arrival_of_the_overdue_first_job_ends_the_wait_for_the_pages_behind_it() {
    let mut log = head(4);
    assert!(!skips_overdue(&mut log, &[301, 350, 400, 450, 495]));
    // All arrive at last: the messages of the head run, and the messages of page 7 are a few seconds behind
    // them.
    for number in 1..33 {
        let turn = Turn { copy: number, delivery: 1, lock: 0 };
        assert_eq!(log.claim_position(&send(number).entry, turn, later(498)), Position::First, "{number}");
        assert!(log.end(&send(number).entry, turn, EndState::Done, later(499)));
    }
    log.adopt(key(), 7, &page(&sends(33..65)).close(), later(500));
    assert!(!skips_overdue(&mut log, &[501, 502]), "the jobs of page 7 lose their positions");
    let turn = Turn { copy: 33, delivery: 1, lock: 0 };
    assert_eq!(log.claim_position(&in_page(33, 7), turn, later(503)), Position::First);
}

#[test]
fn message_that_comes_while_none_is_overdue_keeps_its_page_from_being_passed_by() {
    let (last, last_turn) = (send(32).entry, Turn { copy: 32, delivery: 1, lock: 0 });
    let (paged, turn) = (in_page(33, 7), Turn { copy: 33, delivery: 1, lock: 0 });
    let mut log = head(4);
    assert!(!skips_overdue(&mut log, &[301, 350, 400, 450, 495]));
    assert!(matches!(log.claim_position(&last, last_turn, later(496)), Position::Behind { .. }));
    assert!(
        skips_overdue(&mut log, &[501]),
        "the head is given up, but for its last job, which has answered"
    );
    assert_eq!(log.claim_position(&last, last_turn, later(502)), Position::First);
    assert_eq!(log.position(&paged, turn, later(502)), None, "to be recorded");
    let behind = Position::Behind { ahead: 1, overdue: false };
    assert_eq!(log.claim_position(&paged, turn, later(502)), behind);
    assert_eq!(log.position(&paged, turn, later(502)), Some(behind), "it is recorded");
    assert!(log.end(&last, last_turn, EndState::Done, later(503)));
    log.adopt(key(), 7, &page(&sends(33..65)).close(), later(503));
    assert!(!skips_overdue(&mut log, &[504, 505]), "the jobs of page 7 lose their positions");
    assert_eq!(log.claim_position(&paged, turn, later(506)), Position::First);
}

#[test]
fn second_message_of_a_job_that_is_done_waits_for_its_page() {
    let mut log = head(1);
    let first = Turn { copy: 1, delivery: 1, lock: 0 };
    assert_eq!(log.claim_position(&send(1).entry, first, START), Position::First);
    assert!(log.end(&send(1).entry, first, EndState::Done, START));
    // The page has its own entry, which would be left over.
    let (again, turn) = (in_page(1, 7), Turn { copy: 101, delivery: 1, lock: 0 });
    let behind = Position::Behind { ahead: 31, overdue: false };
    assert_eq!(log.claim_position(&again, turn, START), behind);
    log.adopt(key(), 7, &page(&[Announcement { nonce: 101, ..send(1) }]).close(), START);
    assert_eq!(log.claim_position(&again, turn, START), Position::Ended(EndState::Done));
}

#[test]
fn later_sends_come_behind_a_job_that_was_moved_to_the_tail() {
    let mut log = head(2);
    assert!(log.find(&send(5).entry).map(|at| log.skip(at)).is_some());
    assert!(!log.has_record_of(&send(5).entry), "a repeated send gets a position in the last page");
    assert_eq!(log.confirm(&send(5).entry, 5, true, START), Confirmed::Acknowledged);
    assert_eq!(log.last_page(key()), None, "the pages are before the job that was acknowledged late");
    assert_eq!(log.passed_page(key()), Some(8), "it takes no later sends");
    assert_eq!(log.announce_all(&[send(100)], START), Err(AnnounceRefusal::Full));
    assert!(log.link(key(), None, 900), "a separate page");
    assert_eq!(log.last_page(key()), Some(900));
    assert_eq!(log.passed_page(key()), None);
}

#[test]
fn head_with_pages_keeps_its_text_short_and_no_older_version_reads_it() {
    let mut log = head(3_000);
    for number in 1..2_000 {
        let other = EntryRef::new("b", &Identity::new("/test", number.to_string()));
        log.note_ended(&other, EndState::Done);
    }
    let text = serde_json::to_string(&log).unwrap();
    assert!(text.len() < 10_000, "{} bytes", text.len());
    assert!(text.contains(r#""s":"p""#), "an unknown state is an error of the older version");
    assert_eq!(serde_json::from_str::<GroupLog>(&text).unwrap().entries, log.entries);
}
