//! Installs Azurite by the committed lockfile, once for all test programs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is written to whoever has no Node.
const INSTALL_NODE: &str = "the Azure tests need Node.js 20 or newer with npm, for the emulator Azurite; \
    install it with `apt-get install nodejs npm`, `brew install node`, or from https://nodejs.org";

/// The program to start with Node, installed if it is missing or of another version.
///
/// # Panics
/// Without Node or npm, and when npm cannot install it.
pub(super) fn azurite() -> PathBuf {
    let folder = crate::target_folder().join("azurite");
    fs::create_dir_all(&folder).expect("a folder in target");
    // Test programs run at the same time; one installs, the others wait.
    let lock = File::create(folder.join(".lock")).expect("a lock file");
    lock.lock().expect("the lock");
    check_node();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("azurite");
    let wanted = fs::read(source.join("package-lock.json")).expect("the committed lockfile");
    let program = folder.join("node_modules/azurite/dist/src/azurite.js");
    let stamp = folder.join(".installed");
    if fs::read(&stamp).ok().as_deref() != Some(wanted.as_slice()) || !program.exists() {
        for name in ["package.json", "package-lock.json"] {
            fs::copy(source.join(name), folder.join(name)).expect("a copy in target");
        }
        npm_ci(&folder);
        fs::write(&stamp, &wanted).expect("a stamp in target");
    }
    program
}

fn check_node() {
    let version = Command::new("node").arg("--version").output();
    let version =
        version.unwrap_or_else(|error| panic!("`node` cannot be started ({error}): {INSTALL_NODE}"));
    let text = String::from_utf8_lossy(&version.stdout);
    let major =
        text.trim().trim_start_matches('v').split('.').next().and_then(|major| major.parse::<u32>().ok());
    assert!(major.is_some_and(|major| major >= 20), "Node is {}: {INSTALL_NODE}", text.trim());
}

fn npm_ci(folder: &Path) {
    let npm = if cfg!(windows) { "npm.cmd" } else { "npm" };
    let done = Command::new(npm)
        // No scripts of 374 packages are run for it.
        .args(["ci", "--prefer-offline", "--no-audit", "--no-fund", "--ignore-scripts"])
        .current_dir(folder)
        .output()
        .unwrap_or_else(|error| panic!("`npm` cannot be started ({error}): {INSTALL_NODE}"));
    assert!(
        done.status.success(),
        "`npm ci` in {} failed; is the network or npm's cache there?\n{}",
        folder.display(),
        String::from_utf8_lossy(&done.stderr)
    );
}
