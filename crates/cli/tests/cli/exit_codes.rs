//! Exit codes, contexts, and secrets.

use crate::support::{Sandbox, error_text};

#[test]
fn exit_codes_identify_the_kind_of_failure() {
    let sandbox = Sandbox::with_mails(1, 1);
    let broken = sandbox.path("broken.db");
    std::fs::write(&broken, "no database").unwrap();
    let broken = format!("sqlite:{}", broken.display());
    let missing = format!("sqlite:{}", sandbox.path("missing.db").display());
    let cases: &[(i32, &[&str])] = &[
        (0, &["queues"]),
        (1, &["queues", "--storage", &broken]),
        (2, &["queues", "--storage", "nonsense"]),
        (2, &["queue", "show", "Not_A_Name"]),
        (2, &["no-such-command"]),
        (3, &["queue", "show", "no-such-queue"]),
        (3, &["dead", "show", "mails", "no-such-job"]),
        (3, &["explain", "mails", "no-such-job"]),
        (3, &["history", "--id", "no-such-job"]),
        (2, &["history", "--outcome", "failed"]),
        (0, &["history", "--older-than", "1d", "--until", "2026-11-22T15:00:00Z"]),
        (2, &["queue", "settings", "plan", "mails", "poisonthreshold=3", "PoisonThreshold=4"]),
        (2, &["peek", "mails", "--state", "waiting", "--limit", "0"]),
        (2, &["peek", "mails", "--state", "waiting", "--from", "nowhere"]),
        (2, &["send", "mails-poison", "--kind", "mail", "--file", "/dev/null"]),
        (2, &["dead", "resend", "mails", "dead-0", "--to", "mails-poison"]),
        (3, &["cancel", "mails", "--source", "/nobody"]),
        (5, &["queue", "settings", "plan", "mails", "poisonthreshold=9", "--check"]),
        (2, &["queues", "--storage", &missing]),
        (4, &["dead", "purge", "mails", "--all"]),
        (4, &["peek", "mails", "--deep"]),
    ];
    for (code, arguments) in cases {
        let output = sandbox.run(arguments);
        assert_eq!(output.status.code(), Some(*code), "{arguments:?}: {}", error_text(&output));
        let error = error_text(&output);
        assert!(
            *code == 0 || error.lines().any(|line| line.starts_with("error: ")),
            "{arguments:?}: {error}"
        );
    }
    assert!(!sandbox.path("missing.db").exists(), "a command that reads has created a storage");
    assert_eq!(sandbox.counts(), (1, 1));
}

// K42
#[test]
fn closed_pipe_hides_no_failure() {
    let sandbox = Sandbox::with_mails(1, 1);
    let plan = sandbox.path("plan");
    let plan = plan.to_str().unwrap();
    sandbox.ok(&["dead", "purge", "mails", "--all", "--dry-run", "--plan", plan]);
    sandbox.ok(&["dead", "purge", "mails", "--all", "--yes"]);
    let cases: &[(i32, &[&str])] = &[
        (0, &["queues"]),
        (1, &["doctor", "--strict", "--queue", "no-such-queue"]),
        (3, &["explain", "mails", "no-such-job"]),
        (3, &["history", "--id", "no-such-job"]),
        (3, &["dead", "purge", "mails", "--yes", "--plan", plan]),
        (5, &["queue", "settings", "plan", "mails", "poisonthreshold=9", "--check"]),
        (2, &["send", "mails", "--ndjson", "--kind", "mail", "--file", "/bin/sh"]),
    ];
    for (code, arguments) in cases {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = sandbox.command(&[arguments, &["-o", "json"][..]].concat());
        let output = command.stdout(writer).output().unwrap();
        assert_eq!(output.status.code(), Some(*code), "{arguments:?}: {}", error_text(&output));
    }
}

#[test]
fn variable_that_is_no_text_is_not_taken_for_unset() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let sandbox = Sandbox::with_mails(0, 0);
    sandbox.configure(&format!("default = 'live'\n[contexts.live]\nstorage = '{}'\n", sandbox.storage));
    let no_text = OsStr::from_bytes(b"sqlite:/tmp/d\xe9v.db");
    for (variable, arguments) in [
        ("JOBQUEUE_STORAGE", &["queues"][..]),
        ("PGSSLMODE", &["queues", "--storage", "postgres://localhost/shop"]),
        (
            "JOBQUEUE_METRICS_TOKEN",
            &["serve", "--read-only", "--storage", &sandbox.storage, "--listen", "127.0.0.1:0"],
        ),
    ] {
        let output = sandbox.without_storage(arguments).env(variable, no_text).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{variable}: {}", error_text(&output));
        assert!(error_text(&output).contains(variable), "{}", error_text(&output));
    }
}

