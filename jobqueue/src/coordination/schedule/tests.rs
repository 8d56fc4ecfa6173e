use jiff::Timestamp;

use super::timetable::Timetable;
use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn slots(expression: &str, from: &str, count: usize) -> Vec<String> {
    let table = Timetable::cron(expression, "Europe/Berlin").unwrap();
    let next = |moment: &Timestamp| table.next_after(*moment);
    std::iter::successors(Some(at(from)), next).skip(1).take(count).map(|slot| slot.to_string()).collect()
}

#[test]
fn time_skipped_in_spring_is_the_first_instant_after() {
    let found = slots("30 2 * * *", "2026-03-28T12:00:00Z", 2);
    assert_eq!(found, ["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]);
}

#[test]
fn time_that_occurs_twice_in_autumn_fires_once() {
    let found = slots("30 2 * * *", "2026-10-24T12:00:00Z", 2);
    assert_eq!(found, ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]);
}

#[test]
fn times_named_by_lists_and_ranges_come_once_on_the_days_of_the_change() {
    let spring = |expression| slots(expression, "2026-03-28T23:00:00Z", 3);
    assert_eq!(
        spring("30 2,14 * * *"),
        ["2026-03-29T01:00:00Z", "2026-03-29T12:30:00Z", "2026-03-30T00:30:00Z"]
    );
    assert_eq!(
        spring("0,30 2 * * *"),
        ["2026-03-29T01:00:00Z", "2026-03-30T00:00:00Z", "2026-03-30T00:30:00Z"]
    );
    assert_eq!(
        spring("0 1-3 * * *"),
        ["2026-03-29T00:00:00Z", "2026-03-29T01:00:00Z", "2026-03-29T23:00:00Z"]
    );
    let autumn = |expression| slots(expression, "2026-10-24T22:00:00Z", 3);
    assert_eq!(
        autumn("30 2,14 * * *"),
        ["2026-10-25T00:30:00Z", "2026-10-25T13:30:00Z", "2026-10-26T01:30:00Z"]
    );
    assert_eq!(
        autumn("0,30 2 * * *"),
        ["2026-10-25T00:00:00Z", "2026-10-25T00:30:00Z", "2026-10-26T01:00:00Z"]
    );
    assert_eq!(
        autumn("0 0 2,3 * * *"),
        ["2026-10-25T00:00:00Z", "2026-10-25T02:00:00Z", "2026-10-26T01:00:00Z"]
    );
    // Steps follow real time: two in the morning occurs twice.
    assert_eq!(
        autumn("0 2-23/21 * * *"),
        ["2026-10-25T00:00:00Z", "2026-10-25T01:00:00Z", "2026-10-25T22:00:00Z"]
    );
}

#[test]
fn due_slots_of_a_list_of_hours_are_those_that_come() {
    let table = Timetable::cron("30 2,14 * * *", "Europe/Berlin").unwrap();
    let due = table.due(at("2026-10-24T23:00:00Z"), at("2026-10-26T02:00:00Z"), 9);
    assert_eq!(due, ["2026-10-25T00:30:00Z", "2026-10-25T13:30:00Z", "2026-10-26T01:30:00Z"].map(at));
}

#[test]
fn due_slots_are_those_that_come_one_after_the_other() {
    for expression in [
        "30 2,14 * * *",
        "0,30 0-23 * * *",
        "0 1-4 * * *",
        "*/20 * * * *",
        "0 * * * *",
        "30 2 * * *",
        "0 2-23/21 * * *",
    ] {
        let table = Timetable::cron(expression, "Europe/Berlin").unwrap();
        for (done, now) in [
            ("2026-03-28T12:00:00Z", "2026-03-30T12:00:00Z"),
            ("2026-10-24T12:00:00Z", "2026-10-26T12:00:00Z"),
        ] {
            let next = |moment: &Timestamp| table.next_after(*moment);
            let all = std::iter::successors(Some(at(done)), next).skip(1).take_while(|slot| *slot <= at(now));
            assert_eq!(
                table.due(at(done), at(now), usize::MAX),
                all.collect::<Vec<_>>(),
                "{expression} after {done}"
            );
        }
    }
}

#[test]
fn due_slots_are_the_newest_in_order_and_bounded() {
    let table = Timetable::every(Duration::from_secs(60)).unwrap();
    let due = table.due(at("2026-01-01T00:00:00Z"), at("2026-01-01T01:00:30Z"), 2);
    assert_eq!(due, [at("2026-01-01T00:59:00Z"), at("2026-01-01T01:00:00Z")]);
    // After a clock is set back, nothing is due.
    assert!(table.due(at("2026-01-01T01:00:00Z"), at("2026-01-01T00:30:00Z"), 9).is_empty());
}

#[test]
fn mistakes_are_reported() {
    assert!(Timetable::cron("61 * * * *", "UTC").is_err());
    assert!(Timetable::cron("0 6 * * *", "Europe/Berlim").is_err());
    assert!(Timetable::cron("0 0 30 2 *", "UTC").is_err());
    assert!(Timetable::every(Duration::from_millis(10)).is_err());
}

#[test]
fn unnamed_schedule_keeps_its_name_when_its_kind_is_renamed() {
    #[derive(serde::Serialize, serde::Deserialize, jobqueue_derive::QueueMessage)]
    #[message(queue = "reports", kind = "report", crate = "crate")]
    struct Old {}
    #[derive(serde::Serialize, serde::Deserialize, jobqueue_derive::QueueMessage)]
    #[message(queue = "reports", kind = "report.daily", alias = "report", crate = "crate")]
    struct New {}
    let schedule = || Schedule::every(Duration::from_secs(60));
    let old = schedule().into_runner(|_| Old {}).unwrap();
    let new = schedule().into_runner(|_| New {}).unwrap();
    assert_eq!(old.name, new.name);
}
