//! The work on the storage. Each task uses a queue and a container of its own, step by step, and knows their
//! content after each step.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jobqueue::QueueName;
use jobqueue::settings::Metadata;
use jobqueue::storage::{BlobName, ContainerName};
use jobqueue::storage::{
    ExpiredReceipt, GetMessages, MessageRef, PutBlob, PutMessage, Storage, StoreError, UpdateMessage,
};
use jobqueue_tests::power::{Note, Recorder};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rusqlite::Connection;

/// The content of a task's queue and container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct State {
    /// By the name of the message, with which its text begins: the text, and how often it was received.
    pub(crate) messages: BTreeMap<String, (String, u32)>,
    pub(crate) blobs: BTreeMap<String, Vec<u8>>,
}

/// The states of a task: one at the beginning and one after each acknowledged step. `None`: no queue yet.
#[derive(Debug, Clone, Default)]
pub(crate) struct History {
    pub(crate) states: Vec<Option<State>>,
    pub(crate) failure: Option<Failure>,
}

/// A step that failed; it is the last one.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) error: Arc<StoreError>,
    /// The content if the step was done; `None` for a get, whose content is only in its answer.
    pub(crate) meant: Option<Option<State>>,
}

pub(crate) struct Task {
    pub(crate) storage: Storage,
    pub(crate) history: History,
    /// True if another connection restarts SQLite's log now and then.
    pub(crate) restarts_log: bool,
    number: usize,
    recorder: Arc<Recorder>,
    /// The file, to restart its log now and then.
    file: PathBuf,
    random: StdRng,
    label: u64,
    serial: usize,
    state: State,
    leased: Vec<(String, MessageRef)>,
}

pub(crate) fn queue(task: usize) -> QueueName {
    format!("queue{task}").parse().unwrap()
}

pub(crate) fn container(task: usize) -> ContainerName {
    format!("blobs{task}").parse().unwrap()
}

pub(crate) fn name_of(text: &str) -> &str {
    text.split_once(':').unwrap().0
}

impl Task {
    /// Continues from `found`, with a `seed` that no other task has. The recorder writes the file.
    pub(crate) fn new(
        number: usize,
        found: Option<State>,
        seed: u64,
        storage: &Storage,
        (recorder, file): (&Arc<Recorder>, PathBuf),
    ) -> Self {
        Self {
            storage: storage.clone(),
            history: History { states: vec![found.clone()], failure: None },
            restarts_log: true,
            number,
            recorder: Arc::clone(recorder),
            file,
            random: StdRng::seed_from_u64(seed),
            label: seed,
            serial: 0,
            state: found.unwrap_or_default(),
            leased: Vec::new(),
        }
    }

    /// Creates queue and container, then performs random `steps` until one fails.
    pub(crate) async fn run(mut self, steps: usize) -> Self {
        let result = async {
            let (blobs, queues) = (Arc::clone(self.storage.blobs()), Arc::clone(self.storage.queues()));
            let (name, container) = (queue(self.number), container(self.number));
            let before = self.history.states[0].clone();
            self.perform(Some(before), blobs.create_container(&container)).await?;
            self.perform(Some(Some(self.state.clone())), queues.create_queue(&name, &Metadata::new()))
                .await?;
            for _ in 0..steps {
                self.step().await?;
            }
            Ok::<(), StoreError>(())
        };
        drop(result.await);
        self
    }

    /// Like [`run`](Self::run), for an existing queue and container.
    pub(crate) async fn go_on(mut self, steps: usize) -> Self {
        for _ in 0..steps {
            if self.step().await.is_err() {
                break;
            }
        }
        self
    }

    /// Writes `count` blobs of 1 MiB until one fails, so that the store checkpoints its log.
    pub(crate) async fn fill(mut self, count: usize) -> Self {
        for number in 0..count {
            if self.put_blob(format!("large{number}"), 1 << 20).await.is_err() {
                break;
            }
        }
        self
    }

    async fn step(&mut self) -> Result<(), StoreError> {
        let leased = !self.leased.is_empty();
        match self.random.random_range(0..100) {
            0..22 => self.send(1).await,
            22..30 => {
                let count = self.random.random_range(2..12);
                self.send(count).await
            }
            30..50 => self.get().await,
            50..62 if leased => self.update(true).await,
            62..68 if leased => self.update(false).await,
            68..82 if leased => self.delete(1).await,
            82..86 if leased => self.delete(3).await,
            86..92 => {
                let name = self.random.random_range(0..5).to_string();
                let size = *[0, 100, 5_000, 40_000].get(self.random.random_range(0..4)).unwrap();
                self.put_blob(name, size).await
            }
            92..95 => self.delete_blob().await,
            95..98 if self.restarts_log => {
                self.restart_log();
                Ok(())
            }
            _ => self.send(1).await,
        }
    }

    async fn send(&mut self, count: usize) -> Result<(), StoreError> {
        let mut meant = self.state.clone();
        let mut messages = Vec::new();
        for _ in 0..count {
            self.serial += 1;
            let name = format!("{:x}-{}-{}", self.label, self.number, self.serial);
            let text = self.text(&name, 0);
            messages.push(PutMessage::new(&text));
            meant.messages.insert(name, (text, 0));
        }
        let (queues, queue) = (Arc::clone(self.storage.queues()), queue(self.number));
        let put = async {
            match messages.len() {
                1 => queues.put(&queue, messages.remove(0)).await.map(drop),
                _ => queues
                    .put_all(&queue, messages.into())
                    .await
                    .into_iter()
                    .try_for_each(|put| put.map(drop)),
            }
        };
        self.perform(Some(Some(meant)), put).await
    }

