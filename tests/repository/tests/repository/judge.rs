//! Checks that each sentence of the judge of the worlds is shown to be reported: a defect is planted, or
//! evidence of one.

use std::collections::BTreeSet;
use std::fs;

use crate::{root, rust_files};

/// The folders with the checks, and the ends of the names of files that plant defects.
const CHECKS: [&str; 2] = ["tests/tests/world", "crates/testing/src/world"];
const PLANTED: [&str; 4] =
    ["checks/planted.rs", "planted/schedule_defects.rs", "checks/noticed.rs", "planted/mod.rs"];

/// The sentences for which nothing is planted. The list may only get shorter.
const UNPLANTED: &[&str] = &[
    "a batch is sealed with fewer children than were sent",
    "a blob is left over",
    "a checkpoint cannot be read",
    "a payload is missing",
    "a queue cannot be read",
    "a search does not come to its end",
    "a search of the journal misses or repeats jobs",
    "a sweep deletes the payload of a dead letter",
    "a worker that sweeps its journal does not end",
    "blobs cannot be swept",
    "dead letters cannot be read",
    "pages of the journal have no end",
    "the journal cannot be searched",
    "the journal is kept for too long",
    "the world panicked",
    "unique work was sent by both of two",
];

/// Returns the sentences with which a text makes findings.
fn sentences(text: &str) -> impl Iterator<Item = &str> {
    let calls = ["finding(", ".wrong(", "what: ", "(what, subject) = ("];
    calls.into_iter().flat_map(move |call| {
        text.split(call).skip(1).filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next())
    })
}

#[test]
fn every_sentence_of_the_judge_is_planted() {
    let (mut all, mut planted) = (BTreeSet::new(), String::new());
    for path in CHECKS.iter().flat_map(|folder| rust_files(&root().join(folder))) {
        let text = fs::read_to_string(&path).unwrap();
        let is_planted = PLANTED.iter().any(|planted| path.ends_with(planted));
        let (checks, tests) = match text.split_once("#[cfg(test)]") {
            _ if is_planted => ("", &*text),
            Some((checks, tests)) => (checks, tests),
            None => (&*text, ""),
        };
        all.extend(sentences(checks).map(str::to_owned));
        planted.push_str(tests);
    }
    all.retain(|sentence| !planted.contains(&format!("\"{sentence}")));
    assert_eq!(Vec::from_iter(all), UNPLANTED);
}
