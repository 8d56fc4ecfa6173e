//! The audit file: the changes of operators, one JSON document per line.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

use crate::serve::Served;
use crate::support::Sandbox;

fn lines(sandbox: &Sandbox) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(sandbox.path("audit.ndjson")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn changes_are_appended_to_the_audit_file() {
    let sandbox = Sandbox::with_mails(0, 2);
    let file = sandbox.path("audit.ndjson");
    let audited = |arguments: &[&str]| {
        let file = file.to_str().unwrap();
        sandbox.run(&[arguments, &["--audit-file", file, "--operator", "ada"]].concat())
    };
    assert!(audited(&["queues"]).status.success());
    assert!(lines(&sandbox).is_empty(), "a read is no change");
    assert!(audited(&["queue", "pause", "mails"]).status.success());
    assert!(audited(&["dead", "redrive", "mails", "--id", "dead-0"]).status.success());
    assert!(audited(&["sweep"]).status.success());
    // audit 28, operator B1: the event named the storage `memory`.
    assert!(audited(&["queue", "create", "letters"]).status.success());
    let events = lines(&sandbox);
    let actions: Vec<&str> = events.iter().map(|line| line["action"].as_str().unwrap()).collect();
    assert_eq!(
        actions,
        ["pause", "pause", "redrive", "redrive", "sweep", "sweep", "create_queue", "create_queue"]
    );
    for pair in events.chunks(2) {
        assert!(pair.iter().all(|line| line["operator"] == "ada" && line["id"] == pair[0]["id"]), "{pair:?}");
        assert!(pair.iter().all(|line| line["storage"] == sandbox.storage.as_str()), "{pair:?}");
        assert_eq!(pair[0]["result"], "started");
        assert_eq!(pair[1]["result"], "done");
    }
    assert_eq!(events[2]["selection"], "ids [\"dead-0\"]");
    assert!(events[6]["selection"].is_null(), "nothing is migrated: {}", events[6]);
    assert_eq!(events[3]["jobs"][0]["id"], "dead-0");
}

/// A pipe cannot be synced.
#[cfg(unix)]
#[test]
fn changes_are_recorded_in_a_pipe() {
    let sandbox = Sandbox::with_mails(0, 0);
    let paused = sandbox.run(&["queue", "pause", "mails", "--audit-file", "/dev/stderr"]);
    let recorded = crate::support::error_text(&paused);
    assert!(paused.status.success(), "{recorded}");
    assert_eq!(recorded.matches(r#""action":"pause""#).count(), 2, "{recorded}");
}

/// Senders choose the ids, and operators read both files in a terminal.
#[test]
fn audit_and_plan_control_no_terminal() {
    let sandbox = Sandbox::with_mails(0, 0);
    let (audit, plan) = (sandbox.path("audit.ndjson"), sandbox.path("plan.json"));
    let id = "x\u{9b}2J\u{202e}gpj";
    let payload = sandbox.path("payload.json");
    std::fs::write(&payload, r#"{"to":"ada"}"#).unwrap();
    let send = ["send", "mails", "--kind", "mail", "--key", "k", "--id", id, "--file"];
    sandbox.ok(&[&send[..], &[payload.to_str().unwrap()]].concat());
    sandbox.ok(&["cancel", "mails", "--key", "k", "--dry-run", "--plan", plan.to_str().unwrap()]);
    sandbox.ok(&["cancel", "mails", id, "--audit-file", audit.to_str().unwrap()]);
    for file in [&audit, &plan] {
        let text = std::fs::read_to_string(file).unwrap();
        assert!(text.contains("\\u009b2J\\u202e") && !text.contains(['\u{9b}', '\u{202e}']), "{text}");
    }
    let read: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&plan).unwrap()).unwrap();
    assert_eq!(read["jobs"][0]["id"], id);
}

/// The start of a killed purge is in the file, and says which dead letters it may have deleted.
#[test]
fn killed_change_is_in_the_audit_file() {
    let sandbox = Sandbox::with_mails(0, 3);
    let file = sandbox.path("audit.ndjson");
    let arguments = ["dead", "purge", "mails", "--all", "--rate", "1", "--yes", "--audit-file"];
    let mut child =
        sandbox.command(&arguments).arg(&file).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let deleted = || sandbox.json(&["queue", "show", "mails"])["dead_letters"].as_u64().unwrap() < 3;
    while !deleted() {
        assert!(child.try_wait().unwrap().is_none(), "the purge ended too early");
    }
    child.kill().unwrap();
    let _ = child.wait().unwrap();
    let events = lines(&sandbox);
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0]["result"], "started");
    assert_eq!(events[0]["selection"], "all, at most 1 a second");
}

/// K50: a line that was cut because the disk was full does not spoil the lines after it.
#[test]
fn truncated_line_does_not_spoil_the_next() {
    let sandbox = Sandbox::with_mails(0, 0);
    let file = sandbox.path("audit.ndjson");
    std::fs::write(&file, "{\"at\":\"2026").unwrap();
    sandbox.ok(&["queue", "pause", "mails", "--audit-file", file.to_str().unwrap()]);
    let text = std::fs::read_to_string(&file).unwrap();
    let valid: Vec<_> =
        text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()).collect();
    assert_eq!(valid, [false, true, true], "{text}");
}

