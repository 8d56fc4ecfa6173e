//! Jobs with the same id from several senders, and several dead letters of one job.

use crate::forged::with_input;
use crate::support::{Sandbox, error_text, reject_all};

fn send(sandbox: &Sandbox, source: &str, id: &str, options: &[&str]) {
    let arguments = ["send", "mails", "--kind", "mail", "--source", source, "--id", id];
    let sent = with_input(sandbox, &[&arguments, options].concat(), r#"{"to":"ada"}"#);
    assert!(sent.status.success(), "{}", error_text(&sent));
}

/// Returns a sandbox with a job `7` of each of two senders, and a job `8` of one sender.
fn two_senders(options: &[&str]) -> Sandbox {
    let sandbox = Sandbox::with_mails(0, 0);
    sandbox.ok(&["queue", "create", "mails"]);
    for (source, id) in [("/shop", "7"), ("/bank", "7"), ("/shop", "8")] {
        send(&sandbox, source, id, options);
    }
    sandbox
}

#[test]
fn id_of_two_senders_names_no_job() {
    let sandbox = two_senders(&["--delay", "1h"]);
    for command in ["cancel", "run-now", "explain"] {
        let refused = sandbox.run(&[command, "mails", "7"]);
        let error = error_text(&refused);
        assert_eq!(refused.status.code(), Some(2), "{command}: {error}");
        assert!(error.contains("/bank, /shop"), "{command}: {error}");
    }
    assert_eq!(sandbox.json(&["cancel", "mails", "7", "--source", "/bank", "--status"])["state"], "none");
    let made = sandbox.json(&["run-now", "mails", "7", "--source", "/bank"]);
    assert_eq!(made["source"], "/bank");
    assert_eq!(sandbox.json(&["peek", "mails"])[0]["source"], "/bank");
    let cancelled = sandbox.json(&["cancel", "mails", "7", "--source", "/shop"]);
    assert_eq!(cancelled["jobs"][0]["source"], "/shop");
}

// review 30, removals 6: three of these commands printed a sender unquoted, and a copied option ran what the
// sender had written.
#[test]
fn senders_to_choose_from_are_words_of_a_command() {
    let sandbox = Sandbox::with_mails(0, 0);
    sandbox.ok(&["queue", "create", "mails"]);
    for source in ["/shop", "/x;exit"] {
        send(&sandbox, source, "7", &[]);
    }
    let check = |command: &[&str]| {
        let refused = sandbox.run(&[command, &["mails", "7"]].concat());
        let error = error_text(&refused);
        assert_eq!(refused.status.code(), Some(2), "{command:?}: {error}");
        assert!(error.contains("/shop, '/x;exit'"), "{command:?}: {error}");
    };
    for command in ["cancel", "run-now", "explain"] {
        check(&[command]);
    }
    reject_all(&sandbox.storage);
    for command in ["show", "resend"] {
        check(&["dead", command]);
    }
}

#[test]
fn job_named_by_its_id_alone_is_changed_with_its_sender() {
    let sandbox = two_senders(&["--delay", "1h"]);
    assert_eq!(sandbox.json(&["run-now", "mails", "8"])["source"], "/shop");
    assert_eq!(sandbox.json(&["cancel", "mails", "8"])["jobs"][0]["source"], "/shop");
    // A job of another sender with this id, sent later, is not cancelled.
    send(&sandbox, "/bank", "8", &[]);
    assert_eq!(
        sandbox.json(&["explain", "mails", "8", "--source", "/bank"])["cancellation"]["state"],
        "none"
    );
}

#[test]
fn further_dead_letters_of_a_job_are_counted() {
    let sandbox = Sandbox::with_mails(0, 0);
    sandbox.ok(&["queue", "create", "mails"]);
    for _ in 0..2 {
        send(&sandbox, "/shop", "twice", &[]);
    }
    reject_all(&sandbox.storage);
    for arguments in [["dead", "show", "mails", "twice"], ["dead", "resend", "mails", "twice"]] {
        let output = sandbox.run(&arguments);
        assert!(output.status.success(), "{}", error_text(&output));
        assert!(error_text(&output).contains("2 dead letters"), "{arguments:?}: {}", error_text(&output));
    }
}
