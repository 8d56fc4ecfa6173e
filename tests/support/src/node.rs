//! Packages of npm, installed by a committed lockfile, once for all test programs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The error text for a machine without Node.
const INSTALL_NODE: &str = "the tests need Node.js 20 or newer with npm, for emulators and a browser; \
    install it with `apt-get install nodejs npm`, `brew install node`, or from https://nodejs.org";

/// Installs the packages that the lockfile in the folder `NAME` beside `src` lists into `target/NAME`, unless
/// they are there. Returns the path of `node_modules`.
///
/// # Panics
/// Without Node or npm, and when npm cannot install the packages.
pub(crate) fn packages(name: &str) -> PathBuf {
    let folder = crate::target_folder().join(name);
    fs::create_dir_all(&folder).expect("a folder in target");
    // Test programs run at the same time; one installs, the others wait.
    let lock = File::create(folder.join(".lock")).expect("a lock file");
    lock.lock().expect("the lock");
    check_node();
    let source = source(name);
    let wanted = fs::read(source.join("package-lock.json")).expect("the committed lockfile");
    let packages = folder.join("node_modules");
    let stamp = folder.join(".installed");
    if fs::read(&stamp).ok().as_deref() != Some(wanted.as_slice()) || !packages.exists() {
        for name in ["package.json", "package-lock.json"] {
            fs::copy(source.join(name), folder.join(name)).expect("a copy in target");
        }
        npm_ci(&folder);
        fs::write(&stamp, &wanted).expect("a stamp in target");
    }
    fs::canonicalize(packages).expect("the folder that npm has made")
}

/// Returns the folder of the tree with that name.
pub(crate) fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
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
        // No scripts of hundreds of packages are run for it.
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
