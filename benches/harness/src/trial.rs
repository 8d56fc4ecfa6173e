//! The parts of a trial in which processes are killed and stopped from outside, by `benches/crash`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;

use crate::seen::Seen;
use crate::subject::{Result, Subject};

#[derive(Debug, Args)]
pub(crate) struct SendArgs {
    /// The folder of the store, which is created in it.
    #[arg(long)]
    store: PathBuf,
    /// The number of jobs.
    #[arg(long, default_value_t = 1)]
    jobs: u64,
}

#[derive(Debug, Args)]
pub(crate) struct WorkArgs {
    /// The folder of the store, which is created in it.
    #[arg(long)]
    store: PathBuf,
    /// The number of seconds that each job lasts.
    #[arg(long, default_value_t = 0)]
    seconds: u64,
}

/// Sends jobs, each awaited before the next.
pub(crate) async fn send<S: Subject>(args: SendArgs) -> Result<()> {
    let subject = S::open(&args.store).await?;
    for number in 0..args.jobs {
        subject.send(&S::job(number, 0)).await?;
    }
    Ok(())
}

/// Works until the process is killed.
pub(crate) async fn work<S: Subject>(args: WorkArgs) -> Result<()> {
    let subject = S::open(&args.store).await?;
    let seen = Arc::new(Seen::lasting(Duration::from_secs(args.seconds)));
    let _worker = subject.work(64, seen).await?;
    std::future::pending().await
}

/// Prints the description of the system as JSON.
#[expect(clippy::print_stdout, reason = "scripts read it")]
pub(crate) fn about<S: Subject>() -> Result<()> {
    println!("{}", serde_json::to_string(&S::about())?);
    Ok(())
}
