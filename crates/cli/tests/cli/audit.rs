//! The audit file: each change of an operator, one JSON document a line.

use crate::support::Place;

fn lines(place: &Place) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(place.path("audit.ndjson")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn changes_are_appended_to_the_audit_file() {
    let place = Place::with_mails(0, 2);
    let file = place.path("audit.ndjson");
    let audited = |arguments: &[&str]| {
        let file = file.to_str().unwrap();
        place.run(&[arguments, &["--audit-file", file, "--operator", "ada"]].concat())
    };
    assert!(audited(&["queues"]).status.success());
    assert!(lines(&place).is_empty(), "a look is no change");
    assert!(audited(&["queue", "pause", "mails"]).status.success());
    assert!(audited(&["dead", "redrive", "mails", "--id", "dead-0"]).status.success());
    assert!(audited(&["sweep"]).status.success());
    let told = lines(&place);
    let actions: Vec<&str> = told.iter().map(|line| line["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["pause", "redrive", "sweep"]);
    assert!(told.iter().all(|line| line["operator"] == "ada" && line["result"] == "done"), "{told:?}");
}

#[test]
fn change_that_cannot_be_recorded_is_not_made() {
    let place = Place::with_mails(1, 0);
    let refused = place.run(&["queue", "pause", "mails", "--audit-file", "/no/such/folder/audit"]);
    assert_eq!(refused.status.code(), Some(4));
    assert_eq!(place.json(&["queue", "show", "mails"])["paused"], false);
}

#[test]
fn refused_change_is_recorded_too() {
    let place = Place::with_mails(1, 0);
    let text = format!("[contexts.night]\nstorage = \"{}\"\naccess = [\"pause\"]\n", place.storage);
    place.configure(&text);
    let file = place.path("audit.ndjson");
    let sweep = ["--context", "night", "--audit-file", file.to_str().unwrap(), "sweep"];
    assert_eq!(place.without_storage(&sweep).output().unwrap().status.code(), Some(4));
    let told = lines(&place);
    assert_eq!(told[0]["action"], "sweep");
    assert_eq!(told[0]["result"], "refused");
}
