//! The audit finds what it looks for: books in which something went wrong.

use super::audit::audit;
use super::history::History;
use super::ledger::Entry;

/// Returns the audit of these entries: `process what job`, one per line, in order of time.
fn problems(book: &str) -> Vec<String> {
    let entry = |(at, line): (usize, &str)| {
        let mut words = line.split_whitespace().map(str::to_owned);
        let (process, what) = (words.next().unwrap(), words.next().unwrap());
        // `saved:2` is the entry `saved` with the number 2.
        let (what, number) = what.split_once(':').map_or((&*what, 0), |(what, n)| (what, n.parse().unwrap()));
        let (what, job) = (what.to_owned(), words.next().unwrap_or_default());
        Entry { at: at as u128, process, what, number, job }
    };
    audit(&History::of(book.trim().lines().enumerate().map(entry).collect()))
}

#[track_caller]
fn finds(problem: &str, book: &str) {
    let found = problems(book);
    assert!(found.iter().any(|found| found.contains(problem)), "{problem}: {found:?}");
}

const DONE: &str = "p intend s-t-1\np sent s-t-1\nw start s-t-1\nw end s-t-1\nw completed s-t-1\n";

#[test]
fn books_without_a_fault_are_balanced() {
    assert_eq!(problems(&format!("{DONE}drain quiet")), [""; 0]);
}

#[test]
fn a_lost_job_is_found() {
    finds("lost", "p intend s-t-1\np sent s-t-1\ndrain quiet");
}

#[test]
fn a_refused_job_that_ran_is_found() {
    finds("certainly not stored", "p intend s-t-1\np refused s-t-1\nw start s-t-1");
}

#[test]
fn a_job_that_nobody_sent_is_found() {
    finds("never sent", "w start s-t-1\nw end s-t-1");
}

#[test]
fn a_delivery_after_the_deletion_is_found() {
    finds("after its deletion", &format!("{DONE}v start s-t-1"));
}

#[test]
fn a_duplicate_without_a_cause_is_found() {
    let twice = "p intend s-t-1\np sent s-t-1\nw start s-t-1\nv start s-t-1\nw end s-t-1\nv end s-t-1\n";
    finds("without a cause", &format!("{twice}w completed s-t-1\nv completed s-t-1"));
    // The last worker is not killed, and says how each delivery ended.
    finds("without a cause", &format!("{DONE}drain-9 start s-t-1\ndrain-9 end s-t-1"));
}

#[test]
fn a_duplicate_after_a_kill_has_a_cause() {
    let killed = "p intend s-t-1\np sent s-t-1\nv start s-t-1\nv end s-t-1\n";
    assert_eq!(problems(&format!("{killed}{DONE}drain quiet")), [""; 0]);
}

#[test]
fn a_key_out_of_order_is_found() {
    let sent = "p intend s-o1-a\np sent s-o1-a\np intend s-o1-b\np sent s-o1-b\n";
    finds("out of order", &format!("{sent}w start s-o1-b\nw end s-o1-b\nw start s-o1-a\nw end s-o1-a"));
}

#[test]
fn a_batch_that_does_not_go_on_is_found() {
    finds("never ran", "p begin b-1\np sealed b-1\ndrain quiet");
}

#[test]
fn a_continuation_before_its_children_is_found() {
    finds("a child was lost", "p begin b-1\np sealed b-1\nw start b-1\nw end b-1\nw completed b-1");
}

#[test]
fn a_damaged_payload_is_found() {
    finds("damaged", &format!("{DONE}w damaged s-t-1"));
}

#[test]
fn a_run_that_resumes_too_early_is_found() {
    let book = |stage| {
        format!(
            "p intend c-t-1\np sent c-t-1\nw start c-t-1\nw saved:2 c-t-1\nv start:{stage} c-t-1\nv end c-t-1\nv completed c-t-1\ndrain quiet"
        )
    };
    finds("resumed before what was acknowledged", &book(1));
    assert_eq!(problems(&book(2)), [""; 0]);
}

#[test]
fn a_crash_that_costs_an_attempt_is_found() {
    finds("cost an attempt", &format!("{DONE}w attempt:2 s-t-1"));
    // Also of a job that has failed before.
    finds("cost an attempt", &format!("{DONE}w failed s-t-1\nw attempt:3 s-t-1"));
}

#[test]
fn a_run_beside_the_owner_is_found() {
    let book = "p intend s-t-1\np sent s-t-1\nw start s-t-1\nv start s-t-1\nw end s-t-1\nw completed s-t-1";
    finds("beside a run", book);
    let book = "p intend s-t-1\np sent s-t-1\nw start s-t-1\nw end s-t-1\nv start s-t-1\nw completed s-t-1";
    finds("beside a run", book);
    // Its deletion got no answer, and its message comes to it again: it is deleted as a duplicate.
    let book = "p intend s-t-1\np sent s-t-1\nw start s-t-1\nw end s-t-1\nw completed_uncertain s-t-1\nv start s-t-1\nw duplicate s-t-1";
    assert!(!problems(book).iter().any(|found| found.contains("beside a run")), "{:?}", problems(book));
}
