//! The output of each command as JSON, as lines of JSON and as a table.

use serde_json::Value;

use crate::shape::check;
use crate::support::{Sandbox, hold, reject_all};

#[test]
fn output_of_each_command_matches_its_schema() {
    let sandbox = Sandbox::with_mails(2, 3);
    let copy = sandbox.path("copy.db");
    let commands: &[(&str, &[&str])] = &[
        ("queues", &["queues"]),
        ("queue", &["queue", "show", "mails"]),
        ("queue_change", &["queue", "create", "letters"]),
        ("queue_change", &["queue", "pause", "letters"]),
        (
            "queue_change",
            &["queue", "pause", "letters", "--replace", "--for", "2h", "--note", "the bank is down"],
        ),
        ("queue", &["queue", "show", "letters"]),
        ("queue_change", &["queue", "resume", "letters"]),
        ("settings_plan", &["queue", "settings", "plan", "mails", "poisonthreshold=7"]),
        ("settings_plan", &["queue", "settings", "apply", "mails", "poisonthreshold=7"]),
        ("jobs", &["peek", "mails"]),
        ("jobs", &["peek", "mails", "--deep", "--yes"]),
        ("dead_letters", &["dead", "list", "mails"]),
        ("dead_letters", &["dead", "list", "mails", "--deep", "--reason", "rejected"]),
        ("dead_letters", &["dead", "stats", "mails"]),
        ("job", &["dead", "show", "mails", "dead-1"]),
        ("payload", &["dead", "show", "mails", "dead-1", "--payload"]),
        ("bulk_report", &["dead", "redrive", "mails", "--all", "--dry-run"]),
        ("bulk_report", &["dead", "redrive", "mails", "--id", "dead-1"]),
        ("bulk_report", &["dead", "purge", "mails", "--id", "dead-2", "--yes"]),
        ("cancel_plan", &["cancel", "mails", "--kind", "mail", "--dry-run"]),
        ("cancel_report", &["cancel", "mails", "--kind", "mail"]),
        ("sweep", &["sweep"]),
        ("backup", &["backup", copy.to_str().unwrap()]),
    ];
    for (definition, arguments) in commands {
        check(definition, &sandbox.json(arguments));
    }
    assert_eq!(sandbox.counts(), (3, 1));
}

#[test]
fn job_that_died_twice_matches_its_schema() {
    let sandbox = Sandbox::with_mails(0, 1);
    sandbox.ok(&["dead", "redrive", "mails", "--all"]);
    reject_all(&sandbox.storage);
    let letter = sandbox.json(&["dead", "show", "mails", "dead-0"]);
    check("job", &letter);
    assert_eq!(letter["past"].as_array().unwrap().len(), 1);
    assert!(sandbox.ok(&["dead", "show", "mails", "dead-0"]).contains("earlier dead letter"));
}

#[test]
fn lines_of_json_are_the_items_of_the_list() {
    let sandbox = Sandbox::with_mails(2, 1);
    for (definition, arguments) in [("queue", vec!["queues"]), ("job", vec!["peek", "mails"])] {
        let text = sandbox.ok(&[&arguments[..], &["-o", "ndjson"]].concat());
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(!lines.is_empty());
        lines.iter().for_each(|line| check(definition, line));
    }
}

#[test]
fn table_of_queues_has_a_row_for_each_queue() {
    let sandbox = Sandbox::with_mails(2, 3);
    sandbox.ok(&["queue", "pause", "mails"]);
    let text = sandbox.ok(&["queues"]);
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["QUEUE", "WAITING", "RUNNING", "HIDDEN", "OLDEST", "DEAD", "STATE"]);
    assert_eq!(rows[1][0], "mails", "{text}");
    assert_eq!(rows[1][1], "2", "{text}");
    assert_eq!(rows[1][2], "0", "{text}");
    assert_eq!(rows[1][3], "0", "{text}");
    assert!(text.contains("paused") && !text.contains('\u{1b}'), "{text}");
}

#[test]
fn jobs_of_a_queue_are_counted_by_state() {
    let sandbox = Sandbox::with_mails(2, 1);
    let file = sandbox.path("late.json");
    std::fs::write(&file, "{}").unwrap();
    sandbox.ok(&["send", "mails", "--kind", "mail", "--delay", "1h", "--file", file.to_str().unwrap()]);
    assert_eq!(hold(&sandbox.storage, "mails", 1), 1);
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let queues = sandbox.ok(&["queues"]);
    let row = words(queues.lines().nth(1).unwrap());
    assert_eq!(row[..4], ["mails", "1", "1", "1"], "{queues}");
    assert_eq!(row[5], "1", "{queues}");
    let queue = sandbox.ok(&["queue", "show", "mails"]);
    let field = |name: &str| queue.lines().find(|line| line.starts_with(name)).map(words).unwrap();
    assert_eq!(field("length"), ["length", "3"], "{queue}");
    assert_eq!(field("waiting"), ["waiting", "1"], "{queue}");
    assert_eq!(field("running"), ["running", "1"], "{queue}");
    assert_eq!(field("hidden"), ["hidden", "1", "delayed,", "0", "backing", "off"], "{queue}");
}

#[test]
fn untrusted_texts_cannot_control_the_terminal() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["queue", "create", "mails"]);
    let file = sandbox.path("hostile.json");
    std::fs::write(&file, "{}").unwrap();
    let file = file.to_str().unwrap();
    sandbox.ok(&["send", "mails", "--kind", "\u{1b}[2J\u{202e}<script>", "--file", file]);
    let text = sandbox.ok(&["peek", "mails"]);
    assert!(text.contains("\\u{1b}[2J\\u{202e}<script>"), "{text}");
    assert!(!text.contains('\u{1b}') && !text.contains('\u{202e}'), "{text}");
}

#[test]
fn settings_are_planned_and_applied() {
    let sandbox = Sandbox::with_mails(1, 0);
    let plan = ["queue", "settings", "plan", "mails", "poisonthreshold=7", "--check"];
    assert_eq!(sandbox.run(&plan).status.code(), Some(5), "drift");
    sandbox.ok(&["queue", "settings", "apply", "mails", "poisonthreshold=7"]);
    assert_eq!(sandbox.ok(&plan), "nothing to change\n");
    assert_eq!(sandbox.json(&["queue", "show", "mails"])["settings"]["poisonthreshold"], "7");
}

#[test]
fn watching_repeats_until_a_signal() {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;

    let sandbox = Sandbox::with_mails(1, 0);
    let mut command = sandbox.command(&["queues", "--watch", "--interval", "100ms", "-o", "ndjson"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for _ in 0..3 {
        check("queue", &serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap());
    }
    crate::bulk::interrupt(&child);
    // The pipe stays open, so that only the signal ends the program.
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn watched_table_has_the_time_of_its_read() {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;

    let sandbox = Sandbox::with_mails(1, 0);
    let mut child = sandbox.command(&["queues", "--watch"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = lines.next().unwrap().unwrap();
    assert!(line.parse::<jiff::Timestamp>().is_ok(), "{line}");
    assert!(lines.next().unwrap().unwrap().starts_with("QUEUE"));
    crate::bulk::interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn closed_pipe_ends_quietly() {
    let sandbox = Sandbox::with_mails(40, 0);
    let script = format!("'{}' peek mails -o json | head -c 1", env!("CARGO_BIN_EXE_jobqueue"));
    let mut shell = std::process::Command::new("sh");
    let output = shell.args(["-c", &script]).env("JOBQUEUE_STORAGE", &sandbox.storage).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}
