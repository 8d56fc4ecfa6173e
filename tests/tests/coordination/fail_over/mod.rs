//! Leaders and schedules among real processes that are stopped and killed, over SQLite and Azurite.
//!
//! A lease lasts at least 15 seconds, and this time really passes. The tests do little in the meantime and
//! run side by side.

mod fenced;
mod leader;
mod schedule;

use std::time::Duration;

use jobqueue::Storage;
use jobqueue_tests::azurite::Azurite;
use tempfile::TempDir;

/// The shortest lease.
const LEASE: Duration = Duration::from_secs(15);

/// The place that processes share.
struct Place {
    connection: String,
    /// The name of leader, schedule and register.
    name: String,
    _held: Held,
}

/// The content of the storage at the end.
#[allow(dead_code, reason = "held")]
enum Held {
    Folder(TempDir),
    Service(Azurite),
}

impl Place {
    fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let connection = format!("sqlite:{}", folder.path().join("jobs.db").display());
        Self { connection, name: name(), _held: Held::Folder(folder) }
    }

    fn azurite() -> Self {
        // One of its own: its queues are read by this test alone.
        let azurite = Azurite::start();
        Self { connection: azurite.connection_string(), name: name(), _held: Held::Service(azurite) }
    }

    /// Returns the input of a part: its role, the name, the storage.
    fn input(&self, role: &str) -> String {
        format!("{role} {} {}", self.name, self.connection)
    }

    async fn open(&self) -> Storage {
        Storage::connect(&self.connection).await.unwrap()
    }
}

fn name() -> String {
    format!("t{}", uuid::Uuid::new_v4().simple())
}

/// A part's role, name and storage.
async fn told(input: &str) -> (String, String, Storage) {
    let mut words = input.splitn(3, ' ').map(str::to_owned);
    let (role, name, connection) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
    (role, name, Storage::connect(&connection).await.unwrap())
}

/// Waits until the process that started this one closes its end.
async fn until_input_ends() {
    let (tell, told) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        drop(tell);
    });
    let _: Result<(), _> = told.await;
}

/// Runs all of them side by side, each on a thread, because reading from a part blocks.
async fn at_once<F: Future<Output = ()> + Send + 'static, const N: usize>(tests: [F; N]) {
    for test in tests.map(tokio::spawn) {
        test.await.unwrap();
    }
}

/// Sends a signal to a process.
fn signal(name: &str, process: u32) {
    let sent = std::process::Command::new("kill").args([name, &process.to_string()]).status().unwrap();
    assert!(sent.success());
}
