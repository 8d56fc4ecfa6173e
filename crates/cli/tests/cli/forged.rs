//! Jobs whose senders put line breaks and control characters into texts that the program prints.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use crate::support::{Sandbox, error_text, reject_all};

/// A payload that has a whole document on a separate line, and other white space between its tokens.
const PAYLOAD: &str =
    "{\"a\":[1,\n{\"id\":\"forged\",\"state\":\"dead\"}\n],\"to\":\"eve\",\r\t \"note\":\"1\\n2\"}";

/// Runs a command with `input` on standard input.
pub(crate) fn with_input(sandbox: &Sandbox, arguments: &[&str], input: &str) -> Output {
    let mut command = sandbox.command(arguments);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn white_space_of_a_payload_adds_no_line() {
    let sandbox = Sandbox::with_mails(0, 0);
    sandbox.ok(&["queue", "create", "mails"]);
    let sent = with_input(&sandbox, &["send", "mails", "--kind", "mail", "--id", "one"], PAYLOAD);
    assert!(sent.status.success(), "{}", error_text(&sent));
    let only_line = |arguments: &[&str]| {
        let text = sandbox.ok(&[arguments, &["--output", "ndjson"]].concat());
        let document: serde_json::Value =
            serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert_eq!(text.lines().count(), 1, "{text}");
        document
    };
    let job = only_line(&["peek", "mails"]);
    assert_eq!(job["payload"]["value"], serde_json::from_str::<serde_json::Value>(PAYLOAD).unwrap());
    only_line(&["explain", "mails", "one"]);
    reject_all(&sandbox.storage);
    for arguments in [
        &["dead", "list", "mails"][..],
        &["dead", "show", "mails", "one"],
        &["dead", "show", "mails", "one", "--payload"],
    ] {
        only_line(arguments);
        let pretty = sandbox.ok(&[arguments, &["--output", "json"]].concat());
        assert!(!pretty.contains('\r') && !pretty.contains("\n{\"id\":\"forged\""), "{pretty}");
    }
    let shown = sandbox.ok(&["dead", "show", "mails", "one", "--payload"]);
    assert_eq!(shown.lines().count(), 1, "{shown}");
    assert!(!shown.contains('\r') && !shown.contains('\t'), "{shown}");
}

// round 30, operator 1: the hint of a page that ended inside a key ran a command of the sender, if it was copied.
#[test]
fn mark_of_a_page_is_one_word_of_a_command_whatever_the_key() {
    for key in ["ada", "x'; exit 7; '", "a\nb", "$(exit 7)`exit 7`\"", "d'Arc"] {
        let sandbox = Sandbox::new();
        sandbox.ok(&["queue", "create", "mails"]);
        for id in ["one", "two", "three"] {
            let job = ["send", "mails", "--kind", "mail", "--id", id, "--key", key, "--in-order"];
            let sent = with_input(&sandbox, &job, "{}");
            assert!(sent.status.success(), "{}", error_text(&sent));
        }
        let list = ["peek", "mails", "--state", "waiting", "--limit", "2"];
        let page = sandbox.json(&list);
        let next = page["next"].as_str().unwrap();
        let error = error_text(&sandbox.run(&list));
        let (_, hint) = error.trim_end().split_once("add ").unwrap();
        let shell = Command::new("sh").args(["-c", &format!("printf '%s\\n' {hint}")]).output().unwrap();
        assert!(shell.status.success(), "{key:?}: {hint}: {}", error_text(&shell));
        assert_eq!(String::from_utf8(shell.stdout).unwrap(), format!("--from\n{next}\n"), "{key:?}");
        let rest = sandbox.json(&[&list[..], &["--from", next]].concat());
        assert_eq!(rest["jobs"][0]["id"], "three", "{key:?}: {rest}");
    }
}
