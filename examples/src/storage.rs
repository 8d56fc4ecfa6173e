//! The storage an example runs on.

use std::path::Path;

use jobqueue::{Error, Storage};

/// Opens `given` (from `--storage` or `JOBQUEUE_STORAGE`), or the SQLite file `target/<name>.db`.
///
/// # Errors
/// A string that names no storage, or what the storage says.
pub async fn open_storage(given: Option<&str>, name: &str) -> Result<Storage, Error> {
    let from_environment = std::env::var("JOBQUEUE_STORAGE").ok();
    match given.map(str::to_owned).or(from_environment) {
        Some(connection) => Storage::connect(&connection).await,
        None => {
            // A folder that cannot be made is told by opening the file in it.
            let _ = std::fs::create_dir_all(Path::new("target"));
            Storage::connect(&format!("sqlite:target/{name}.db")).await
        }
    }
}