    async fn get(&mut self) -> Result<(), StoreError> {
        let options = GetMessages::new(self.random.random_range(1..5), Duration::from_secs(600));
        let (queues, queue) = (Arc::clone(self.storage.queues()), queue(self.number));
        let received = self.perform(None, queues.get(&queue, options)).await?;
        for message in received.messages {
            let text = message.text.unwrap();
            let known = self.state.messages.get_mut(name_of(&text)).expect("a message of ours");
            assert_eq!(known.0, text);
            known.1 += 1;
            assert_eq!(known.1, message.dequeue_count);
            self.leased.push((name_of(&text).to_owned(), message.message));
        }
        *self.history.states.last_mut().unwrap() = Some(self.state.clone());
        Ok(())
    }

    /// Performs a checkpoint, or a release.
    async fn update(&mut self, new_text: bool) -> Result<(), StoreError> {
        let at = self.random.random_range(0..self.leased.len());
        let (name, mut message) = self.leased.swap_remove(at);
        let version = self.random.random_range(1..1000);
        let mut meant = self.state.clone();
        let text = new_text.then(|| self.text(&name, version));
        if let Some(text) = &text {
            meant.messages.get_mut(&name).expect("a leased message").0.clone_from(text);
        }
        let visibility = Duration::from_secs(if new_text { 600 } else { 0 });
        let change = UpdateMessage::new(visibility).with_text(text);
        let (queues, queue) = (Arc::clone(self.storage.queues()), queue(self.number));
        let updated = self.perform(Some(Some(meant)), queues.update(&queue, &message, change)).await?;
        if new_text {
            message.receipt = updated.receipt;
            self.leased.push((name, message));
        }
        Ok(())
    }

    async fn delete(&mut self, most: usize) -> Result<(), StoreError> {
        let count = most.min(self.leased.len());
        let done = self.leased.split_off(self.leased.len() - count);
        let mut meant = self.state.clone();
        for (name, _) in &done {
            meant.messages.remove(name);
        }
        let (queues, queue) = (Arc::clone(self.storage.queues()), queue(self.number));
        let mut messages: Vec<_> = done.into_iter().map(|(_, message)| message).collect();
        let delete = async {
            match messages.len() {
                1 => queues.delete(&queue, &messages.remove(0), ExpiredReceipt::Refuse).await,
                _ => queues.delete_all(&queue, messages, ExpiredReceipt::Refuse).await.into_iter().collect(),
            }
        };
        self.perform(Some(Some(meant)), delete).await
    }

    async fn put_blob(&mut self, name: String, size: usize) -> Result<(), StoreError> {
        let content: Vec<u8> = (0..size).map(|_| self.random.random()).collect();
        let mut meant = self.state.clone();
        meant.blobs.insert(name.clone(), content.clone());
        let (blobs, blob) = (Arc::clone(self.storage.blobs()), self.blob(&name));
        self.perform(Some(Some(meant)), blobs.put_blob(&blob, content.into(), PutBlob::new())).await.map(drop)
    }

    async fn delete_blob(&mut self) -> Result<(), StoreError> {
        let mut meant = self.state.clone();
        let Some((name, _)) = meant.blobs.pop_first() else { return Ok(()) };
        let (blobs, blob) = (Arc::clone(self.storage.blobs()), self.blob(&name));
        self.perform(Some(Some(meant)), blobs.delete_blob(&blob, None)).await
    }

    /// Makes SQLite copy its log into the file in one of its modes, so that the log is written from its
    /// beginning again.
    fn restart_log(&mut self) {
        let way = ["PASSIVE", "RESTART", "TRUNCATE"][self.random.random_range(0..3)];
        let connection = Connection::open(&self.file).unwrap();
        connection.busy_timeout(Duration::from_secs(5)).unwrap();
        // It may fail where faults are planned; the log then continues to grow.
        drop(connection.query_row(&format!("PRAGMA wal_checkpoint({way})"), [], |_| Ok(())));
    }

    async fn perform<T>(
        &mut self,
        meant: Option<Option<State>>,
        operation: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let step = self.history.states.len();
        self.recorder.note(Note::Began(self.number, step));
        match operation.await {
            Ok(value) => {
                self.recorder.note(Note::Acknowledged(self.number, step));
                // A get puts the right state there when it knows it.
                let state = meant.unwrap_or_else(|| Some(self.state.clone()));
                self.state = state.clone().unwrap_or_default();
                self.history.states.push(state);
                Ok(value)
            }
            Err(error) => {
                let kept =
                    StoreError::new(error.kind(), error.operation(), "").with_ambiguous(error.is_ambiguous());
                self.history.failure = Some(Failure { error: Arc::new(error), meant });
                Err(kept)
            }
        }
    }

    fn blob(&self, name: &str) -> BlobName {
        BlobName::new(container(self.number), name).unwrap()
    }

    fn text(&mut self, name: &str, version: u32) -> String {
        let size = match self.random.random_range(0..20) {
            0 => 20_000,
            1..5 => 3_000,
            _ => self.random.random_range(0..300),
        };
        let padding: String = (0..size).map(|_| self.random.random_range('a'..='z')).collect();
        format!("{name}:{version}:{padding}")
    }
}
