//! A folder with a store that is recorded.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::future::join_all;
use jobqueue::clock::ManualClock;
use jobqueue::sqlite::{Options, Synchronous};
use jobqueue::storage::Storage;
use jobqueue_tests::power::{Disk, Event, Image, Recorder};
use rand::RngExt;
use rand::rngs::StdRng;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::workload::{History, State, Task};

/// A folder and everything that is needed to use its store.
pub(crate) struct Scene {
    pub(crate) folder: TempDir,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) recorder: Arc<Recorder>,
    runtime: Runtime,
    pub(crate) synchronous: Synchronous,
}

/// The events in a folder, and the knowledge of its tasks.
pub(crate) struct Recording {
    pub(crate) before: Disk,
    pub(crate) events: Vec<Event>,
    pub(crate) histories: Vec<History>,
    /// The event from which on the power may be cut, and the first event of the tasks.
    pub(crate) from: usize,
}

impl Scene {
    pub(crate) fn new(synchronous: Synchronous) -> Self {
        Self::with(synchronous, Recorder::watch)
    }

    /// Returns a folder with the files that a power cut has left.
    pub(crate) fn after_cut(image: &Image, synchronous: Synchronous) -> Self {
        Self::with(synchronous, |folder| {
            image.write(folder);
            Recorder::watch(folder)
        })
    }

    /// Returns a folder that `disk` has not completely written yet, as a killed process left it.
    pub(crate) fn after_kill(disk: Disk, synchronous: Synchronous) -> Self {
        Self::with(synchronous, |folder| {
            disk.seen().write(folder);
            Recorder::watch_on(folder, disk)
        })
    }

    fn with(synchronous: Synchronous, watch: impl FnOnce(&Path) -> Arc<Recorder>) -> Self {
        // In memory where possible: the recorder decides what is synced, and real disks are slow.
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let recorder = watch(folder.path());
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        Self { folder, clock: Arc::new(ManualClock::new()), recorder, runtime, synchronous }
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.folder.path().join("jobs.db")
    }

    pub(crate) fn options(&self) -> Options {
        Options::new(self.file())
            .runtime(jobqueue::Runtime::new().with_clock(self.clock.clone()))
            .synchronous(self.synchronous)
    }

    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    pub(crate) fn open(&self) -> Result<Storage, String> {
        self.block_on(crate::oracle::open(self.folder.path(), self.options()))
    }

    pub(crate) fn look(&self, tasks: usize) -> Vec<Option<State>> {
        crate::oracle::look(self.folder.path(), tasks)
    }

    /// Returns new tasks that continue from `found`.
    pub(crate) fn tasks(
        &self,
        storage: &Storage,
        found: Vec<Option<State>>,
        random: &mut StdRng,
    ) -> Vec<Task> {
        let task = |(number, found)| {
            Task::new(number, found, random.random(), storage, (&self.recorder, self.file()))
        };
        found.into_iter().enumerate().map(task).collect()
    }

    /// Runs a process twice; it performs `steps` in each of several tasks at once.
    pub(crate) fn record(self, tasks: usize, steps: usize, random: &mut StdRng) -> Recording {
        let storage = self.open().unwrap();
        let started = self.tasks(&storage, vec![None; tasks], random);
        let mut running = self.block_on(join_all(started.into_iter().map(|task| task.run(steps))));
        running.iter_mut().for_each(|task| task.storage = Storage::memory());
        // Outside of the runtime the last handle waits until the file is closed.
        drop(storage);
        let storage = self.open().unwrap();
        running.iter_mut().for_each(|task| task.storage = storage.clone());
        let ended = self.block_on(join_all(running.into_iter().map(|task| task.go_on(steps))));
        let recording = self.recording(ended, 0);
        for history in &recording.histories {
            assert!(history.failure.is_none(), "{:?}", history.failure);
        }
        recording
    }

    /// Returns the events so far; those from the given one on matter.
    pub(crate) fn recording(&self, tasks: Vec<Task>, from: usize) -> Recording {
        let (before, events) = self.recorder.log();
        Recording { before, events, histories: tasks.into_iter().map(|task| task.history).collect(), from }
    }
}
