//! The phases, each on a new store.

mod depth;
mod idle;
mod latency;
mod mixed;
mod process;
mod send;

use std::path::PathBuf;

use clap::ValueEnum;
use tempfile::TempDir;

use crate::report::Figures;
use crate::subject::{Result, Subject};

/// A phase of the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Phase {
    /// Sending, each awaited before the next.
    SendOne,
    /// Sending from 64 tasks, each awaiting its own.
    SendTasks,
    /// Sending 1,000 at once.
    SendAll,
    /// Handlers that do nothing, 64 at once.
    Process,
    /// The same at the best setting.
    ProcessBest,
    /// 64 senders and 64 handlers at once.
    Mixed,
    /// Processing and mixed with 10 thousand and with a million waiting.
    Depth,
    /// From send to the handler's start on an idle queue, in one process.
    Latency,
    /// The same between two processes.
    LatencyOther,
    /// The processor time of a worker with nothing to do.
    Idle,
    /// The memory of a worker with a million messages waiting.
    Memory,
    /// The cost of renewing 10,000 leases.
    Leases,
    /// Jobs of one key, one after the other, and after a stall of the first.
    Order,
}

impl Phase {
    /// All phases in their order.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::value_variants().iter().copied()
    }

    /// The name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// The settings of a measurement.
#[derive(Debug, Clone)]
pub struct Setting {
    /// A few jobs only.
    pub quick: bool,
    /// The number of jobs, if it was chosen.
    pub jobs: Option<u64>,
    /// The folder for the files.
    pub directory: PathBuf,
}

impl Setting {
    /// Returns the number that was chosen, or else `full`, or a smaller number in a quick run.
    pub fn jobs<S: Subject>(&self, full: u64) -> u64 {
        if let Some(jobs) = self.jobs {
            jobs
        } else if self.quick {
            (full / 500).clamp(20, 400)
        } else {
            (full / S::SLOWNESS).max(200)
        }
    }

    /// Returns a new directory, which is removed when dropped.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub fn store(&self) -> Result<TempDir> {
        Ok(tempfile::tempdir_in(&self.directory)?)
    }
}

pub(crate) async fn run<S: Subject>(phase: Phase, setting: &Setting) -> Result<Figures> {
    let mut figures = Figures::default();
    match phase {
        Phase::SendOne => send::one_by_one::<S>(setting, &mut figures).await?,
        Phase::SendTasks => send::from_tasks::<S>(setting, &mut figures).await?,
        Phase::SendAll => send::all_at_once::<S>(setting, &mut figures).await?,
        Phase::Process => process::plain::<S>(setting, &mut figures).await?,
        Phase::ProcessBest => process::best::<S>(setting, &mut figures).await?,
        Phase::Mixed => mixed::mixed::<S>(setting, &mut figures).await?,
        Phase::Depth => depth::depth::<S>(setting, &mut figures).await?,
        Phase::Latency => latency::same_process::<S>(setting, &mut figures).await?,
        Phase::LatencyOther => latency::other_process::<S>(setting, &mut figures).await?,
        Phase::Idle => idle::idle(setting, &mut figures).await?,
        Phase::Memory => idle::memory::<S>(setting, &mut figures).await?,
        Phase::Leases | Phase::Order => {}
    }
    Ok(figures)
}

/// Sends `jobs` jobs in batches, unmeasured.
pub(crate) async fn fill<S: Subject>(subject: &S, jobs: u64) -> Result<()> {
    const BATCH: u64 = 1_000;
    for first in (0..jobs).step_by(BATCH as usize) {
        let batch: Vec<S::Job> = (first..jobs.min(first + BATCH)).map(|number| S::job(number, 0)).collect();
        subject.send_all(&batch).await?;
    }
    Ok(())
}
