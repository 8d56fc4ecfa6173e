//! Redriving and purging.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::forged::with_input;
use crate::support::{Sandbox, error_text, hold_a_dead_letter, reject_all};

/// Sends SIGINT.
pub(crate) fn interrupt(child: &Child) {
    let status = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

#[test]
fn redrive_puts_back_the_selected_dead_letters() {
    let sandbox = Sandbox::with_mails(0, 3);
    assert_eq!(sandbox.run(&["dead", "redrive", "mails", "--kind", "other"]).status.code(), Some(3));
    assert_eq!(sandbox.counts(), (0, 3));
    let preview = sandbox.ok(&["dead", "redrive", "mails", "--reason", "rejected", "--dry-run"]);
    assert!(preview.starts_with("3 would be put back, 0 skipped"), "{preview}");
    assert!(!preview.contains("a second") && !preview.contains("costs"), "{preview}");
    let slowly = sandbox.ok(&["dead", "redrive", "mails", "--all", "--rate", "1", "--dry-run"]);
    assert!(slowly.contains("  At 1 a second it takes 3s or longer\n"), "{slowly}");
    assert_eq!(sandbox.counts(), (0, 3), "a dry run changes nothing");
    let done = sandbox.ok(&["dead", "redrive", "mails", "--reason", "rejected", "--limit", "2"]);
    assert!(done.starts_with("2 put back, 0 skipped"), "{done}");
    assert_eq!(sandbox.counts(), (2, 1));
}

/// A report that says only "0 left" would be taken for the end of the incident.
#[test]
fn dead_letters_that_were_not_looked_at_are_counted() {
    let sandbox = Sandbox::with_mails(0, 40);
    let done = sandbox.ok(&["dead", "redrive", "mails", "--all", "--limit", "2"]);
    assert_eq!(done, "2 put back, 0 skipped; 30 looked at and left, about 8 not looked at\n");
    let done = sandbox.ok(&["dead", "redrive", "mails", "--all"]);
    assert_eq!(done, "38 put back, 0 skipped; 0 looked at and left\n");
}

#[test]
fn canary_in_a_paused_queue_says_why_it_waits() {
    let sandbox = Sandbox::with_mails(0, 3);
    sandbox.ok(&["queue", "pause", "mails", "--note", "the bank is down"]);
    let redrive = ["dead", "redrive", "mails", "--all", "--canary", "1"];
    let mut child = sandbox.command(&redrive).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut lines = errors.by_ref().map(Result::unwrap);
    let reason = lines.find(|line| line.contains("the jobs of the canary are waiting")).unwrap();
    assert!(reason.contains("`mails` is paused") && reason.contains("the bank is down"), "{reason}");
    interrupt(&child);
    let rest: Vec<_> = errors.map(Result::unwrap).collect();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(rest.iter().any(|line| line.contains("are back in the queue")), "{rest:?}");
}

#[test]
fn interrupted_redrive_loses_nothing() {
    let sandbox = Sandbox::with_mails(0, 40);
    // The rate leaves time for the signal: without it, the redrive takes ten seconds and more.
    let arguments = ["dead", "redrive", "mails", "--all", "--rate", "4", "-o", "json"];
    let child = sandbox.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let started = Instant::now();
    while sandbox.json(&["peek", "mails"]).as_array().unwrap().is_empty() {
        assert!(started.elapsed() < Duration::from_secs(60), "nothing was put back");
    }
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", error_text(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    crate::shape::check("bulk_report", &report);
    let moved = report["count"].as_u64().unwrap();
    assert!((1..40).contains(&moved), "{report}");
    assert_eq!(sandbox.counts(), (moved, 40 - moved));
    // The dead letters that the redrive held are visible at once.
    let left = sandbox.json(&["dead", "list", "mails", "--deep"]);
    assert_eq!(left["matching"], 40 - moved, "{left}");
}

/// Sends SIGINT and SIGTERM at the same time: to a stopped process, so that it handles the first signal only
/// when the second is there.
#[cfg(target_os = "linux")]
fn interrupt_twice(child: &Child) {
    let send = |signal: &str| {
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
    };
    send("-STOP");
    let status = || std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    while !status().contains("State:\tT") {
        std::thread::yield_now();
    }
    ["-INT", "-TERM", "-CONT"].into_iter().for_each(send);
}

// incident 33, 4: it ended without a line.
#[cfg(target_os = "linux")]
#[test]
fn second_signal_says_what_was_done_and_what_is_left() {
    let sandbox = Sandbox::with_mails(0, 40);
    let arguments = ["dead", "redrive", "mails", "--all", "--rate", "4"];
    let child = sandbox.command(&arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    crate::workers::wait_for("a job that was put back", || (sandbox.counts().0 > 0).then_some(()));
    interrupt_twice(&child);
    let output = child.wait_with_output().unwrap();
    let text = error_text(&output);
    assert_eq!(output.status.code(), Some(130), "{text}");
    let line = text.lines().last().unwrap();
    assert!(line.starts_with("error: ended at once by a second signal: "), "{text}");
    assert!(
        line.contains(" put back, and perhaps a few more; ") && line.contains("up to 10 minutes"),
        "{text}"
    );
}

// review 33 c, B3: it said that nothing was changed.
#[cfg(target_os = "linux")]
#[test]
fn second_signal_says_that_a_copy_may_have_been_sent() {
    let sandbox = Sandbox::with_mails(0, 1);
    let shell = rusqlite::Connection::open(sandbox.path("jobs.db")).unwrap();
    shell.execute_batch("BEGIN IMMEDIATE").unwrap();
    let audit = sandbox.path("audit.ndjson");
    let mut resend = sandbox.command(&["dead", "resend", "mails", "dead-0", "--audit-file"]);
    let child = resend.arg(&audit).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // The send has begun, and waits for the write lock.
    let has_begun = || std::fs::read_to_string(&audit).is_ok_and(|text| text.contains("started"));
    crate::workers::wait_for("the send", || has_begun().then_some(()));
    interrupt_twice(&child);
    let output = child.wait_with_output().unwrap();
    let text = error_text(&output);
    assert_eq!(output.status.code(), Some(130), "{text}");
    let line = text.lines().last().unwrap();
    assert!(line.ends_with(" by a second signal: the copy may have been sent"), "{text}");
}

// K51
#[test]
fn lists_say_what_a_limit_leaves_out() {
    let sandbox = Sandbox::with_mails(2, 3);
    let output = sandbox.run(&["dead", "list", "mails", "--deep", "--limit", "2"]);
    assert!(error_text(&output).contains("3 dead letters match"), "{}", error_text(&output));
    // newcomers 28, C13: --limit needed --deep, and the error did not say why.
    let listed = sandbox.json(&["dead", "list", "mails", "--limit", "2"]);
    assert_eq!(listed["letters"].as_array().unwrap().len(), 2);
    assert_eq!(listed["matching"], 3);
    assert_eq!(sandbox.json(&["peek", "mails", "--limit", "1"]).as_array().unwrap().len(), 1);
}

// D1
#[test]
fn plan_of_a_dry_run_bounds_the_purge() {
    let sandbox = Sandbox::with_mails(0, 2);
    let file = sandbox.path("plan.json");
    let path = file.to_str().unwrap();
    sandbox.ok(&["dead", "purge", "mails", "--reason", "rejected", "--dry-run", "--plan", path]);
    crate::support::fill(&sandbox.storage, 0, 3);
    assert_eq!(sandbox.counts(), (0, 5));
    for arguments in [&["--all"][..], &["--kind", "mail"]] {
        let both = [&["dead", "purge", "mails", "--yes", "--plan", path], arguments].concat();
        assert_eq!(sandbox.run(&both).status.code(), Some(2), "{arguments:?}");
    }
    let other = Sandbox::with_mails(0, 2);
    for arguments in
        [&["dead", "purge", "mails", "--yes", "--plan", path][..], &["dead", "outcome", "--plan", path]]
    {
        assert_eq!(other.run(arguments).status.code(), Some(2), "{arguments:?}");
    }
    let done = sandbox.ok(&["dead", "purge", "mails", "--plan", path, "--yes"]);
    assert!(done.starts_with("2 deleted, 0 skipped"), "{done}");
    assert_eq!(sandbox.counts(), (0, 3));
    assert_eq!(sandbox.run(&["dead", "purge", "mails", "--plan", path, "--yes"]).status.code(), Some(3));
    std::fs::write(&file, "{\"queue\":\"mails\"}").unwrap();
    assert_eq!(sandbox.run(&["dead", "purge", "mails", "--plan", path, "--yes"]).status.code(), Some(2));
}

#[test]
fn bulk_change_without_a_filter_needs_all() {
    let sandbox = Sandbox::with_mails(0, 1);
    for arguments in
        [&["dead", "redrive", "mails"][..], &["dead", "purge", "mails", "--all", "--kind", "mail"]]
    {
        assert_eq!(sandbox.run(arguments).status.code(), Some(2), "{arguments:?}");
    }
    assert_eq!(sandbox.counts(), (0, 1));
}

#[test]
fn dead_letters_are_counted_and_selected_by_their_error() {
    let sandbox = Sandbox::with_mails(0, 3);
    let stats = sandbox.json(&["dead", "stats", "mails"]);
    let group = &stats["errors"][0];
    assert_eq!(group["count"], 3, "{stats}");
    assert_eq!(group["error"], "no such address", "{stats}");
    let fingerprint = group["fingerprint"].as_str().unwrap();
    let table = sandbox.ok(&["dead", "stats", "mails"]);
    assert!(table.starts_with("COUNT") && table.contains(fingerprint), "{table}");
    assert_eq!(
        sandbox.run(&["dead", "redrive", "mails", "--error", "0123456789abcdef"]).status.code(),
        Some(3)
    );
    let done = sandbox.ok(&["dead", "redrive", "mails", "--error", fingerprint]);
    assert!(done.starts_with("3 put back"), "{done}");
}

#[test]
fn nothing_matched_is_not_reported_while_others_hold_dead_letters() {
    let sandbox = Sandbox::with_mails(0, 2);
    hold_a_dead_letter(&sandbox.storage);
    for arguments in [
        &["dead", "redrive", "mails", "--kind", "other"][..],
        &["dead", "redrive", "mails", "--all", "--dry-run"],
        &["dead", "purge", "mails", "--all", "--yes"],
        &["dead", "show", "mails", "no-such-job", "--deep"],
    ] {
        let output = sandbox.run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", error_text(&output));
        assert!(error_text(&output).contains("others hold"), "{}", error_text(&output));
    }
    let listed = sandbox.json(&["dead", "list", "mails", "--deep"]);
    assert_eq!(listed["complete"], false);
}

#[test]
fn outcomes_of_a_plan_are_counted() {
    let sandbox = Sandbox::with_mails(0, 3);
    let file = sandbox.path("plan.json");
    let path = file.to_str().unwrap();
    sandbox.ok(&["dead", "redrive", "mails", "--all", "--dry-run", "--plan", path]);
    let outcome = || {
        let output = sandbox.run(&["dead", "outcome", "--plan", path, "--output", "json"]);
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), found)
    };
    let (code, found) = outcome();
    assert_eq!(code, Some(1));
    assert_eq!(found["left"], 3);
    let purge = ["dead", "purge", "mails", "--plan", path, "--yes", "--canary", "1"];
    assert_eq!(sandbox.run(&purge).status.code(), Some(2), "a purge has no canary");
    sandbox.ok(&["dead", "redrive", "mails", "--plan", path, "--limit", "2"]);
    crate::support::reject_all(&sandbox.storage);
    let (code, found) = outcome();
    crate::shape::check("plan_outcome", &found);
    assert_eq!(found["left"], 1);
    assert_eq!(found["dead_again"].as_array().unwrap().len(), 2);
    assert_eq!(code, Some(1), "not all have ended");
    let output = sandbox.run(&["dead", "outcome", "--plan", path]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("2 died again") && text.contains("no such address"), "{text}");
    sandbox.ok(&["dead", "purge", "mails", "--all", "--yes"]);
    assert_eq!(outcome().0, Some(0), "all have ended");
}

