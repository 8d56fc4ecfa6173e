//! A storage with jobs and dead letters, and the program that operates on it.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use jobqueue::storage::{BlobName, ContainerName, GetMessages, LeaseId, QueueName};
use jobqueue::{JobError, QueueMessage, Storage, Worker};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

/// A message whose handler rejects it.
#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "mails", kind = "mail")]
pub(crate) struct Mail {
    pub(crate) to: String,
}

/// A folder with a SQLite storage, and a home without configuration.
pub(crate) struct Sandbox {
    pub(crate) folder: TempDir,
    pub(crate) storage: String,
}

impl Sandbox {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let storage = format!("sqlite:{}", folder.path().join("jobs.db").display());
        Self { folder, storage }
    }

    /// Returns a sandbox with a queue `mails` that has `waiting` jobs and `dead` dead letters.
    pub(crate) fn with_mails(waiting: usize, dead: usize) -> Self {
        let sandbox = Self::new();
        fill(&sandbox.storage, waiting, dead);
        sandbox
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the program with these arguments, and with the storage in its environment.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.without_storage(arguments);
        command.env("JOBQUEUE_STORAGE", &self.storage);
        command
    }

    /// Returns the program with these arguments and without a storage. Its environment has only an empty
    /// home, the path, the name of a user and the mutants.
    pub(crate) fn without_storage(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_jobqueue"));
        command.args(arguments).env_clear().env("HOME", self.folder.path()).stdin(Stdio::null());
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("USER", "tester");
        // Switches on mutants of `tests/mutants`.
        command.envs(std::env::var_os("JOBQUEUE_MUTANT").map(|names| ("JOBQUEUE_MUTANT", names)));
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs a command that must succeed, and returns its standard output.
    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", error_text(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command that must succeed, and returns the document that it prints.
    pub(crate) fn json(&self, arguments: &[&str]) -> serde_json::Value {
        let text = self.ok(&[arguments, &["--output", "json"]].concat());
        serde_json::from_str(&text).unwrap()
    }

    /// Writes the configuration file.
    pub(crate) fn configure(&self, text: &str) {
        let folder = self.path(".config/jobqueue");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("config.toml"), text).unwrap();
    }

    /// Returns the number of jobs that wait in `mails`, and the number of its dead letters.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let queue = self.json(&["queue", "show", "mails"]);
        (queue["length"].as_u64().unwrap(), queue["dead_letters"].as_u64().unwrap())
    }
}

pub(crate) fn error_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Sends `dead` mails, which a worker rejects, and then `waiting` mails.
pub(crate) fn fill(storage: &str, waiting: usize, dead: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let storage = Storage::connect(storage).await.unwrap();
        let mails = storage.queue::<Mail>().await.unwrap();
        for number in 0..dead {
            mails
                .send(&Mail { to: format!("{number}@example.org") })
                .id(format!("dead-{number}"))
                .await
                .unwrap();
        }
        if dead > 0 {
            reject(&storage).await;
        }
        for number in 0..waiting {
            mails.send(&Mail { to: format!("{number}@example.org") }).await.unwrap();
        }
    });
}

/// Has a worker reject all mails that wait.
pub(crate) fn reject_all(storage: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { reject(&Storage::connect(storage).await.unwrap()).await });
}

/// Leases one dead letter of `mails` for an hour, as another program may.
pub(crate) fn hold_a_dead_letter(storage: &str) {
    assert_eq!(hold(storage, "mails-poison", 1), 1);
}

/// Leases up to `max` messages of a queue for an hour, as another program may, and returns their number.
pub(crate) fn hold(storage: &str, queue: &str, max: u32) -> usize {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let storage = Storage::connect(storage).await.unwrap();
        let get = GetMessages::new(max, Duration::from_secs(3_600));
        storage.queues().get(&QueueName::new(queue).unwrap(), get).await.unwrap().messages.len()
    })
}

/// Deletes all messages of a queue.
pub(crate) fn clear(storage: &str, queue: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let storage = Storage::connect(storage).await.unwrap();
        storage.queues().clear(&QueueName::new(queue).unwrap()).await.unwrap();
    });
}

/// Leases all payloads in blobs for a minute, so that they cannot be deleted.
pub(crate) fn hold_payloads(storage: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let storage = Storage::connect(storage).await.unwrap();
        let container = ContainerName::new("jobqueue-payloads").unwrap();
        let payloads = storage.blobs().list_blobs(&container, "", None).await.unwrap().blobs;
        assert!(!payloads.is_empty());
        for (name, _) in payloads {
            let blob = BlobName::new(container.clone(), name).unwrap();
            let (lease, minute) = (LeaseId::random(storage.runtime()), Duration::from_secs(60));
            let _ = storage.leases().unwrap().acquire_lease(&blob, minute, &lease).await.unwrap();
        }
    });
}

async fn reject(storage: &Storage) {
    let handler = |_: Mail| async { Err::<(), _>(JobError::dead_letter("no such address")) };
    let worker = Worker::builder(storage.clone())
        .history(Duration::from_secs(86_400))
        .handle(handler)
        .build()
        .unwrap();
    let _ = worker.run_until_idle().await.unwrap();
}
