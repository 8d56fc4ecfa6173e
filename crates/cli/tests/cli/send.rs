//! Sending from files and from standard input.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::bulk::interrupt;
use crate::shape::check;
use crate::support::{Sandbox, error_text, hold};

/// Runs `send` with `input` on standard input.
fn send(sandbox: &Sandbox, arguments: &[&str], input: &str) -> Output {
    let arguments = [&["send", "mails", "-o", "json"], arguments].concat();
    let mut command = sandbox.command(&arguments);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A refused command ends without reading its input.
    let written = child.stdin.take().unwrap().write_all(input.as_bytes());
    assert!(written.err().is_none_or(|error| error.kind() == ErrorKind::BrokenPipe));
    child.wait_with_output().unwrap()
}

#[test]
fn payload_from_standard_input_is_sent_with_its_options() {
    let sandbox = Sandbox::with_mails(0, 0);
    sandbox.ok(&["queue", "create", "mails"]);
    let options =
        ["--kind", "mail", "--id", "one", "--key", "ada", "--version", "2", "--header", "tenant=blue"];
    let output = send(&sandbox, &options, r#"{"to":"ada@example.org"}"#);
    assert!(output.status.success(), "{}", error_text(&output));
    check("sent", &serde_json::from_slice(&output.stdout).unwrap());
    let job = &sandbox.json(&["peek", "mails"])[0];
    assert_eq!(job["id"], "one");
    assert_eq!(job["key"], "ada");
    assert_eq!(job["version"], 2);
    assert_eq!(job["headers"]["tenant"], "blue");
    assert_eq!(job["payload"]["value"]["to"], "ada@example.org");
}

#[test]
fn lines_are_sent_until_one_is_wrong() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["queue", "create", "mails"]);
    let lines = "{\"to\":\"a\"}\n\n{\"to\":\"b\"}\nsecret-text\n{\"to\":\"c\"}\n";
    let checked = send(&sandbox, &["--kind", "mail", "--ndjson", "--dry-run"], lines);
    assert_eq!(checked.status.code(), Some(2));
    assert!(!error_text(&checked).contains("is valid"), "{}", error_text(&checked));
    assert_eq!(sandbox.counts().0, 0);
    let output = send(&sandbox, &["--kind", "mail", "--ndjson"], lines);
    let error = error_text(&output);
    assert_eq!(output.status.code(), Some(2));
    assert!(error.contains("line 4") && error.contains("2 jobs were sent"), "{error}");
    assert!(!error.contains("secret-text"), "{error}");
    assert_eq!(sandbox.counts().0, 2);
}

#[test]
fn deep_peek_at_too_many_messages_is_refused() {
    let sandbox = Sandbox::with_mails(1, 0);
    let refused = sandbox.run(&["peek", "mails", "--deep", "--yes", "--limit", "20000"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(error_text(&refused).contains("at most 10000"), "{}", error_text(&refused));
}

/// The input is the output of a program that keeps running.
#[test]
fn line_is_sent_while_no_other_arrives() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["queue", "create", "mails"]);
    let mut command = sandbox.command(&["send", "mails", "--kind", "mail", "--ndjson"]);
    let mut sending = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut input = sending.stdin.take().unwrap();
    // The second line is incomplete, and continues later.
    input.write_all(b"{\"to\":\"a\"}\n{\"to\":").unwrap();
    let began = Instant::now();
    while sandbox.counts().0 == 0 && began.elapsed() < Duration::from_secs(60) {}
    assert_eq!(sandbox.counts().0, 1);
    input.write_all(b"\"b\"}\n").unwrap();
    drop(input);
    assert!(sending.wait().unwrap().success());
    assert_eq!(sandbox.counts().0, 2);
}

// D40: all jobs were printed at the end, which a process that is killed does not reach.
#[test]
fn sent_job_is_printed_before_the_next_line() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["queue", "create", "mails"]);
    let mut command = sandbox.command(&["send", "mails", "--kind", "mail", "--ndjson", "-o", "ndjson"]);
    let mut sending = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = sending.stdin.take().unwrap();
    let (printed, jobs) = mpsc::channel();
    let output = BufReader::new(sending.stdout.take().unwrap());
    std::thread::spawn(move || output.lines().for_each(|line| printed.send(line.unwrap()).unwrap()));
    for count in 1..=2 {
        input.write_all(b"{\"to\":\"a\"}\n").unwrap();
        let job = jobs.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(job.contains("\"queue\":\"mails\""), "{job}");
        assert_eq!(sandbox.counts().0, count);
    }
    drop(input);
    assert!(sending.wait().unwrap().success());
    assert!(jobs.recv().is_err(), "no job is printed twice");
}

