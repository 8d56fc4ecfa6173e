//! Jobs with the same id from several senders, and several dead letters of one job.

use crate::forged::with_input;
use crate::support::{Place, error_text, reject_all};

fn send(place: &Place, source: &str, id: &str, options: &[&str]) {
    let arguments = ["send", "mails", "--kind", "mail", "--source", source, "--id", id];
    let sent = with_input(place, &[&arguments, options].concat(), r#"{"to":"ada"}"#);
    assert!(sent.status.success(), "{}", error_text(&sent));
}

/// Returns a place with a job `7` of each of two senders, and a job `8` of one sender.
fn two_senders(options: &[&str]) -> Place {
    let place = Place::with_mails(0, 0);
    place.ok(&["queue", "create", "mails"]);
    for (source, id) in [("/shop", "7"), ("/bank", "7"), ("/shop", "8")] {
        send(&place, source, id, options);
    }
    place
}

#[test]
fn id_of_two_senders_names_no_job() {
    let place = two_senders(&["--delay", "1h"]);
    for command in ["cancel", "run-now", "explain"] {
        let refused = place.run(&[command, "mails", "7"]);
        let error = error_text(&refused);
        assert_eq!(refused.status.code(), Some(2), "{command}: {error}");
        assert!(error.contains("/bank, /shop"), "{command}: {error}");
    }
    assert_eq!(place.json(&["cancel", "mails", "7", "--source", "/bank", "--status"])["state"], "none");
    let made = place.json(&["run-now", "mails", "7", "--source", "/bank"]);
    assert_eq!(made["source"], "/bank");
    assert_eq!(place.json(&["peek", "mails"])[0]["source"], "/bank");
    let cancelled = place.json(&["cancel", "mails", "7", "--source", "/shop"]);
    assert_eq!(cancelled["jobs"][0]["source"], "/shop");
}

#[test]
fn job_named_by_its_id_alone_is_changed_with_its_sender() {
    let place = two_senders(&["--delay", "1h"]);
    assert_eq!(place.json(&["run-now", "mails", "8"])["source"], "/shop");
    assert_eq!(place.json(&["cancel", "mails", "8"])["jobs"][0]["source"], "/shop");
    // A job of another sender with this id, sent later, is not cancelled.
    send(&place, "/bank", "8", &[]);
    assert_eq!(place.json(&["explain", "mails", "8", "--source", "/bank"])["cancellation"]["state"], "none");
}

#[test]
fn further_dead_letters_of_a_job_are_counted() {
    let place = Place::with_mails(0, 0);
    place.ok(&["queue", "create", "mails"]);
    for _ in 0..2 {
        send(&place, "/shop", "twice", &[]);
    }
    reject_all(&place.storage);
    for arguments in [["dead", "show", "mails", "twice"], ["dead", "resend", "mails", "twice"]] {
        let output = place.run(&arguments);
        assert!(output.status.success(), "{}", error_text(&output));
        assert!(error_text(&output).contains("2 dead letters"), "{arguments:?}: {}", error_text(&output));
    }
}
