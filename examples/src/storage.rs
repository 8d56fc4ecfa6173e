//! The storage of an example.

use std::path::Path;

use jobqueue::{Error, Storage};

/// Opens `given` (from `--storage` or `JOBQUEUE_STORAGE`), or the SQLite file `target/<name>.db`.
///
/// # Errors
/// The string names no storage, or the storage cannot be opened.
pub async fn open_storage(given: Option<&str>, name: &str) -> Result<Storage, Error> {
    connect(given.map(str::to_owned).or_else(|| std::env::var("JOBQUEUE_STORAGE").ok()), name).await
}

/// Opens the storage that `LESSON_STORAGE` names, or the SQLite file `target/<name>.db`.
///
/// Lessons clear their queues, so they do not use the storage that `JOBQUEUE_STORAGE` names: it is exported
/// for the command line, and may be one in operation.
///
/// # Errors
/// The errors of [`open_storage`].
pub async fn lesson_storage(name: &str) -> Result<Storage, Error> {
    connect(std::env::var("LESSON_STORAGE").ok(), name).await
}

async fn connect(connection: Option<String>, name: &str) -> Result<Storage, Error> {
    match connection {
        Some(connection) => Storage::connect(&connection).await,
        None => {
            // If the folder cannot be created, opening the file in it fails and says why.
            let _ = std::fs::create_dir_all(Path::new("target"));
            Storage::connect(&format!("sqlite:target/{name}.db")).await
        }
    }
}
