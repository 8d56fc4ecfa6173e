//! The open store: its threads, and the way of an operation to them and back.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread::{self, JoinHandle};

use tokio::sync::oneshot;

use super::batch::Batch;
use super::clock::StoreClock;
use super::error::{Applied, Cause, Subject, from_sql};
use super::health::Health;
use super::holders::Holders;
use super::ids::Ids;
use super::notifiers::Notifiers;
use super::open::open_files::OpenFiles;
use super::open::{self, platform};
use super::options::Options;
use super::process_guard::ProcessGuard;
use super::reader::{Question, Reader, View};
use super::space::Space;
use super::task::{Effort, Task, Work};
use super::upkeep::Upkeep;
use super::watch::Watcher;
use super::writer::Writer;
use jobqueue_storage::QueueName;
use jobqueue_storage::sync::lock;
use jobqueue_storage::{OpenStores, Operation, StoreError, StoreErrorKind, Stores, Subscription};

/// A store of queues and blobs in one file. Dropping the last handle closes it.
pub(super) struct Store {
    file: PathBuf,
    tasks: Option<Sender<Box<dyn Work>>>,
    questions: Option<Sender<Question>>,
    health: Arc<Health>,
    notifiers: Arc<Notifiers>,
    clock: Arc<StoreClock>,
    watch: OnceLock<Watch>,
    writer: OnceLock<JoinHandle<()>>,
    /// The threads that only read.
    readers: Mutex<Vec<JoinHandle<()>>>,
    guard: Weak<ProcessGuard>,
    pub(super) holders: Holders,
}

/// The handle that stops the watcher.
struct Watch {
    stop: Arc<AtomicBool>,
    stopper: platform::Stopper,
}