// K43
#[test]
fn each_line_that_fails_is_named() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["queue", "create", "mails"]);
    let event = |id: &str, bytes| {
        let tenant = "t".repeat(bytes);
        format!(
            r#"{{"specversion":"1.0","id":"{id}","source":"/s","type":"mail","tenant":"{tenant}","data":0}}"#
        )
    };
    // Large attributes, unlike a large payload, do not move into a blob.
    let large = 100_000;
    let lines = [event("1", 1), event("2", large), event("3", 1), event("4", large)].join("\n");
    let output = send(&sandbox, &["--ndjson"], &lines);
    let error = error_text(&output);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("line 2:") && error.contains("line 4:"), "{error}");
    assert!(error.contains("(2 jobs were sent, none after line 4)"), "{error}");
    assert_eq!(sandbox.counts().0, 2);
}

// K43
#[test]
fn large_lines_are_not_sent_together() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["queue", "create", "mails"]);
    let lines = format!("\"{}\"\n{{}}\n", "x".repeat(33 * 1024 * 1024));
    let output = send(&sandbox, &["--kind", "mail", "--ndjson"], &lines);
    assert_eq!(output.status.code(), Some(2));
    assert!(error_text(&output).contains("(0 jobs were sent, none after line 1)"), "{}", error_text(&output));
}

#[test]
fn events_keep_their_identity() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["queue", "create", "mails"]);
    let event = r#"{"specversion":"1.0","id":"7","source":"/shop","type":"mail","data":{"to":"a"}}"#;
    assert!(send(&sandbox, &["--ndjson"], event).status.success());
    let job = &sandbox.json(&["peek", "mails"])[0];
    assert_eq!(job["id"], "7");
    assert_eq!(job["source"], "/shop");
    assert_eq!(job["kind"], "mail");
    assert_eq!(send(&sandbox, &[], r#"{"to":"a"}"#).status.code(), Some(2), "it is not an event");
}

#[test]
fn headers_of_the_framework_are_refused() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["queue", "create", "mails"]);
    for header in ["inorder=true", "batchid=b"] {
        let refused = send(&sandbox, &["--kind", "mail", "--header", header], r#"{"to":"a"}"#);
        assert_eq!(refused.status.code(), Some(2), "{header}");
        assert!(error_text(&refused).contains("--in-order"), "{}", error_text(&refused));
    }
    assert!(send(&sandbox, &["--kind", "mail", "--header", "tenant=blue"], r#"{"to":"a"}"#).status.success());
    assert_eq!(sandbox.counts().0, 1);
}

#[test]
fn many_lines_are_sent_and_ndjson_is_suggested_for_them() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["queue", "create", "mails"]);
    let lines: String = (0..300).map(|n| format!("{{\"to\":\"{n}\"}}\n")).collect();
    let output = send(&sandbox, &["--kind", "mail", "--ndjson"], &lines);
    assert!(output.status.success(), "{}", error_text(&output));
    let sent: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(sent.as_array().unwrap().len(), 300);
    assert_eq!(sandbox.counts().0, 300);
    let refused = send(&sandbox, &["--kind", "mail"], &lines);
    assert_eq!(refused.status.code(), Some(2));
    assert!(error_text(&refused).contains("add --ndjson"), "{}", error_text(&refused));
}

#[test]
fn empty_lists_say_so() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["queue", "create", "mails"]);
    for (arguments, text) in [
        (vec!["peek", "mails"], "no visible jobs"),
        (vec!["schedules", "list"], "no schedules"),
        (vec!["leaders"], "no leaders"),
        (vec!["workers"], "no workers"),
    ] {
        let output = sandbox.run(&arguments);
        assert!(output.status.success() && output.stdout.is_empty(), "{arguments:?}");
        assert!(error_text(&output).contains(text), "{arguments:?}: {}", error_text(&output));
    }
}

