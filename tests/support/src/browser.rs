//! A browser that the tests drive by scripts: Chromium from an npm package, with Playwright and axe.

use std::path::PathBuf;

use crate::node;

/// Installs Chromium, Playwright and axe by the committed lockfile, once for all test programs. Returns the
/// folder of the packages, for `NODE_PATH`.
///
/// # Panics
/// Without Node or npm, and when npm cannot install the packages; the text says what to do.
pub fn packages() -> PathBuf {
    node::packages("browser")
}

/// Returns the path of a script in `browser/`.
pub fn script(name: &str) -> PathBuf {
    node::source("browser").join(name)
}