#[test]
fn outcome_looks_beyond_the_first_dead_letters() {
    let sandbox = Sandbox::with_mails(0, 40);
    let file = sandbox.path("plan.json");
    let path = file.to_str().unwrap();
    sandbox.ok(&["dead", "redrive", "mails", "--all", "--dry-run", "--plan", path]);
    for deep in [&[][..], &["--deep"]] {
        let output = sandbox.run(&[&["dead", "outcome", "--plan", path, "--output", "json"], deep].concat());
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&found["left"], &found["unknown"]), (&40.into(), &0.into()), "{deep:?}");
        assert!(!error_text(&output).contains("add --deep"), "{deep:?}: a storage that shows all needs none");
    }
}

#[test]
fn dead_letter_is_resent_with_another_payload_and_to_another_queue() {
    let sandbox = Sandbox::with_mails(0, 1);
    sandbox.ok(&["queue", "create", "letters"]);
    let file = sandbox.path("payload.json");
    std::fs::write(&file, r#"{"to":"ada@example.org"}"#).unwrap();
    let resend = ["dead", "resend", "mails", "dead-0", "--to", "letters", "--file", file.to_str().unwrap()];
    let sent = sandbox.json(&resend);
    crate::shape::check("job_reference", &sent);
    let jobs = sandbox.json(&["peek", "letters"]);
    assert_eq!(jobs[0]["id"], sent["id"], "{jobs}");
    assert_eq!(jobs[0]["kind"], "mail", "{jobs}");
    assert_eq!(jobs[0]["payload"]["value"]["to"], "ada@example.org");
    assert_eq!(sandbox.counts(), (0, 1), "the dead letter stays");
    sandbox.ok(&["dead", "resend", "mails", "dead-0"]);
    assert_eq!(sandbox.json(&["peek", "mails"])[0]["payload"]["value"]["to"], "0@example.org");
    std::fs::write(&file, "no JSON").unwrap();
    assert_eq!(sandbox.run(&resend).status.code(), Some(2));
    assert_eq!(sandbox.run(&["dead", "resend", "mails", "no-such-job"]).status.code(), Some(3));
}

#[test]
fn existing_plan_is_not_overwritten() {
    use std::os::unix::fs::PermissionsExt;
    let sandbox = Sandbox::with_mails(1, 1);
    let plan = sandbox.path("plan.json");
    let path = plan.to_str().unwrap();
    for arguments in [["dead", "redrive", "mails", "--all"], ["cancel", "mails", "--kind", "mail"]] {
        let _ = std::fs::remove_file(&plan);
        let preview = [&arguments[..], &["--dry-run", "--plan", path]].concat();
        sandbox.ok(&preview);
        let text = std::fs::read_to_string(&plan).unwrap();
        assert_eq!(std::fs::metadata(&plan).unwrap().permissions().mode() & 0o007, 0);
        let refused = sandbox.run(&preview);
        assert_eq!(refused.status.code(), Some(1), "{}", error_text(&refused));
        assert!(error_text(&refused).contains("exists"), "{}", error_text(&refused));
        assert_eq!(std::fs::read_to_string(&plan).unwrap(), text);
    }
}

#[test]
fn dry_run_that_matches_nothing_leaves_no_plan() {
    let sandbox = Sandbox::with_mails(1, 1);
    let plan = sandbox.path("plan.json");
    let path = plan.to_str().unwrap();
    for arguments in [
        ["cancel", "mails", "--kind", "none"],
        ["dead", "redrive", "no-such-queue", "--all"],
        ["dead", "redrive", "mails", "--kind=none"],
        ["dead", "purge", "mails", "--kind=none"],
    ] {
        let nothing = sandbox.run(&[&arguments[..], &["--dry-run", "--plan", path]].concat());
        assert_eq!(nothing.status.code(), Some(3), "{}", error_text(&nothing));
        assert!(!plan.exists(), "{arguments:?}");
    }
}

// `--text` would also select dead letters whose key only contains the text.
#[test]
fn key_selects_dead_letters_exactly() {
    let sandbox = Sandbox::with_mails(0, 0);
    sandbox.ok(&["queue", "create", "mails"]);
    for key in ["ada", "canada"] {
        let arguments = ["send", "mails", "--kind", "mail", "--id", key, "--key", key];
        let sent = with_input(&sandbox, &arguments, r#"{"to":"someone@example.org"}"#);
        assert!(sent.status.success(), "{}", error_text(&sent));
    }
    reject_all(&sandbox.storage);
    sandbox.ok(&["dead", "purge", "mails", "--key", "ada", "--yes"]);
    let left = sandbox.json(&["dead", "list", "mails"]);
    let ids: Vec<_> = left["letters"].as_array().unwrap().iter().map(|letter| &letter["id"]).collect();
    assert_eq!(ids, ["canada"]);
}

// An empty text may come from an unset shell variable, and would be no condition.
#[test]
fn empty_condition_is_refused() {
    let sandbox = Sandbox::with_mails(1, 1);
    let mail = sandbox.path("mail.json");
    std::fs::write(&mail, r#"{"to":"ada@example.org"}"#).unwrap();
    let mail = mail.to_str().unwrap();
    for arguments in [
        &["dead", "purge", "mails", "--kind", "mail", "--yes", "--text", ""][..],
        // round 34, A4: it selected all messages that are no events.
        &["dead", "purge", "mails", "--kind", "", "--yes"],
        &["dead", "redrive", "mails", "--id", ""],
        &["dead", "list", "mails", "--text="],
        &["cancel", "mails", "--kind", ""],
        &["cancel", "mails", "--key", ""],
        &["peek", "mails", "--state", "waiting", "--text", ""],
        &["history", "--error", ""],
        &["send", "mails", "--kind", "mail", "--key", ""],
        // round 35, E3: the job was sent under a new id, also where the send was to be repeated.
        &["send", "mails", "--kind", "mail", "--file", mail, "--id", ""],
        &["send", "mails", "--kind", "mail", "--file", mail, "--source", ""],
        &["send", "mails", "--kind", "", "--file", mail],
        &["dead", "resend", "mails", "dead-0", "--id", ""],
        &["explain", "mails", "dead-0", "--source", ""],
    ] {
        let output = sandbox.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", error_text(&output));
    }
    assert_eq!(sandbox.counts(), (1, 1));
}