#[test]
fn error_for_a_missing_storage_says_how_to_choose_it() {
    let sandbox = Sandbox::new();
    let output = sandbox.without_storage(&["queues"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(error_text(&output).contains("JOBQUEUE_STORAGE"), "{}", error_text(&output));
}

// The blobs may be in another storage than the queues.
#[test]
fn command_that_reads_creates_no_storage() {
    let sandbox = Sandbox::new();
    let missing = sandbox.path("missing.db");
    let file = format!("sqlite:{}", missing.display());
    let queues = "Endpoint=sb://localhost/;SharedAccessKeyName=n;SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true";
    for storage in [file.clone(), format!("{queues};Blobs={file}")] {
        let output = sandbox.without_storage(&["queues"]).env("JOBQUEUE_STORAGE", &storage).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{storage}: {}", error_text(&output));
        assert!(error_text(&output).contains("there is no file"), "{}", error_text(&output));
        assert!(!missing.exists(), "{storage}");
    }
    std::fs::File::create(&missing).unwrap();
    let output = sandbox.without_storage(&["queues"]).env("JOBQUEUE_STORAGE", &file).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", error_text(&output));
    assert!(error_text(&output).contains("no jobqueue tables"), "{}", error_text(&output));
    assert_eq!(missing.metadata().unwrap().len(), 0, "no tables were made in an empty file");
}

#[test]
fn default_context_is_for_reading_only() {
    let sandbox = Sandbox::with_mails(1, 0);
    sandbox.configure(&format!("default = 'local'\n[contexts.local]\nstorage = '{}'\n", sandbox.storage));
    let run = |arguments: &[&str]| sandbox.without_storage(arguments).output().unwrap();
    assert!(run(&["queue", "show", "mails"]).status.success());
    let output = run(&["queue", "pause", "mails"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(error_text(&output).contains("--context"), "{}", error_text(&output));
    assert!(run(&["queue", "pause", "mails", "--context", "local"]).status.success());
}

#[test]
fn access_of_a_context_limits_the_changes() {
    let sandbox = Sandbox::with_mails(1, 1);
    let storage = &sandbox.storage;
    sandbox.configure(&format!(
        "[contexts.look]\nstorage = '{storage}'\naccess = 'read_only'\n\
         [contexts.night]\nstorage_env = 'NIGHT'\naccess = ['pause']\n"
    ));
    let run = |arguments: &[&str]| {
        let mut command = sandbox.without_storage(arguments);
        command.env("NIGHT", storage).output().unwrap().status.code()
    };
    assert_eq!(run(&["queues", "--context", "look"]), Some(0));
    assert_eq!(run(&["queue", "pause", "mails", "--context", "look"]), Some(4));
    assert_eq!(run(&["sweep", "--context", "look"]), Some(4));
    assert_eq!(run(&["dead", "redrive", "mails", "--all", "--dry-run", "--context", "look"]), Some(4));
    assert_eq!(run(&["queue", "pause", "mails", "--context", "night"]), Some(0));
    assert_eq!(run(&["dead", "redrive", "mails", "--all", "--context", "night"]), Some(4));
    assert_eq!(sandbox.counts(), (1, 1));
}

#[test]
fn production_context_asks_before_a_change() {
    let sandbox = Sandbox::with_mails(1, 0);
    sandbox.configure(&format!("[contexts.live]\nstorage = '{}'\nproduction = true\n", sandbox.storage));
    let run = |arguments: &[&str]| sandbox.without_storage(arguments).output().unwrap();
    assert!(run(&["queues", "--context", "live"]).status.success());
    let output = run(&["queue", "pause", "mails", "--context", "live"]);
    assert_eq!(output.status.code(), Some(4));
    assert!(error_text(&output).contains("--yes"), "{}", error_text(&output));
    assert_eq!(sandbox.json(&["queue", "show", "mails"])["paused"], false);
    assert!(run(&["queue", "pause", "mails", "--context", "live", "--yes"]).status.success());
}

const SECRET: &str = "c2VjcmV0LXNlY3JldC1zZWNyZXQ=";

#[test]
fn secrets_are_refused_as_arguments_and_never_printed() {
    let sandbox = Sandbox::new();
    let key = format!(
        "DefaultEndpointsProtocol=http;AccountName=a;AccountKey={SECRET};QueueEndpoint=http://127.0.0.1:1/a"
    );
    let sas = format!("https://a.queue.core.windows.net/?sv=2024&sig={SECRET}");
    let output = |command: &mut std::process::Command| {
        let output = command.output().unwrap();
        let text = format!("{}{}", error_text(&output), String::from_utf8_lossy(&output.stdout));
        assert!(!text.contains(SECRET), "{text}");
        assert_ne!(output.status.code(), Some(0), "{text}");
        text
    };
    for arguments in [["queues", "--storage", &key], ["queues", "--storage", &sas], ["queue", "show", &key]] {
        assert!(output(&mut sandbox.without_storage(&arguments)).contains("JOBQUEUE_STORAGE"));
    }
    output(sandbox.without_storage(&["queues"]).env("JOBQUEUE_STORAGE", format!("AccountKey={SECRET}")));
    // A value of the wrong type that contains the key, and an unknown name with the key as its value.
    for wrong in [format!("[contexts.a]\nstorage = ['AccountKey={SECRET}']"), format!("AccountKey={SECRET}")]
    {
        sandbox.configure(&wrong);
        assert!(output(&mut sandbox.without_storage(&["queues", "--context", "a"])).contains("line "));
    }
}
