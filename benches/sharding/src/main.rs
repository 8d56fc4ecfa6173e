//! Simulates sharded queues under the limits that Azure publishes, and shows how throughput grows with shards
//! and accounts.
//!
//! The real queues, workers and sharded storage run on virtual time over accounts in memory that are
//! [limited].

mod limited;
mod plot;
mod report;
mod simulation;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::io::Write as _;
use std::path::PathBuf;

use clap::Parser;

use report::{Cell, Throttled};
use simulation::Setting;

/// The loads to try, as parts of the ideal load; the one with the most completed jobs counts.
const LOADS: &[f64] = &[0.5, 0.6, 0.7, 0.8, 0.9, 1.0];

/// Simulates queues on 1 to 64 shards in 1 to 8 accounts under Azure's published limits, on virtual time,
/// prints the figures, and writes them with a plot to `docs/sharding.md` and `docs/sharding.svg`. Takes a few
/// minutes.
#[derive(Debug, Parser)]
struct Options {
    /// Only a few settings and one load each; writes no files.
    #[arg(long)]
    brief: bool,
    /// Seed of the latencies.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The virtual seconds of each measurement.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// The folder for the page and the plot.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs"))]
    docs: PathBuf,
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let (shards, accounts, loads): (&[u32], &[u32], &[f64]) = if options.brief {
        (&[1, 2, 4, 8], &[1, 2], &[0.9])
    } else {
        (&[1, 2, 4, 8, 16, 32, 64], &[1, 2, 4, 8], LOADS)
    };
    let base = Setting { seconds: options.seconds, seed: options.seed, ..Setting::default() };
    let mut cells = Vec::new();
    for &accounts in accounts {
        for &shards in shards.iter().filter(|shards| **shards >= accounts) {
            progress(&format!("{shards} shards, {accounts} accounts"))?;
            cells.push(best(&Setting { shards, accounts, ..base.clone() }, loads)?);
        }
    }
    progress("one of 8 shards throttled hard")?;
    let throttled = one_throttled(&base)?;
    let text = report::text(&options.seed.to_string(), options.seconds, &cells, &throttled);
    writeln!(std::io::stdout(), "{text}")?;
    if !options.brief {
        report::write(&options.docs, &text)?;
        std::fs::write(options.docs.join("sharding.svg"), plot::svg(&cells))?;
    }
    Ok(())
}

fn progress(what: &str) -> std::io::Result<()> {
    writeln!(std::io::stderr(), "{what}")
}

/// Returns the run at the load with the most completed jobs.
fn best(setting: &Setting, loads: &[f64]) -> Result<Cell, jobqueue::Error> {
    let mut best: Option<Cell> = None;
    let settings = loads.iter().map(|&load| Setting { load, ..setting.clone() });
    // Each has a runtime and a time of its own.
    let runs = std::thread::scope(|scope| {
        let started: Vec<_> = settings.map(|setting| scope.spawn(|| (setting.run(), setting))).collect();
        started.into_iter().map(|run| run.join()).collect::<Vec<_>>()
    });
    for run in runs {
        let (outcome, setting) =
            run.map_err(|_| jobqueue::Error::new(jobqueue::ErrorKind::Unknown, "a run panicked"))?;
        let outcome = outcome?;
        if best.as_ref().is_none_or(|best| best.outcome.throughput < outcome.throughput) {
            best = Some(Cell { setting, outcome });
        }
    }
    best.ok_or_else(|| jobqueue::Error::new(jobqueue::ErrorKind::Invalid, "give at least one load"))
}

/// Runs the same load twice: with all shards healthy, and with one that serves a twentieth.
fn one_throttled(base: &Setting) -> Result<Throttled, jobqueue::Error> {
    let setting = Setting { shards: 8, accounts: 1, load: 0.6, ..base.clone() };
    let slow = Setting { slow: Some(100.0), ..setting.clone() };
    Ok(Throttled { well: setting.run()?, slow: slow.run()? })
}
