//! docs/invariants.md names tests that exist.

use std::fs;
use std::path::{Path, PathBuf};

fn sources(folder: &Path, found: &mut String) {
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push_str(&fs::read_to_string(path).unwrap());
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn every_test_the_table_of_guarantees_names_exists() {
    let mut code = String::new();
    for folder in ["tests/tests", "tests/src", "jobqueue/src", "jobqueue/tests", "benches/sharding"] {
        if root().join(folder).is_dir() {
            sources(&root().join(folder), &mut code);
        }
    }
    let table = fs::read_to_string(root().join("jobqueue/src/docs/guarantees.md")).unwrap();
    // A test is named in backquotes and has at least three words.
    let names: Vec<&str> = table
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|name| {
            name.matches('_').count() >= 2
                && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        })
        .collect();
    assert!(names.len() > 50, "only {} tests are named", names.len());
    let missing: Vec<&&str> = names.iter().filter(|name| !code.contains(&format!("fn {name}("))).collect();
    assert!(missing.is_empty(), "not there: {missing:#?}");
}
