//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use jobqueue_bench_harness::{About, Figures, Result, progress, write_report};
use jobqueue_test_support::azurite::Azurite;

use crate::instructions::{self, CannedArgs};
use crate::job::Size;
use crate::{celery, idle, load};

/// Measures jobqueue on Azurite, the emulator of Azure Storage, which is installed with npm if it is missing.
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
    /// Sends and processes short jobs with answers from this process, and measures nothing: for profilers.
    Canned(CannedArgs),
}

#[derive(Debug, Args)]
struct AllArgs {
    /// The file for the figures.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Runs a few jobs only: shows that it works, and measures little.
    #[arg(long)]
    quick: bool,
    /// Runs only this phase; can be given several times.
    #[arg(long = "phase", value_enum, value_name = "PHASE")]
    phases: Vec<Phase>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Phase {
    /// Requests of each kind of job, counted by a proxy.
    Requests,
    /// Times with short jobs.
    Short,
    /// Times with 64 KiB in a blob.
    Offloaded64k,
    /// Times with 1 MiB in a blob.
    Offloaded1m,
    /// Requests of an idle worker.
    Idle,
    /// Processor time with answers from this process.
    Processor,
    /// Celery with kombu's transport for Azure Storage queues.
    Celery,
}

pub(crate) fn main() -> Result<()> {
    match Cli::parse().command {
        Command::All(args) => {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            runtime.block_on(all(args))
        }
        Command::Canned(args) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(instructions::run(&args))
        }
    }
}

async fn all(args: AllArgs) -> Result<()> {
    let quick = args.quick;
    let mut results = Figures::default();
    for &phase in Phase::value_variants() {
        if !args.phases.is_empty() && !args.phases.contains(&phase) {
            continue;
        }
        progress(&format!("{phase:?}"));
        results.extend(match phase {
            Phase::Requests => {
                let mut figures = Figures::default();
                for &size in Size::value_variants() {
                    figures.extend(load::requests(Azurite::shared(), size, quick).await?);
                }
                figures
            }
            Phase::Short => load::times(Azurite::shared(), Size::Short, quick).await?,
            Phase::Offloaded64k => load::times(Azurite::shared(), Size::Kib64, quick).await?,
            Phase::Offloaded1m => load::times(Azurite::shared(), Size::Mib1, quick).await?,
            Phase::Idle => idle::idle(Azurite::shared(), quick).await?,
            Phase::Processor => {
                // On one thread, as it takes no turns.
                tokio::task::spawn_blocking(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                    runtime.block_on(load::processor(quick))
                })
                .await??
            }
            Phase::Celery => celery::celery(Azurite::shared(), quick).await?,
        });
    }
    let versions = [
        ("jobqueue", env!("CARGO_PKG_VERSION")),
        ("azure_storage_queue", "1.1"),
        ("azure_storage_blob", "1.1"),
        ("Azurite", "3.35"),
        ("Celery", "5.7"),
    ];
    let about = About {
        system: "jobqueue".into(),
        versions: versions.map(|(name, version)| (name.to_owned(), version.to_owned())).into(),
        durability: "Azurite".into(),
        settings: "defaults".into(),
    };
    match args.json {
        Some(path) => write_report(about, quick, &std::env::temp_dir(), results, &path),
        None => Ok(()),
    }
}
