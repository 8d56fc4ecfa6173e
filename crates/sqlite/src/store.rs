//! The open store: its threads, and the way of an operation to a thread and back.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, JoinHandle};

use tokio::sync::oneshot;

use super::batch::Batch;
use super::clock::StoreClock;
use super::error::{Applied, Cause, from_sql};
use super::health::Health;
use super::inbox::Inbox;
use super::known::Known;
use super::notifiers::Notifiers;
use super::open::open_files::OpenFiles;
use super::open::{self, OpenedFile, platform};
use super::options::Options;
use super::process_guard::ProcessGuard;
use super::reader::{ReadRequest, Reader, View};
use super::space::Space;
use super::task::{Task, Work};
use super::upkeep::Upkeep;
use super::watch::Watcher;
use super::writer::Writer;
use jobqueue_storage::log::warn;
use jobqueue_storage::sync::lock;
use jobqueue_storage::{OpenStores, Operation, QueueName, StoreError, StoreErrorKind, Stores, Subscription};

/// A store of queues and blobs in one file. Dropping the last handle closes it.
pub(super) struct Store {
    file: PathBuf,
    /// `None` once the store is being closed.
    channels: Option<Channels>,
    health: Arc<Health>,
    notifiers: Arc<Notifiers>,
    clock: Arc<StoreClock>,
    writer: Option<JoinHandle<()>>,
    readers: Vec<JoinHandle<()>>,
    watch: Mutex<Option<Watch>>,
    guard: Weak<ProcessGuard>,
}

/// The channels to the store's threads.
struct Channels {
    tasks: Sender<Box<dyn Work>>,
    requests: Sender<ReadRequest>,
    /// Reads that may take long.
    searches: Sender<ReadRequest>,
}

struct Watch {
    stopper: platform::Stopper,
    thread: JoinHandle<()>,
}

impl Store {
    /// Opens the file on the thread that will write to it.
    pub(super) async fn open(options: Options) -> Result<Self, StoreError> {
        let subject = options.path.display().to_string();
        let fail = |cause: Cause| cause.error("open storage", &subject);
        let guard = ProcessGuard::claim().map_err(fail)?;
        let (opened, answer) = oneshot::channel();
        let writer = spawn("writer", move || match assemble(options, guard) {
            Ok((store, writer)) => {
                // If the caller has stopped waiting, the store is dropped here, and the writer finds nothing
                // to do.
                drop(opened.send(Ok(store)));
                writer.run();
            }
            Err(cause) => drop(opened.send(Err(cause))),
        });
        let writer = writer.map_err(fail)?;
        let mut store: Self = answer.await.unwrap_or_else(|_| Err(gone())).map_err(fail)?;
        store.writer = Some(writer);
        Ok(store)
    }

    pub(super) fn path(&self) -> &Path {
        &self.file
    }