impl Store {
    /// Opens the file on the thread that will write to it.
    pub(super) async fn open(options: Options) -> Result<Self, StoreError> {
        let subject = options.path.display().to_string();
        let guard = ProcessGuard::claim().map_err(|cause| cause.error("open storage", &subject))?;
        let (opened, answer) = oneshot::channel();
        let writer = spawn("writer", move || start(options, guard, opened))
            .map_err(|cause| cause.error("open storage", &subject))?;
        match answer.await {
            Ok(Ok(store)) => {
                let _ = store.writer.set(writer);
                Ok(store)
            }
            Ok(Err(cause)) => Err(cause.error("open storage", subject)),
            Err(_) => Err(gone().error("open storage", subject)),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.file
    }

    /// Runs `work` on the writer, in a transaction with whatever else waits; returns its result after the commit.
    pub(super) async fn write<T, F>(
        &self,
        operation: Operation,
        subject: Subject,
        weight: usize,
        work: F,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&mut Batch<'_>) -> Applied<T> + Send + 'static,
    {
        self.request(operation, subject, weight, Effort::once(work)).await
    }

    /// Runs work on the writer, as [`write`](Self::write) does.
    pub(super) async fn request<T, F>(
        &self,
        operation: Operation,
        subject: Subject,
        weight: usize,
        work: Effort<T, F>,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&mut Batch<'_>) -> Applied<T> + Send + 'static,
    {
        let fail = |cause: Cause| cause.error(operation.as_str(), &subject);
        self.health.check().map_err(fail)?;
        let (task, answer) = Task::prepare(operation, subject.clone(), weight, work);
        match &self.tasks {
            Some(tasks) if tasks.send(task).is_ok() => {}
            _ => return Err(fail(gone())),
        }
        answer.await.unwrap_or_else(|_| Err(fail(gone().ambiguous(true))))
    }

    pub(super) async fn read<T, F>(
        &self,
        operation: Operation,
        subject: Subject,
        look: F,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&View<'_>) -> Applied<T> + Send + 'static,
    {
        let fail = |cause: Cause| cause.error(operation.as_str(), &subject);
        self.health.check().map_err(fail)?;
        let (reply, answer) = oneshot::channel();
        let about = subject.clone();
        let question: Question = Box::new(move |reader| {
            if !reply.is_closed() {
                let _ = reply.send(reader.answer(operation, &about, look));
            }
        });
        match &self.questions {
            Some(questions) if questions.send(question).is_ok() => {}
            _ => return Err(fail(gone())),
        }
        answer.await.unwrap_or_else(|_| Err(fail(gone())))
    }

    /// Returns a subscription to `queue`. The first one starts the watcher: a process that only sends needs none.
    pub(super) fn subscription(&self, queue: &QueueName) -> Subscription {
        if self.health.is_own_process() && self.watch.get().is_none() {
            match self.start_watching() {
                Ok(()) => {}
                Err(cause) => {
                    let error = cause.error("watch storage", self.file.display());
                    tracing::warn!(%error, "commits of other processes will be noticed only by polling");
                }
            }
        }
        self.notifiers.subscribe(queue)
    }

    fn start_watching(&self) -> Result<(), Cause> {
        let mut readers = lock(&self.readers);
        if self.watch.get().is_some() {
            return Ok(());
        }
        let (changes, stopper) = platform::watch(&open::log_of(&self.file))
            .map_err(|error| Cause::new(StoreErrorKind::Unavailable, error.to_string()))?;
        let stop = Arc::new(AtomicBool::new(false));
        let guard = self.guard.upgrade().ok_or_else(gone)?;
        let watcher = Watcher {
            _guard: guard,
            connection: open::reader(&self.file)?,
            notifiers: Arc::clone(&self.notifiers),
            clock: Arc::clone(&self.clock),
            health: Arc::clone(&self.health),
            changes,
            stop: Arc::clone(&stop),
        };
        readers.push(spawn("watcher", move || watcher.run())?);
        let _ = self.watch.set(Watch { stop, stopper });
        Ok(())
    }
}

impl OpenStores for Options {
    /// Opens the file, and creates it, readable only by its owner, if it is missing.
    ///
    /// # Errors
    /// `InvalidInput` if the path cannot hold a store: a link, folder or pipe; a read-only file; a world-writable
    /// folder; a network file system; the database of another program; a schema newer than this program.
    /// `Corrupt` for a damaged file, `Stopped` when its disk fails, `Timeout` when another process keeps it locked,
    /// `Unsupported` for a SQLite library older than 3.51.3.
    ///
    /// # Cancel safety
    /// If the future is dropped, the file is not opened, or opened and closed again; it may have been created.
    async fn open(self) -> Result<Stores, StoreError> {
        let description = format!("sqlite:{}", self.path.display());
        let runtime = self.runtime.clone();
        let store = Arc::new(Store::open(self).await?);
        Ok(Stores::new(store.clone(), store, description).with_runtime(runtime))
    }
}

/// Closes the file: finishes the requested operations and copies the log into the file as far as possible.
///
/// Outside of a runtime this waits until the file is closed. Inside, waiting would block other tasks; there the end of
/// the runtime waits.
impl Drop for Store {
    fn drop(&mut self) {
        if !self.health.is_own_process() {
            // The threads belong to the parent process.
            return;
        }
        let tasks = self.tasks.take();
        self.questions = None;
        if let Some(watch) = self.watch.get() {
            watch.stop.store(true, Ordering::Relaxed);
            watch.stopper.stop();
        }
        let readers = std::mem::take(&mut *lock(&self.readers));
        let writer = self.writer.take();
        // The writer closes the file last: if both closed it at once, each would leave the log to the other.
        let join = move || {
            readers.into_iter().for_each(|thread| drop(thread.join()));
            drop(tasks);
            writer.into_iter().for_each(|thread| drop(thread.join()));
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(join)),
            Err(_) => join(),
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("file", &self.file).finish_non_exhaustive()
    }
}

/// Opens the file, reports whether that worked, and continues as the writer.
fn start(options: Options, guard: Arc<ProcessGuard>, opened: oneshot::Sender<Result<Store, Cause>>) {
    match assemble(options, guard) {
        Ok((store, writer)) => {
            // If no caller waits, the store is dropped here, and the writer finds nothing to do.
            drop(opened.send(Ok(store)));
            writer.run();
        }
        Err(cause) => drop(opened.send(Err(cause))),
    }
}

fn assemble(options: Options, guard: Arc<ProcessGuard>) -> Result<(Store, Writer), Cause> {
    let (connection, file) = open::writer(&options)?;
    let health = Arc::new(Health::new());
    let folder = file.parent().unwrap_or(Path::new("/")).to_owned();
    let space = Space::new(&connection, folder, options.max_bytes).map_err(from_sql)?;
    let upkeep = Upkeep::new(&connection, Arc::clone(&health), space).map_err(from_sql)?;
    let (tasks, inbox) = mpsc::channel();
    let (questions, asked) = mpsc::channel::<Question>();
    let clock = Arc::new(StoreClock::new(options.runtime));
    let notifiers = Arc::new(Notifiers::default());
    let reader = Reader {
        connection: open::reader(&file)?,
        clock: Arc::clone(&clock),
        health: Arc::clone(&health),
        _guard: Arc::clone(&guard),
    };
    let reader = spawn("reader", move || reader.run(&asked))?;
    let files = OpenFiles::of(&file);
    let store = Store {
        holders: Holders::beside(&file),
        file,
        tasks: Some(tasks),
        questions: Some(questions),
        health: Arc::clone(&health),
        notifiers: Arc::clone(&notifiers),
        clock: Arc::clone(&clock),
        watch: OnceLock::new(),
        writer: OnceLock::new(),
        readers: Mutex::new(vec![reader]),
        guard: Arc::downgrade(&guard),
    };
    let patience = options.busy_timeout;
    Ok((
        store,
        Writer {
            connection,
            inbox,
            clock,
            notifiers,
            health,
            upkeep,
            ids: Ids::in_blocks(),
            files,
            patience,
            _guard: guard,
        },
    ))
}

fn spawn(role: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Cause> {
    thread::Builder::new().name(format!("jobqueue-{role}")).spawn(run).map_err(|error| {
        Cause::new(StoreErrorKind::Unavailable, format!("no thread could be started: {error}"))
    })
}

fn gone() -> Cause {
    Cause::new(StoreErrorKind::Stopped, "the thread that serves the file has ended")
}
