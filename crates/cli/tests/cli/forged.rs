//! Jobs whose senders put line breaks and control characters into texts that the program prints.

use std::io::Write;
use std::process::{Output, Stdio};

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