    /// Runs `work` on the writer, in a transaction with all other waiting operations; returns its result
    /// after the commit.
    pub(super) async fn write<S, T, F>(
        &self,
        operation: Operation,
        subject: &S,
        weight: usize,
        work: F,
    ) -> Result<T, StoreError>
    where
        S: fmt::Display + Clone + Send + Sync + 'static,
        T: Send + 'static,
        F: FnMut(&mut Batch<'_>, &S) -> Applied<T> + Send + 'static,
    {
        let fail = |cause: Cause| cause.error(operation.as_str(), subject);
        self.health.check().map_err(fail)?;
        let (reply, answer) = oneshot::channel();
        let task = Task::new(operation, subject.clone(), weight, work, reply);
        if !self.request(Box::new(task)) {
            return Err(fail(gone()));
        }
        answer.await.unwrap_or_else(|_| Err(fail(gone().ambiguous(true))))
    }

    /// Sends a task to the writer. Returns false if the writer has ended.
    pub(super) fn request(&self, task: Box<dyn Work>) -> bool {
        self.channels.as_ref().is_some_and(|channels| channels.tasks.send(task).is_ok())
    }

    /// Reads from a snapshot. Counts, pages, listings and searches may take long; other reads do not wait for
    /// them.
    pub(super) async fn read<S, T, F>(
        &self,
        operation: Operation,
        subject: &S,
        read: F,
    ) -> Result<T, StoreError>
    where
        S: fmt::Display + Clone + Send + Sync + 'static,
        T: Send + 'static,
        F: FnOnce(&View<'_>, &S) -> Applied<T> + Send + 'static,
    {
        let fail = |cause: Cause| cause.error(operation.as_str(), subject);
        self.health.check().map_err(fail)?;
        let (reply, answer) = oneshot::channel();
        let about = subject.clone();
        let read_request: ReadRequest = Box::new(move |reader| {
            if !reply.is_closed() {
                let _ = reply.send(reader.answer(operation, &about, read));
            }
        });
        let is_long = matches!(
            operation,
            Operation::QueueProperties | Operation::Peek | Operation::SearchJournal | Operation::ListBlobs
        );
        let reader = |channels: &Channels| {
            let reader = if is_long { &channels.searches } else { &channels.requests };
            reader.send(read_request).is_ok()
        };
        if !self.channels.as_ref().is_some_and(reader) {
            return Err(fail(gone()));
        }
        answer.await.unwrap_or_else(|_| Err(fail(gone())))
    }

    /// Returns a subscription to `queue`. The first subscription starts the watcher, which a process that
    /// only sends does not need.
    pub(super) fn subscription(&self, queue: &QueueName) -> Subscription {
        if self.health.is_own_process()
            && let Err(cause) = self.start_watching()
        {
            let error = cause.error("watch storage", self.file.display());
            warn!(%error, "commits of other processes will be noticed only by polling");
        }
        self.notifiers.subscribe(queue)
    }

    fn start_watching(&self) -> Result<(), Cause> {
        let mut watch = lock(&self.watch);
        if watch.is_some() {
            return Ok(());
        }
        let (changes, stopper) = platform::watch(&open::log_of(&self.file))
            .map_err(|error| Cause::new(StoreErrorKind::Unavailable, error.to_string()))?;
        let watcher = Watcher {
            _guard: self.guard.upgrade().ok_or_else(gone)?,
            connection: open::reader(&self.file)?,
            notifiers: Arc::clone(&self.notifiers),
            clock: Arc::clone(&self.clock),
            health: Arc::clone(&self.health),
            changes,
        };
        let thread = spawn("watcher", move || watcher.run())?;
        *watch = Some(Watch { stopper, thread });
        Ok(())
    }
}

impl OpenStores for Options {
    /// Opens the file, and creates it, readable only by its owner, if it is missing.
    ///
    /// # Errors
    /// `InvalidInput` if the path cannot hold a store: a link, folder or pipe; a read-only file; a
    /// world-writable folder; a network file system; the database of another program; a schema newer than
    /// this program's. `Corrupt` for a damaged file, `Stopped` if its disk fails, `Timeout` if its
    /// tables have to be created or migrated and another process keeps it locked, `Unsupported` for a SQLite
    /// library older than 3.51.3.
    ///
    /// # Cancel safety
    /// If the future is dropped, the file is not opened, or opened and closed again; it may have been
    /// created.
    async fn open(self) -> Result<Stores, StoreError> {
        let description = format!("sqlite:{}", self.path.display());
        let runtime = self.runtime.clone();
        let store = Arc::new(Store::open(self).await?);
        Ok(Stores::new(store.clone(), store, description).with_runtime(runtime))
    }
}

/// Closes the file: finishes the requested operations and copies the log into the file as far as possible.
///
/// Outside a tokio runtime, this waits until the file is closed. Inside a runtime, waiting would block other
/// tasks, so the shutdown of the runtime waits instead.
impl Drop for Store {
    fn drop(&mut self) {
        if !self.health.is_own_process() {
            // The threads belong to the parent process.
            return;
        }
        let tasks = self.channels.take().map(|channels| channels.tasks);
        let mut readers = std::mem::take(&mut self.readers);
        readers.extend(lock(&self.watch).take().map(|Watch { stopper, thread }| {
            stopper.stop();
            thread
        }));
        let writer = self.writer.take();
        // The writer closes the file last: if both closed it at once, each would leave the log to the other.
        let join = move || {
            for thread in readers {
                drop(thread.join());
            }
            drop(tasks);
            if let Some(thread) = writer {
                drop(thread.join());
            }
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(join)),
            Err(_) => join(),
        }
    }
}

jobqueue_storage::debug_fields! {
    Store { file }
}

fn assemble(options: Options, guard: Arc<ProcessGuard>) -> Result<(Store, Writer), Cause> {
    let OpenedFile { connection, file, left_log } = open::writer(&options)?;
    let health = Arc::new(Health::new());
    let folder = file.parent().unwrap_or(Path::new("/")).to_owned();
    let space = Space::new(&connection, folder, options.max_bytes).map_err(from_sql)?;
    let notifiers = Arc::new(Notifiers::default());
    let upkeep =
        Upkeep::new(&connection, Arc::clone(&health), Arc::clone(&notifiers), space).map_err(from_sql)?;
    let clock = StoreClock::shared(options.runtime, &file);
    let reader = |role| -> Result<_, Cause> {
        let (requests, requested) = mpsc::channel::<ReadRequest>();
        let reader = Reader {
            connection: open::reader(&file)?,
            clock: Arc::clone(&clock),
            health: Arc::clone(&health),
            _guard: Arc::clone(&guard),
        };
        Ok((requests, spawn(role, move || reader.run(&requested))?))
    };
    let (requests, reads) = reader("reader")?;
    let (searches, searching) = reader("searcher")?;
    let (tasks, requested) = mpsc::channel();
    let files = OpenFiles::of(&file);
    let store = Store {
        file,
        channels: Some(Channels { tasks, requests, searches }),
        health: Arc::clone(&health),
        notifiers: Arc::clone(&notifiers),
        clock: Arc::clone(&clock),
        writer: None,
        readers: vec![reads, searching],
        watch: Mutex::default(),
        guard: Arc::downgrade(&guard),
    };
    let writer = Writer {
        connection,
        left_log,
        inbox: Inbox::new(requested),
        clock,
        notifiers,
        health,
        upkeep,
        lacks_room: false,
        known: Known::default(),
        files,
        busy_timeout: options.busy_timeout,
        _guard: guard,
    };
    Ok((store, writer))
}

fn spawn(role: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Cause> {
    thread::Builder::new().name(format!("jobqueue-{role}")).spawn(run).map_err(|error| {
        Cause::new(StoreErrorKind::Unavailable, format!("no thread could be started: {error}"))
    })
}

fn gone() -> Cause {
    Cause::new(StoreErrorKind::Stopped, "the thread that serves the file has ended")
}
