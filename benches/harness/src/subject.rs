//! The operations that a measured system implements.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use crate::phase::Phase;
use crate::seen::Seen;

/// Any error; a benchmark ends with it.
pub type Error = Box<dyn std::error::Error + Send + Sync>;
/// The result of anything a benchmark does.
pub type Result<T> = std::result::Result<T, Error>;

/// A text of every job besides its number and time, so that its JSON has about 200 bytes.
pub const JOB_NAME: &str = "thumbnail of a photo of a holiday";
/// See [`JOB_NAME`].
pub const JOB_URL: &str = "https://photos.example.org/albums/2026/summer/IMG_20260714_183012.jpeg";
/// See [`JOB_NAME`].
pub const JOB_NOTE: &str = "square, 256 pixels, sharpened";

/// The variable with the connection string of the database in which the store is, if it is in PostgreSQL.
const POSTGRES: &str = "BENCH_POSTGRES";

/// Returns the connection string of the database in which the store is, unless it is a file.
pub fn postgres() -> Option<String> {
    std::env::var(POSTGRES).ok()
}

/// Returns the connection string of the database in which the store is.
///
/// # Errors
/// The variable is not set.
pub fn postgres_url() -> Result<String> {
    postgres().ok_or_else(|| format!("set {POSTGRES} to the connection string of an empty database").into())
}

/// The meaning of an answer in PostgreSQL, which the server decides.
pub const POSTGRES_DURABILITY: &str = "fsync and synchronous_commit on";

/// The description of a measured system, for the table.
#[derive(Debug, Clone, Serialize)]
pub struct About {
    /// The system's name.
    pub system: String,
    /// Versions of the system and of what it stands on.
    pub versions: BTreeMap<String, String>,
    /// The meaning of an answer: which journal, synced or not.
    pub durability: String,
    /// Other settings worth knowing.
    pub settings: String,
}

/// A job system on a local file, or in a database of PostgreSQL.
pub trait Subject: Sized + Send + Sync + 'static {
    /// A job as the system's users write it.
    type Job: Send + Sync + 'static;
    /// A running worker.
    type Worker: Send;

    /// The divisor for the number of jobs, so that the run of a slow system ends.
    const SLOWNESS: u64 = 1;
    /// The concurrency settings among which the best is sought.
    const BEST: &'static [usize] = &[256, 1024];

    /// Returns the description of the system.
    fn about() -> About;

    /// Returns whether a phase makes sense for the system and does not take too long.
    fn supports(_phase: Phase) -> bool {
        true
    }

    /// Opens, or creates, the store in a directory, or in the database that [`postgres`] names.
    fn open(directory: &Path) -> impl Future<Output = Result<Self>> + Send;

    /// Returns a job. `sent` travels with it and is passed to [`Seen::handled`].
    fn job(number: u64, sent: u64) -> Self::Job;

    /// Sends one job and waits for the answer.
    fn send(&self, job: &Self::Job) -> impl Future<Output = Result<()>> + Send;

    /// Sends many jobs in the best way that the system offers, and waits for all answers.
    fn send_all(&self, jobs: &[Self::Job]) -> impl Future<Output = Result<()>> + Send;

    /// Starts a worker whose handlers only call `seen`.
    fn work(&self, concurrency: usize, seen: Arc<Seen>) -> impl Future<Output = Result<Self::Worker>> + Send;

    /// Stops the worker and waits until it has settled its jobs.
    fn stop(&self, worker: Self::Worker) -> impl Future<Output = Result<()>> + Send;
}
