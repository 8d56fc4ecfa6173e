//! Code that the tests and the benchmarks share: external programs that they install and start, and a queue
//! service in memory. It knows nothing of jobqueue.

pub mod azurite;
pub mod browser;
pub mod canned;
mod node;
pub mod pgbouncer;
pub mod postgres;
pub mod python;
pub mod servicebus;

use std::path::{Path, PathBuf};

/// Returns the folder of build products, where downloads are kept.
pub fn target_folder() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"),
    }
}
