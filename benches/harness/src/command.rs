//! The command line that all measured programs share.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::child::{self, ChildArgs};
use crate::machine::Machine;
use crate::phase::{self, Phase, Setting};
use crate::report::{Figures, Report, progress};
use crate::subject::{Result, Subject};
use crate::trial::{self, SendArgs, WorkArgs};

/// Measures a job system on a local file, phase by phase.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs all phases, or those named.
    All(AllArgs),
    /// Prints versions, durability and settings as JSON.
    About,
    /// Sends jobs one by one: a part of a trial.
    Send(SendArgs),
    /// Works until it is killed: a part of a trial.
    Work(WorkArgs),
    /// The mode in which the program starts itself.
    #[command(hide = true)]
    Child(ChildArgs),
}

#[derive(Debug, Args)]
struct AllArgs {
    /// The file for the figures.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Runs a few jobs only: shows that it works, and measures little.
    #[arg(long)]
    quick: bool,
    /// The number of jobs of each phase that counts jobs, for tools that count instructions.
    #[arg(long)]
    jobs: Option<u64>,
    /// Runs only this phase; can be given several times.
    #[arg(long = "phase", value_enum, value_name = "PHASE")]
    phases: Vec<Phase>,
    /// The folder for the stores, which should be on the disk in question; the default is the system's temporary
    /// directory.
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

/// Runs a measured program.
///
/// # Errors
/// The first error of the system or of the operating system.
pub fn main<S: Subject>() -> Result<()> {
    main_with::<S, _>(async |_, _| Ok(Figures::default()))
}

/// Like [`main`], with further phases after the common ones.
///
/// # Errors
/// Those of [`main`].
pub fn main_with<S, F>(own: F) -> Result<()>
where
    S: Subject,
    F: AsyncFnOnce(Phase, Setting) -> Result<Figures> + Copy,
{
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    match cli.command {
        Command::About => trial::about::<S>(),
        Command::Send(args) => runtime.block_on(trial::send::<S>(args)),
        Command::Work(args) => runtime.block_on(trial::work::<S>(args)),
        Command::Child(args) => runtime.block_on(child::serve::<S>(args)),
        Command::All(args) => runtime.block_on(all::<S, F>(args, own)),
    }
}

async fn all<S, F>(args: AllArgs, own: F) -> Result<()>
where
    S: Subject,
    F: AsyncFnOnce(Phase, Setting) -> Result<Figures> + Copy,
{
    let directory = args.directory.unwrap_or_else(std::env::temp_dir);
    std::fs::create_dir_all(&directory)?;
    let about = S::about();
    let machine = Machine::look(&directory)?;
    let mut results = Figures::default();
    for phase in Phase::all().filter(|phase| args.phases.is_empty() || args.phases.contains(phase)) {
        if !S::supports(phase) {
            continue;
        }
        progress(&format!("{}: {}", about.system, phase.name()));
        let setting = Setting { quick: args.quick, jobs: args.jobs, directory: directory.clone() };
        if matches!(phase, Phase::Leases | Phase::Order) {
            results.extend(own(phase, setting).await?);
        } else {
            results.extend(phase::run::<S>(phase, &setting).await?);
        }
    }
    let report = Report { about, machine, quick: args.quick, results };
    args.json.map_or(Ok(()), |path| report.write(&path))
}
