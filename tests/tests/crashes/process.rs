//! The processes that are killed: this program, started again with a role.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use jobqueue::Storage;
use jobqueue_testing::faults::Faulty;
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::drain::drain;
use super::faults::{self, Doubts};
use super::ledger::Ledger;
use super::{FOLDER, ROLE, SEED, handlers, operator, senders};

/// The state of a process.
pub struct Process {
    pub folder: PathBuf,
    pub ledger: Arc<Ledger>,
    pub storage: Storage,
    pub doubts: Doubts,
    random: Mutex<StdRng>,
}

impl Process {
    pub fn random(&self) -> MutexGuard<'_, StdRng> {
        self.random.lock().unwrap()
    }

    /// Returns whether the cause of the failures is fixed.
    pub fn is_mended(&self) -> bool {
        self.folder.join("mended").exists()
    }
}

/// Opens the storage in a folder.
pub fn path(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("jobs.db").display())
}

#[tokio::test(flavor = "multi_thread")]
async fn part_of_the_crash_ledger() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let folder = PathBuf::from(std::env::var(FOLDER).unwrap());
    let seed = std::env::var(SEED).unwrap().parse().unwrap();
    let ledger = Arc::new(Ledger::open(&folder, &role));
    // Quiet: its processes run in real time, and plan faults of their own.
    let faulty = Faulty::quiet(&Storage::connect(&path(&folder)).await.unwrap());
    let name = role.split(':').next().unwrap();
    let doubts = match name {
        "drain" => Doubts::default(),
        _ => faults::plan(&faulty, seed, name == "producer", &ledger),
    };
    let random = Mutex::new(StdRng::seed_from_u64(seed));
    let process = Arc::new(Process { folder, ledger, storage: faulty.storage(), doubts, random });
    match name {
        "producer" => senders::produce(&process).await,
        "batcher" => senders::fan_out(&process).await,
        "operator" => operator::operate(&process).await,
        "worker" => {
            let worker = handlers::worker(&process).build().unwrap();
            let _ = worker.run_until(std::future::pending()).await.unwrap();
        }
        _ => drain(&process).await,
    }
}
