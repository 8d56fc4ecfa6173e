//! Commands on the storages of several contexts.

use std::process::Output;

use serde_json::Value;

use crate::serve::Served;
use crate::shape::check;
use crate::support::{Sandbox, error_text, fill};

/// Returns a sandbox with the contexts `prod`, which has a dead letter, `staging`, and `gone`, whose file is
/// missing.
fn sandbox() -> Sandbox {
    let sandbox = Sandbox::with_mails(2, 1);
    let file = |name: &str| format!("sqlite:{}", sandbox.path(name).display());
    fill(&file("staging.db"), 1, 0);
    sandbox.configure(&format!(
        "[contexts.prod]\nstorage = '{}'\naccess = 'read_only'\n[contexts.staging]\nstorage = '{}'\n[contexts.gone]\nstorage = '{}'\n",
        sandbox.storage,
        file("staging.db"),
        file("gone.db"),
    ));
    sandbox
}

fn run(sandbox: &Sandbox, arguments: &[&str], contexts: &[&str]) -> Output {
    let contexts = contexts.iter().flat_map(|name| ["--context", *name]);
    sandbox.without_storage(arguments).args(contexts).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn document(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The alert that names a command may be about another storage.
#[test]
fn command_names_the_default_context_that_it_reads() {
    let sandbox = sandbox();
    let path = sandbox.path(".config/jobqueue/config.toml");
    let contexts = std::fs::read_to_string(&path).unwrap();
    sandbox.configure(&format!("default = 'staging'\n{contexts}"));
    let by_default = run(&sandbox, &["queues"], &[]);
    assert!(error_text(&by_default).contains("default context `staging`"), "{}", error_text(&by_default));
    let chosen = run(&sandbox, &["queues"], &["staging"]);
    assert_eq!(error_text(&chosen), "");
    let doctor = text(&run(&sandbox, &["doctor"], &[]));
    assert!(doctor.contains("staging.db has 1 queue"), "{doctor}");
}

#[test]
fn commands_to_copy_work_on_the_same_storage() {
    let sandbox = sandbox();
    let doctor = text(&run(&sandbox, &["doctor"], &["prod", "staging"]));
    assert!(doctor.contains("`jobqueue --context=prod dead list mails`"), "{doctor}");
    let storage = format!("--storage={}", sandbox.storage);
    let doctor = sandbox.without_storage(&["doctor", &storage]).output().unwrap();
    let command = format!("`jobqueue {storage} dead list mails`");
    assert!(text(&doctor).contains(&command), "{}", text(&doctor));
}

// An operator runs `doctor` on a machine that has problems.
#[test]
fn doctor_needs_no_audit_file() {
    let sandbox = sandbox();
    let doctor = run(&sandbox, &["doctor", "--audit-file", "/no/such/folder/audit"], &["staging"]);
    assert!(doctor.status.success(), "{}", error_text(&doctor));
}

#[test]
fn queues_of_several_contexts_are_one_list() {
    let sandbox = sandbox();
    let output = run(&sandbox, &["queues"], &["prod", "staging"]);
    assert!(output.status.success(), "{}", error_text(&output));
    let text = text(&output);
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0][..3], ["CONTEXT", "QUEUE", "WAITING"], "{text}");
    assert_eq!(rows[1][..3], ["prod", "mails", "2"], "{text}");
    assert_eq!(rows[2][..3], ["staging", "mails", "1"], "{text}");
    let queues = document(&run(&sandbox, &["queues", "-o", "json"], &["prod", "staging"]));
    check("queues", &queues);
    assert_eq!(queues[0]["context"], "prod");
    assert_eq!(queues[0]["dead_letters"], 1);
    assert_eq!(queues[1]["context"], "staging");
    assert_eq!(queues[1]["dead_letters"], 0);
    // With one context, the items have no field `context`.
    let queues = document(&run(&sandbox, &["queues", "-o", "json"], &["staging"]));
    assert_eq!(queues[0].get("context"), None);
    assert_eq!(run(&sandbox, &["workers"], &["prod", "staging"]).status.code(), Some(0));
}

