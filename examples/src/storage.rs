//! The storage of an example.

use std::path::Path;

use jobqueue::{Error, Storage};

/// Opens `given` (from `--storage` or `JOBQUEUE_STORAGE`), or the SQLite file `target/<name>.db`.
///
/// # Errors
/// The string names no storage, or the storage cannot be opened.
pub async fn open_storage(given: Option<&str>, name: &str) -> Result<Storage, Error> {
    let from_environment = std::env::var("JOBQUEUE_STORAGE").ok();
    match given.map(str::to_owned).or(from_environment) {
        Some(connection) => Storage::connect(&connection).await,
        None => {
            // If the folder cannot be created, opening the file in it fails and says why.
            let _ = std::fs::create_dir_all(Path::new("target"));
            Storage::connect(&format!("sqlite:target/{name}.db")).await
        }
    }
}
