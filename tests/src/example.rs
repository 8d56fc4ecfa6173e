//! Runs the example programs.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Builds the example `name` if it is not up to date, and returns the path of its program.
///
/// # Panics
/// If it cannot be built.
pub fn built(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let status = Command::new(env!("CARGO"))
        // Builds the whole workspace, so that the library has the same features as in `cargo test`.
        .args(["build", "--quiet", "--workspace", "--example", name])
        .args(feature(name).map(|feature| format!("--features=jobqueue-examples/{feature}")))
        // With the profile of the tests, or the crates below would be compiled a second time.
        .args(std::env::var("JOBQUEUE_CARGO_CONFIG").map(|file| format!("--config={file}")))
        .current_dir(root)
        .status()
        .expect("cargo starts");
    assert!(status.success(), "the example `{name}` cannot be built");
    jobqueue_test_support::target_folder()
        .join("debug/examples")
        .join(name)
        .with_extension(std::env::consts::EXE_EXTENSION)
}

/// Returns the feature that an example requires.
fn feature(example: &str) -> Option<&'static str> {
    match example {
        "azure" => Some("azure"),
        "02_validation" => Some("validation"),
        "09_schedules" | "mailing_list" => Some("schedule"),
        "shop" => Some("dashboard"),
        "telemetry" => Some("telemetry"),
        _ => None,
    }
}

/// Returns the output of a program, followed by its errors.
pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