#[test]
fn delayed_jobs_are_listed_and_run_now() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["queue", "create", "mails"]);
    for (id, key) in [("one", "ada"), ("two", "bob")] {
        let options = ["--kind", "mail", "--id", id, "--key", key, "--delay", "1h"];
        assert!(send(&sandbox, &options, "{}").status.success());
    }
    let delayed = sandbox.json(&["peek", "mails", "--state", "delayed", "--key", "ada"]);
    check("job_page", &delayed);
    assert!(delayed["next"].is_null(), "{delayed}");
    let delayed = delayed["jobs"].as_array().unwrap();
    assert_eq!(delayed[0]["id"], "one");
    assert!(delayed.len() == 1 && delayed[0]["due"].is_string(), "{delayed:?}");
    let first = sandbox.json(&["peek", "mails", "--state", "delayed", "--limit", "1"]);
    assert!(first["next"].is_string(), "a script continues from there: {first}");
    let page = sandbox.run(&["peek", "mails", "--state", "delayed", "--limit", "1"]);
    let from = error_text(&page);
    let (_, from) = from.trim_end().rsplit_once(' ').unwrap();
    assert!(sandbox.ok(&["peek", "mails", "--state", "delayed", "--from", from]).contains("two"));
    assert!(sandbox.ok(&["explain", "mails", "two"]).contains("delayed until"));
    assert_eq!(sandbox.json(&["run-now", "mails", "two"])["id"], "two");
    assert_eq!(sandbox.json(&["peek", "mails"])[0]["id"], "two");
    assert_eq!(sandbox.run(&["run-now", "mails", "two"]).status.code(), Some(3), "the job is already due");
}

/// Returns an event of a sender `/shop` with the key `ada` and these attributes.
fn event(id: &str, attributes: &str) -> String {
    format!(
        r#"{{"specversion":"1.0","id":"{id}","source":"/shop","type":"mail","key":"ada",{attributes}"data":{{"to":"a"}}}}"#
    )
}

