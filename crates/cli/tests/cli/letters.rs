//! Resending of a dead letter, and reports of changes of dead letters.

use std::io::Write;
use std::process::{Output, Stdio};

use crate::support::{Sandbox, error_text, hold_payloads, reject_all};

/// Sends a payload from standard input, and has a worker reject the job.
fn send_and_reject(sandbox: &Sandbox, arguments: &[&str], payload: &[u8]) {
    let arguments = [&["send", "mails", "--kind", "mail"], arguments].concat();
    assert!(with_input(sandbox, &arguments, payload).status.success());
    reject_all(&sandbox.storage);
}

fn with_input(sandbox: &Sandbox, arguments: &[&str], input: &[u8]) -> Output {
    let mut command = sandbox.command(arguments);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn copy_has_the_payload_and_the_headers_of_its_letter() {
    for bytes in [60, 120_000] {
        let sandbox = Sandbox::with_mails(0, 0);
        let options =
            ["--id", "one", "--content-type", "text/csv", "--header", "batchno=7", "--header", "tenant=blue"];
        send_and_reject(&sandbox, &options, "a,b\n".repeat(bytes / 4).as_bytes());
        let output = sandbox.run(&["dead", "resend", "mails", "one", "-o", "json"]);
        assert!(output.status.success(), "{bytes}: {}", error_text(&output));
        let job = &sandbox.json(&["peek", "mails"])[0];
        assert_eq!(job["headers"]["batchno"], "7", "{job}");
        assert_eq!(job["headers"]["tenant"], "blue", "{job}");
        assert_eq!(job["content_type"], "text/csv", "{job}");
        assert_eq!(job["kind"], "mail", "{job}");
        let form = if bytes == 60 { "bytes" } else { "blob" };
        assert_eq!(job["payload"]["form"], form, "{job}");
    }
}

#[test]
fn copy_in_doubt_can_be_resent_under_its_id() {
    let sandbox = Sandbox::with_mails(0, 1);
    let file = sandbox.path("audit.ndjson");
    for _ in 0..2 {
        let sent =
            ["dead", "resend", "mails", "dead-0", "--id", "copy-1", "--audit-file", file.to_str().unwrap()];
        assert!(sandbox.ok(&sent).contains("sent copy-1"));
    }
    let text = std::fs::read_to_string(file).unwrap();
    let event: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert!(event["selection"].as_str().unwrap().contains("a copy of \"dead-0\" of mails"), "{event}");
}

#[test]
fn redrive_names_the_letters_that_it_deletes_as_copies() {
    let sandbox = Sandbox::with_mails(0, 0);
    for _ in 0..2 {
        send_and_reject(&sandbox, &["--id", "twice"], b"{\"to\":\"a\"}");
    }
    let preview = sandbox.ok(&["dead", "redrive", "mails", "--all", "--dry-run"]);
    assert!(
        preview.starts_with("1 would be put back") && preview.contains("1 would be deleted as a copy"),
        "{preview}"
    );
    let done = sandbox.ok(&["dead", "redrive", "mails", "--all"]);
    assert!(done.starts_with("1 put back") && done.contains("1 deleted as a copy"), "{done}");
}

#[test]
fn purge_that_leaves_a_payload_fails() {
    let sandbox = Sandbox::with_mails(0, 0);
    let large = format!("{{\"to\":\"{}\"}}", "x".repeat(100_000));
    send_and_reject(&sandbox, &[], large.as_bytes());
    hold_payloads(&sandbox.storage);
    let output = sandbox.run(&["dead", "purge", "mails", "--all", "--yes"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("1 deleted") && text.contains("the payload of 1 of them stays"), "{text}");
    assert_eq!(output.status.code(), Some(1), "{}", error_text(&output));
}

#[test]
fn unwritable_plan_is_refused_before_the_search() {
    let sandbox = Sandbox::with_mails(0, 2);
    let output =
        sandbox.run(&["dead", "redrive", "mails", "--all", "--dry-run", "--plan", "/no/such/folder/plan"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty(), "{output:?}");
    assert!(error_text(&output).contains("cannot be written"), "{}", error_text(&output));
}