#[test]
fn empty_variable_hides_no_name_of_an_operator() {
    let sandbox = Sandbox::with_mails(0, 0);
    let file = sandbox.path("audit.ndjson");
    let mut pause = sandbox.command(&["queue", "pause", "mails", "--audit-file", file.to_str().unwrap()]);
    pause.env("JOBQUEUE_OPERATOR", "").env("USER", "").env("LOGNAME", "ada");
    assert!(pause.status().unwrap().success());
    assert!(lines(&sandbox).iter().all(|line| line["operator"] == "ada"), "{:?}", lines(&sandbox));
}

#[test]
fn rotated_audit_file_is_created_again() {
    let sandbox = Sandbox::with_mails(0, 0);
    let file = sandbox.path("audit.ndjson");
    let mut server = sandbox.command(&["serve", "--listen", "127.0.0.1:0", "--audit-file"]);
    let mut server = server.arg(&file).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut address = String::new();
    let _ = BufReader::new(server.stdout.take().unwrap()).read_line(&mut address).unwrap();
    let host = address.trim().trim_start_matches("http://").trim_end_matches('/').to_owned();
    for action in ["pause", "resume"] {
        let mut stream = TcpStream::connect(&host).unwrap();
        let head = format!(
            "POST /do/{action} HTTP/1.1\r\nHost: {host}\r\nSec-Fetch-Site: same-origin\r\nConnection: close\r\n\
             Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 11\r\n\r\nqueue=mails"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 303"), "{answer}");
        let events = lines(&sandbox);
        assert_eq!(events.len(), 2, "{events:?}");
        assert!(events.iter().all(|line| line["action"] == action), "{events:?}");
        std::fs::rename(&file, sandbox.path(action)).unwrap();
    }
    server.kill().unwrap();
    let _ = server.wait().unwrap();
}

#[test]
fn change_that_cannot_be_recorded_is_not_made() {
    let sandbox = Sandbox::with_mails(1, 0);
    let refused = sandbox.run(&["queue", "pause", "mails", "--audit-file", "/no/such/folder/audit"]);
    assert_eq!(refused.status.code(), Some(4));
    assert_eq!(sandbox.json(&["queue", "show", "mails"])["paused"], false);
}

#[test]
fn refused_change_is_recorded_too() {
    let sandbox = Sandbox::with_mails(1, 0);
    let text = format!("[contexts.night]\nstorage = \"{}\"\naccess = [\"pause\"]\n", sandbox.storage);
    sandbox.configure(&text);
    let file = sandbox.path("audit.ndjson");
    let sweep = ["--context", "night", "--audit-file", file.to_str().unwrap(), "sweep"];
    assert_eq!(sandbox.without_storage(&sweep).output().unwrap().status.code(), Some(4));
    let events = lines(&sandbox);
    assert_eq!(events[0]["action"], "sweep");
    assert_eq!(events[0]["result"], "refused");
}

/// A read-only dashboard records who tried to make a change.
#[test]
fn refusals_of_a_read_only_dashboard_are_recorded() {
    let sandbox = Sandbox::with_mails(1, 0);
    let file = sandbox.path("audit.ndjson");
    let served = Served::start(&sandbox, &["--read-only", "--audit-file", file.to_str().unwrap()], &[]);
    assert!(served.pause().starts_with("HTTP/1.1 403"));
    let events = lines(&sandbox);
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0]["action"], "pause");
    assert_eq!(events[0]["result"], "refused");
}

#[test]
fn dashboard_is_not_served_if_its_audit_file_cannot_be_written() {
    let sandbox = Sandbox::with_mails(0, 0);
    for form in [&["--read-only"][..], &[]] {
        let arguments = ["serve", "--listen", "127.0.0.1:0", "--audit-file", "/no/such/folder/audit"];
        let mut server = sandbox.command(&[&arguments, form].concat());
        let mut server = server.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut address = String::new();
        let _ = BufReader::new(server.stdout.take().unwrap()).read_line(&mut address).unwrap();
        let _ = server.kill();
        let code = server.wait().unwrap().code();
        assert_eq!(address, "", "{form:?}");
        assert_eq!(code, Some(4), "{form:?}");
    }
}

#[test]
fn audit_file_is_not_world_readable() {
    use std::os::unix::fs::PermissionsExt;
    let sandbox = Sandbox::with_mails(0, 0);
    let file = sandbox.path("audit.ndjson");
    let pause = sandbox.command(&["queue", "pause", "mails", "--audit-file", file.to_str().unwrap()]);
    // With a file mask that would let every user read new files.
    let mut shell = std::process::Command::new("sh");
    let shell =
        shell.args(["-c", "umask 0; exec \"$0\" \"$@\""]).arg(pause.get_program()).args(pause.get_args());
    let variables = pause.get_envs().filter_map(|(name, value)| Some((name, value?)));
    assert!(shell.envs(variables).status().unwrap().success());
    assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o007, 0);
}
