//! `backup`: a copy of a SQLite storage.

use std::path::PathBuf;
use std::pin::pin;

use clap::Args;
#[cfg(feature = "sqlite")]
use jobqueue::sqlite::backup as copy;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::args::Global;
use crate::exit::Failure;
use crate::output::say;
use crate::session::{Need, Session};

#[derive(Args)]
pub(crate) struct BackupArguments {
    /// The file to write, which must not exist
    file: PathBuf,
}

#[derive(Serialize)]
struct BackupReport {
    file: PathBuf,
    bytes: u64,
}

pub(crate) async fn run(
    global: &Global,
    arguments: BackupArguments,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    let session = Session::open(global, Need::Read).await?;
    let Some(from) = session.file else {
        let text = "only a SQLite storage can be copied; for PostgreSQL use its own tools, and on Azure the \
                    service itself keeps several copies";
        return Err(Failure::Usage(text.to_owned()));
    };
    let mut copying = pin!(copy(from, arguments.file.clone()));
    let copied = tokio::select! {
        biased;
        copied = &mut copying => copied,
        () = stop.cancelled() => {
            let file = arguments.file.display();
            say(&format!("finishing the copy first; a second signal leaves a partial copy as {file}.*.part"));
            copying.await
        }
    };
    copied.map_err(|error| Failure::Failed(format!("{:?}", jobqueue::Error::from(error))))?;
    let bytes = std::fs::metadata(&arguments.file)?.len();
    let copied = BackupReport { file: arguments.file, bytes };
    let text = "to restore it, stop all processes, move the storage's file away together with its -wal and \
                -shm files, and put the copy in its place";
    global.output.value(&copied, || format!("{} bytes in {}\n{text}", copied.bytes, copied.file.display()))
}

/// Never called: without the feature no SQLite storage can be opened.
#[cfg(not(feature = "sqlite"))]
async fn copy(from: String, _: PathBuf) -> Result<(), jobqueue::storage::StoreError> {
    let kind = jobqueue::storage::StoreErrorKind::Unsupported;
    Err(jobqueue::storage::StoreError::new(kind, "copy storage", from))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use jobqueue::Storage;

    use super::*;
    use crate::commands::{self, Cli};

    #[tokio::test]
    async fn interrupted_backup_leaves_a_complete_copy() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("jobs.db"), folder.path().join("copy.db"));
        let storage = format!("sqlite:{}", from.display());
        drop(Storage::connect(&storage).await.unwrap());
        let stop = CancellationToken::new();
        stop.cancel();
        let arguments = ["jobqueue", "--storage", &storage, "backup", to.to_str().unwrap()];
        let ended = commands::run(Cli::parse_from(arguments), &stop).await;
        assert!(ended.is_ok(), "{ended:?}");
        assert!(to.exists());
    }
}
