//! The distance of the storage in tests with planned faults: that of Azure, but for the places listed here.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::root;

/// The calls of `Faulty::quiet` by file. A comment above each says why the test needs a storage without
/// latency: a refusal that certainly changed nothing, an immediate answer, real time, or too many calls.
const QUIET: &[(&str, usize)] = &[
    ("jobqueue/src/history/tests.rs", 2),
    ("jobqueue/src/history/tests/continued.rs", 1),
    ("jobqueue/src/lease/operation/tests.rs", 1),
    ("jobqueue/src/lease/renewer_thread/tests.rs", 1),
    ("jobqueue/src/queue_core/settings_cache.rs", 1),
    ("tests/tests/coordination/batch_faults/sweep.rs", 1),
    ("tests/tests/coordination/fail_over/schedule.rs", 1),
    ("tests/tests/coordination/order/mod.rs", 1),
    ("tests/tests/coordination/order/records.rs", 1),
    ("tests/tests/crashes/process.rs", 1),
    ("tests/tests/delivery/effects.rs", 1),
    ("tests/tests/delivery/invariants/delivery.rs", 1),
    ("tests/tests/delivery/invariants/durable.rs", 1),
    ("tests/tests/delivery/invariants/order.rs", 1),
    ("tests/tests/delivery/invariants/rubbish.rs", 1),
    ("tests/tests/delivery/lease_faults.rs", 1),
    ("tests/tests/delivery/limits/queues.rs", 1),
    ("tests/tests/delivery/redrive_outages.rs", 1),
    ("tests/tests/delivery/shared_dead_letters.rs", 1),
    ("tests/tests/logs/library.rs", 1),
    ("tests/tests/operate/admin/batch_children.rs", 2),
    ("tests/tests/operate/admin/cancel_many.rs", 8),
    ("tests/tests/operate/admin/cancel_notices.rs", 3),
    ("tests/tests/operate/admin/crowds.rs", 1),
    ("tests/tests/operate/admin/jobs.rs", 1),
    ("tests/tests/operate/admin/outcome.rs", 1),
    ("tests/tests/operate/admin/queues.rs", 1),
    ("tests/tests/port/sharded_arrivals.rs", 2),
    ("tests/tests/port/sharded_maps.rs", 7),
    ("tests/tests/port/throttling.rs", 2),
    ("tests/tests/postgres/opening.rs", 1),
    ("tests/tests/postgres/relay.rs", 1),
    ("tests/tests/servicebus/clocks.rs", 1),
    ("tests/tests/servicebus/dead_letters.rs", 1),
    ("tests/tests/servicebus/late_answers.rs", 2),
    ("tests/tests/servicebus/outages.rs", 8),
    ("tests/tests/servicebus/put_backs.rs", 1),
    ("tests/tests/servicebus/until_idle.rs", 1),
    ("tests/tests/servicebus/waiting_gets.rs", 1),
];

/// The files whose tests judge how all ends while calls fail at random.
const FAILING: &[&str] =
    &["tests/tests/coordination/order/storages.rs", "tests/tests/coordination/order/stress.rs"];

fn rust_files(folder: &Path, files: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
            files.insert(name, fs::read_to_string(path).unwrap());
        }
    }
}

/// Returns the sources of all tests; that of this file is none.
fn sources() -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    for folder in ["tests/tests", "tests/src", "jobqueue/src", "crates/opentelemetry/tests"] {
        rust_files(&root().join(folder), &mut files);
    }
    files.retain(|name, _| !name.ends_with("fault_profile.rs"));
    files
}

#[test]
fn fault_tests_run_at_the_distance_of_azure() {
    let mut quiet = Vec::new();
    let mut distant = 0;
    for (name, text) in sources() {
        let lines: Vec<_> = text.lines().collect();
        let places: Vec<_> = (0..lines.len()).filter(|&at| lines[at].contains("Faulty::quiet")).collect();
        for at in &places {
            let comment = lines[..*at].iter().rev().map(|line| line.trim_start());
            let mut comment = comment.take_while(|line| line.starts_with("//"));
            assert!(comment.any(|line| line.starts_with("// Quiet: ")), "{name}:{}: say why", at + 1);
        }
        if !places.is_empty() {
            quiet.push((name.clone(), places.len()));
        }
        distant +=
            text.matches("Faulty::new(").count() + text.matches("Faulty::deleting_one_by_one(").count();
        // Nobody replaces the delays.
        assert!(!text.contains(".behave("), "{name}");
    }
    let listed: Vec<_> = QUIET.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
    assert_eq!(quiet, listed);
    assert!(distant > 140, "{distant} tests and helpers use the storage at its distance");
}

#[test]
fn tests_of_outcomes_run_while_calls_fail_at_random() {
    let failing: Vec<_> = sources()
        .into_iter()
        .filter(|(_, text)| text.contains("Faulty::with_profile("))
        .map(|(name, _)| name)
        .collect();
    assert_eq!(failing, FAILING);
}
