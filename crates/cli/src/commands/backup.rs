//! `backup`: a copy of a SQLite storage.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use crate::args::Global;
use crate::exit::Failure;
use crate::session::{Need, Session};

#[derive(Args)]
pub(crate) struct BackupArguments {
    /// The file to write, which must not exist
    file: PathBuf,
}

#[derive(Serialize)]
struct Copied {
    file: PathBuf,
    bytes: u64,
}

pub(crate) async fn run(global: &Global, arguments: BackupArguments) -> Result<(), Failure> {
    let session = Session::open(global, Need::Read).await?;
    let Some(from) = session.file else {
        let text = "only a SQLite storage can be copied; for PostgreSQL use its own tools, and on Azure the service keeps several copies itself";
        return Err(Failure::Usage(text.to_owned()));
    };
    let copied = jobqueue::sqlite::backup(from, &arguments.file).await;
    copied.map_err(|error| Failure::Failed(format!("{:?}", jobqueue::Error::from(error))))?;
    let bytes = std::fs::metadata(&arguments.file)?.len();
    let copied = Copied { file: arguments.file, bytes };
    global.output.value(&copied, || format!("{} bytes in {}", copied.bytes, copied.file.display()))
}