#[test]
fn event_for_a_later_time_does_not_run_before() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["queue", "create", "mails"]);
    let days = |days: i64| (jiff::Timestamp::now() + jiff::SignedDuration::from_hours(24 * days)).to_string();
    for (id, time) in [("soon", days(2)), ("late", days(30)), ("past", days(-30))] {
        let text = event(id, &format!(r#""notbefore":"{time}","#));
        let output = send(&sandbox, &[], &text);
        assert!(output.status.success(), "{}", error_text(&output));
    }
    assert!(
        send(&sandbox, &["--delay", "1h"], &event("given", &format!(r#""notbefore":"{}","#, days(30))))
            .status
            .success()
    );
    let delayed = sandbox.json(&["peek", "mails", "--state", "delayed"]);
    let ids: Vec<_> =
        delayed["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["given", "soon", "late"], "{delayed}");
    assert!(delayed["jobs"][0]["not_before"].is_null(), "{delayed}");
    assert_eq!(sandbox.json(&["peek", "mails"])[0]["id"], "past");
    let wrong = send(&sandbox, &["--dry-run"], &event("wrong", r#""notbefore":"tomorrow","#));
    assert_eq!(wrong.status.code(), Some(2), "{}", error_text(&wrong));
}

#[test]
fn event_in_order_is_sent_in_order() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["queue", "create", "mails"]);
    let lines: String = (0..100).map(|n| event(&n.to_string(), r#""inorder":true,"#) + "\n").collect();
    let output = send(&sandbox, &["--ndjson"], &lines);
    assert!(output.status.success(), "{}", error_text(&output));
    let sent: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let sent: Vec<_> =
        sent.as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(sent, (0..100).map(|n| n.to_string()).collect::<Vec<_>>());
    // The storage keeps the order itself, so only the first job of the key can be received.
    assert_eq!(hold(&sandbox.storage, "mails", 32), 1);
}

#[test]
fn job_with_a_delay_in_its_message_is_not_reported_as_due() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["queue", "create", "mails"]);
    assert!(
        send(&sandbox, &["--kind", "mail", "--id", "late", "--delay", "30d"], r#"{"to":"a"}"#)
            .status
            .success()
    );
    let job = &sandbox.json(&["peek", "mails", "--state", "delayed"])["jobs"][0];
    assert_eq!(job["due"], job["not_before"], "{job}");
    let due = job["due"].as_str().unwrap();
    let explained = sandbox.json(&["explain", "mails", "late"]);
    assert!(explained["summary"].as_str().unwrap().contains(due), "{explained}");
    let reasons = explained["reasons"].as_array().unwrap();
    assert_eq!(reasons.iter().filter(|reason| reason["code"] == "delayed_until").count(), 1, "{explained}");
    let refused = sandbox.run(&["run-now", "mails", "late"]);
    assert_eq!(refused.status.code(), Some(2), "{}", error_text(&refused));
    assert!(error_text(&refused).contains(due), "{}", error_text(&refused));
}

#[cfg(target_os = "linux")]
#[test]
fn change_whose_report_cannot_be_written_is_reported_in_the_error() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["queue", "create", "mails"]);
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let text = sandbox.path("event");
    std::fs::write(&text, event("one", "")).unwrap();
    let text = text.to_str().unwrap();
    for (arguments, done) in [
        (&["send", "mails", "--file", text][..], "sent one"),
        (&["cancel", "mails", "one"], "requested for 1 job"),
    ] {
        let output = sandbox.command(arguments).stdout(full()).output().unwrap();
        let error = error_text(&output);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains("the change was made") && error.contains(done), "{error}");
    }
    // If both the work and its report fail, the error says which line is invalid and which jobs were sent.
    let lines = sandbox.path("lines");
    std::fs::write(&lines, format!("{}\nno event\n", event("two", ""))).unwrap();
    let arguments = ["send", "mails", "--ndjson", "--file", lines.to_str().unwrap()];
    let output = sandbox.command(&arguments).stdout(full()).output().unwrap();
    let error = error_text(&output);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("line 2") && error.contains("sent two"), "{error}");
    for unchanged in [&["queues"][..], &["queue", "create", "mails"]] {
        let output = sandbox.command(unchanged).stdout(full()).output().unwrap();
        assert!(!error_text(&output).contains("the change was made"), "{}", error_text(&output));
    }
}

/// Returns whether the process has a handler for SIGINT.
#[cfg(target_os = "linux")]
fn catches_interrupts(child: &std::process::Child) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim();
    u64::from_str_radix(caught, 16).unwrap() & 0b10 != 0
}

/// D36: a signal ends a command that waits for input.
#[cfg(target_os = "linux")]
#[test]
fn waiting_for_input_can_be_interrupted() {
    let sandbox = Sandbox::with_mails(0, 1);
    for arguments in [
        vec!["send", "mails", "--kind", "mail"],
        vec!["send", "mails", "--kind", "mail", "--ndjson"],
        vec!["dead", "resend", "mails", "dead-0", "--file", "-"],
    ] {
        let mut child =
            sandbox.command(&arguments).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(b"{}\n").unwrap();
        // Until the program catches the signal, the signal would kill it.
        while !catches_interrupts(&child) {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        interrupt(&child);
        let status = child.wait().unwrap();
        assert_eq!(status.code(), Some(130), "{arguments:?}");
        drop(input);
    }
}

// audit 25, operator C10
#[cfg(target_os = "linux")]
#[test]
fn waiting_for_the_writer_of_a_pipe_can_be_interrupted() {
    let sandbox = Sandbox::with_mails(0, 1);
    let pipe = sandbox.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let pipe = pipe.to_str().unwrap();
    for arguments in [
        vec!["send", "mails", "--kind", "mail", "--file", pipe],
        vec!["dead", "resend", "mails", "dead-0", "--file", pipe],
    ] {
        let mut child = sandbox.command(&arguments).stderr(Stdio::null()).spawn().unwrap();
        while !catches_interrupts(&child) {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        interrupt(&child);
        let started = std::time::Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if started.elapsed() > std::time::Duration::from_secs(60) {
                child.kill().unwrap();
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        };
        assert_eq!(status.code(), Some(130), "{arguments:?}");
    }
}

#[test]
fn deep_peek_reports_jobs_behind_the_first_of_their_key() {
    let sandbox = Sandbox::with_mails(1, 0);
    for id in ["1", "2", "3"] {
        let sent = send(&sandbox, &["--kind", "mail", "--id", id, "--key", "k", "--in-order"], "{}");
        assert!(sent.status.success(), "{}", error_text(&sent));
    }
    let shown = sandbox.run(&["peek", "mails", "--deep", "--yes"]);
    assert_eq!(shown.status.code(), Some(0));
    let text = error_text(&shown);
    assert!(text.contains("2 of about 4 messages could be received"), "{text}");
}