#[test]
fn failed_context_is_listed_with_the_others() {
    let sandbox = sandbox();
    for command in ["queues", "workers"] {
        let output = run(&sandbox, &[command], &["gone", "staging"]);
        assert_eq!(output.status.code(), Some(1), "{command}");
        assert!(error_text(&output).contains("1 context could not be read: gone"), "{}", error_text(&output));
        let text = text(&output);
        let row = text.lines().find(|line| line.starts_with("gone ")).unwrap();
        assert!(row.contains(" ?") && row.contains("there is no file"), "{text}");
        let output = run(&sandbox, &[command, "-o", "json"], &["gone", "staging"]);
        assert_eq!(output.status.code(), Some(1), "{command}");
        check(command, &document(&output));
        assert_eq!(document(&output)[0]["context"], "gone");
    }
    let queues = document(&run(&sandbox, &["queues", "-o", "json"], &["gone", "staging"]));
    assert_eq!(queues[1]["length"], 1);
    let output = run(&sandbox, &["doctor", "-o", "json"], &["staging", "gone"]);
    assert_eq!(output.status.code(), Some(1));
    let checks = document(&output);
    check("checks", &checks);
    assert_eq!(checks[0]["context"], "gone");
    assert_eq!(checks[0]["verdict"], "failed");
    assert!(checks.as_array().unwrap()[1..].iter().all(|check| check["context"] == "staging"), "{checks}");
    assert!(!sandbox.path("gone.db").exists());
}

/// A storage with a wrong configuration is never opened later, so the list would always show its first
/// failure.
#[test]
fn watching_needs_every_context() {
    let sandbox = sandbox();
    let output = run(&sandbox, &["queues", "--watch"], &["staging", "gone"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(error_text(&output).contains("the context `gone` cannot be opened"), "{}", error_text(&output));
}

#[test]
fn other_commands_refuse_several_contexts() {
    let sandbox = sandbox();
    let contexts = ["staging", "prod"];
    let commands: [&[&str]; 4] =
        [&["queue", "pause", "mails"], &["dead", "purge", "mails", "--all"], &["sweep"], &["peek", "mails"]];
    for command in commands {
        let output = run(&sandbox, command, &contexts);
        assert_eq!(output.status.code(), Some(2), "{command:?}");
        assert!(error_text(&output).contains("give one --context"), "{}", error_text(&output));
    }
    let twice = run(&sandbox, &["queues"], &["prod", "prod"]);
    assert_eq!(twice.status.code(), Some(2));
    assert!(error_text(&twice).contains("`prod` twice"), "{}", error_text(&twice));
    let unknown = run(&sandbox, &["queues"], &["prod", "live"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(error_text(&unknown).contains("no context `live`"), "{}", error_text(&unknown));
}

#[test]
fn several_contexts_are_served_as_one_dashboard() {
    let sandbox = sandbox();
    let served = Served::start(&sandbox, &["--context", "prod", "--context", "staging"], &[]);
    let page = served.get("/");
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("./prod/dead\">1</a>"), "{page}");
    assert!(served.get("/staging/dead").contains("staging · jobqueue</title>"));
    assert!(served.get("/prod/metrics").contains("jobqueue_queue_dead_letters{queue=\"mails\"} 1"));
    for path in ["/live", "/ready"] {
        assert!(served.get(path).starts_with("HTTP/1.1 200"), "{path}");
    }
    // The access of a context applies to its own pages only.
    for (path, status) in [("/prod/do/pause", 403), ("/staging/do/pause", 303)] {
        let answer = served.pause_at(path);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{path}: {answer}");
    }
    let output = run(&sandbox, &["serve"], &["staging", "gone"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(error_text(&output).contains("the context `gone` cannot be opened"), "{}", error_text(&output));
}
