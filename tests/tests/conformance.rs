//! Every promise of the port, checked on every storage:
//! `cargo test -p jobqueue-tests --test conformance -- --list` names them.

#![allow(clippy::unwrap_used)] // A helper that fails fails its test.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use jobqueue::clock::ManualClock;
use jobqueue::sharded::Sharded;
use jobqueue::storage::Storage;
use jobqueue::{Runtime, azure, memory, postgres, servicebus, sqlite};
use jobqueue_conformance::{Deviation, Promise, Subject, exercise, promises, run_all};
use jobqueue_test_support::pgbouncer::PgBouncer;
use jobqueue_test_support::postgres::Postgres;
use jobqueue_test_support::servicebus::{self as servicebus_support, ServiceBus};
use jobqueue_testing::faults::Faulty;
use jobqueue_tests::azurite::Azurite;
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Builder;

type Opening = Pin<Box<dyn Future<Output = Subject>>>;

fn main() {
    let mut arguments = Arguments::from_args();
    // Promises about time wait for real on Azurite; waits overlap.
    arguments.test_threads.get_or_insert(24);
    let mut trials = Vec::new();
    trials.extend(virtual_time("memory", || Box::pin(async { in_memory() })));
    trials.extend(virtual_time("sqlite", || Box::pin(in_sqlite())));
    trials.extend(virtual_time("sharded", || Box::pin(async { sharded() })));
    trials.extend(in_postgres());
    trials.extend(behind_a_pooler());
    trials.extend(azurite());
    trials.extend(service_bus());
    trials.extend(service_bus_sessions());
    trials
        .extend(virtual_time("faulty", || Box::pin(async { wrapped(|inner| Faulty::new(inner).storage()) })));
    trials.push(Trial::test("memory::all_at_once", in_tokio_time));
    trials.push(Trial::test("sqlite::all_in_one_file_twice", in_one_file));
    // One line for each further storage: in virtual time as in `memory`, in real time as in `azurite`.
    libtest_mimic::run(&arguments, trials).exit();
}

fn in_memory() -> Subject {
    wrapped(Storage::clone)
}

/// A wrapper promises the same as the storage in it.
fn wrapped(wrap: fn(&Storage) -> Storage) -> Subject {
    let clock = Arc::new(ManualClock::new());
    Subject::virtual_time(wrap(&memory::open_on(Runtime::new().with_clock(clock.clone()))), clock)
}

/// All promises at once on one storage with tokio's clock, which is paused: the sleeps take no time.
fn in_tokio_time() -> Result<(), Failed> {
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build()?;
    let report = runtime.block_on(async {
        let storage = memory::open();
        run_all(async || Subject::real_time(storage.clone()), 1000).await
    });
    if report.broken().is_empty() { Ok(()) } else { Err(report.to_string().into()) }
}

/// All promises on one file, as the README shows it, and once more on what the first run has left.
fn in_one_file() -> Result<(), Failed> {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let folder = tempfile::tempdir()?;
        // The clock of a file is that of its first handle, which may not be closed yet.
        let clock = Arc::new(ManualClock::new());
        for _ in 0..2 {
            let report = exercise(&sqlite_in(folder.path(), clock.clone()).await).await;
            if !report.broken().is_empty() {
                return Err(report.to_string().into());
            }
        }
        Ok(())
    })
}

/// Three shards over two accounts in memory.
fn sharded() -> Subject {
    let clock = Arc::new(ManualClock::new());
    let account = || memory::open_on(Runtime::new().with_clock(clock.clone()));
    let sharded = Sharded::builder().account("a", account()).account("b", account());
    let sharded = sharded.default_shards(3).build().unwrap();
    Subject::virtual_time(Storage::from(sharded.stores()), clock)
}

async fn in_sqlite() -> Subject {
    let folder = tempfile::tempdir().unwrap();
    sqlite_in(folder.path(), Arc::new(ManualClock::new())).await.keeping(folder)
}

async fn sqlite_in(folder: &Path, clock: Arc<ManualClock>) -> Subject {
    let options =
        sqlite::Options::new(folder.join("jobs.db")).runtime(Runtime::new().with_clock(clock.clone()));
    Subject::virtual_time(Storage::open(options).await.unwrap(), clock)
}

/// One test for each promise, on a storage of its own with a clock of its own.
fn virtual_time(storage: &'static str, open: fn() -> Opening) -> impl Iterator<Item = Trial> {
    promises_of(storage).map(move |promise| {
        trial(storage, promise, move || {
            let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            runtime.block_on(async { keeps(promise, &open().await).await })
        })
    })
}

/// One schema of a PostgreSQL server, whose clock is the true one: the waits of promises overlap.
fn in_postgres() -> impl Iterator<Item = Trial> {
    promises_of("postgres").map(|promise| {
        trial("postgres", promise, move || {
            in_schema("promises", &Postgres::shared().connection_string(), promise)
        })
    })
}

/// The same behind a pooler that gives each transaction another connection, where that is asked for.
fn behind_a_pooler() -> impl Iterator<Item = Trial> {
    static POOLER: OnceLock<Option<PgBouncer>> = OnceLock::new();
    promises_of("pgbouncer").map(|promise| {
        trial("pgbouncer", promise, move || {
            let pooler = POOLER.get_or_init(|| PgBouncer::start(Postgres::shared(), 12));
            let Some(pooler) = pooler else { return Ok(()) };
            let connection = format!("{}&listen=off", pooler.connection_string());
            loop {
                let starts = pooler.starts();
                let kept = in_schema("pooled", &connection, promise);
                // The pooler may end by itself, which is an outage and no broken promise.
                if kept.is_ok() || !pooler.has_ended_since(starts) {
                    return kept;
                }
            }
        })
    })
}

fn in_schema(schema: &str, connection: &str, promise: &Promise) -> Result<(), Failed> {
    let options = postgres::Options::from_connection_string(connection)?.schema(schema).max_connections(3);
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { keeps(promise, &Subject::real_time(Storage::open(options).await?)).await })
}

/// Azurite through the adapter. The adapter refuses what Azurite accepts and Azure does not (metadata, sizes,
/// characters), so these deviations do not show here.
fn azurite() -> impl Iterator<Item = Trial> {
    promises_of("azurite").map(|promise| {
        trial("azurite", promise, move || {
            let azurite = Azurite::shared();
            let _log = azurite.log_on_failure();
            let runtime = Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let options = azure::Options::from_connection_string(&azurite.connection_string())?;
                let subject = Subject::real_time(Storage::open(options).await?).deviating([
                    // Azure itself.
                    Deviation::ExpiryNotChecked,
                    Deviation::NextVisibleUnknown,
                    Deviation::WholeSeconds,
                    // Azurite 3.35.
                    Deviation::BatchSharesReceipt,
                    Deviation::VisibilityBeyondExpiryAccepted,
                    Deviation::CountKeepsExpired,
                    Deviation::RenewWithWrongIdAfterExpiry,
                    Deviation::LeaseOnMissingBlobIgnored,
                ]);
                keeps(promise, &subject).await
            })
        })
    })
}

/// The groups of promises about queues.
const OF_QUEUES: [&str; 18] = [
    "create",
    "missing",
    "list",
    "metadata",
    "put",
    "text",
    "ttl",
    "get",
    "peek",
    "log",
    "update",
    "delete",
    "receipt",
    "clear",
    "subscriptions",
    "announcements",
    "groups",
    "dead_letters",
];

/// Queues of Service Bus on the emulator, or on the namespace of the connection string
/// `JOBQUEUE_TEST_SERVICEBUS`, with blobs in memory. Locks last 5 seconds, so that more time passes than the
/// promises ask for; the trials share the emulator's clock, and run one after the other.
fn service_bus() -> impl Iterator<Item = Trial> {
    static ONE: Mutex<()> = Mutex::new(());
    promises().iter().filter(|promise| OF_QUEUES.contains(&group(promise))).map(|promise| {
        trial("servicebus", promise, move || {
            let given = servicebus_support::namespace();
            let is_real = given.is_some();
            let emulator = ServiceBus::shared;
            let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
            if !is_real {
                emulator().stop_clock();
            }
            let text = given.unwrap_or_else(|| emulator().connection_string().to_owned());
            let runtime = Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let options = servicebus::Options::from_connection_string(&text)?;
                let options = options.lock_duration(LOCK);
                let blobs = Storage::memory();
                let subject = Subject::new(
                    Storage::from(options.with_blobs_of(&blobs).unwrap()),
                    Duration::from_secs(5),
                    move |by| {
                        Box::pin(async move {
                            match is_real {
                                true => tokio::time::sleep(by + LOCK).await,
                                false => emulator().advance(by + LOCK),
                            }
                        })
                    },
                );
                let own = [Deviation::ReleaseEndsReceipt, Deviation::UnorderedQueues];
                let subject = subject.deviating(OF_SERVICE_BUS).deviating(own);
                keeps(promise, &subject).await
            })
        })
    })
}

const LOCK: Duration = Duration::from_secs(5);

const OF_SERVICE_BUS: [Deviation; 8] = [
    Deviation::LockOfFixedLength,
    Deviation::RenewalKeepsReceipt,
    Deviation::PutReceiptCancelsDelayOnly,
    Deviation::PeekShowsLeased,
    Deviation::ClearKeepsLeased,
    Deviation::ExpiredNeverAllowed,
    Deviation::NextVisibleUnknown,
    Deviation::EndedLeaseIsExpired,
];

/// Queues of Service Bus that require sessions. The delay of a message that is given back passes in the
/// process that holds its session, so that these trials wait for the true time; their waits overlap.
fn service_bus_sessions() -> impl Iterator<Item = Trial> {
    static EMULATOR: OnceLock<ServiceBus> = OnceLock::new();
    promises().iter().filter(|promise| OF_QUEUES.contains(&group(promise))).map(|promise| {
        trial("servicebus_sessions", promise, move || {
            let emulator = EMULATOR.get_or_init(ServiceBus::start);
            let runtime = Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let options = servicebus::Options::from_connection_string(emulator.connection_string())?;
                let options = options.sessions(true).lock_duration(LOCK);
                let wait = |by| -> Pin<Box<dyn Future<Output = ()> + Send>> {
                    Box::pin(tokio::time::sleep(by + LOCK))
                };
                let subject = Subject::new(
                    Storage::from(options.with_blobs_of(Storage::memory()).unwrap()),
                    Duration::from_secs(5),
                    wait,
                );
                let subject = subject
                    .deviating(OF_SERVICE_BUS)
                    .deviating([Deviation::GetMayBeShort, Deviation::DelayedJoinsLater]);
                keeps(promise, &subject).await
            })
        })
    })
}

/// Returns the promises that a storage is tried for: all, or those of some powers left out.
fn promises_of(storage: &str) -> impl Iterator<Item = &'static Promise> {
    // Only databases keep the journal in a table, and show every message: the others keep it in blobs, above
    // the port.
    let others: &[&str] = match storage {
        "sqlite" | "postgres" => &["dead_letters"],
        // Notifications do not pass the pooler.
        "pgbouncer" => &["subscriptions", "announcements", "dead_letters"],
        "memory" | "traced" => &["journal", "dead_letters"],
        // The wrapper hides the order of groups.
        "faulty" => &["journal", "dead_letters", "groups"],
        "sharded" => &["journal", "index", "dead_letters", "groups"],
        // Azure Storage announces no messages of other processes.
        "azurite" => &["journal", "index", "announcements", "dead_letters", "groups", "counts"],
        _ => &["journal", "index"],
    };
    // Only Service Bus shows its messages by a log.
    promises().iter().filter(move |promise| group(promise) != "log" && !others.contains(&group(promise)))
}

fn group(promise: &Promise) -> &'static str {
    promise.name().split("::").next().unwrap_or_default()
}

/// Checks a promise of the port, or of a power that the storage must have.
async fn keeps(promise: &Promise, subject: &Subject) -> Result<(), Failed> {
    if !promise.concerns(subject) {
        return Err("the storage does not have the power that this promise is of".into());
    }
    promise.run(subject).await.map_err(Failed::from)
}

fn trial(
    storage: &str,
    promise: &Promise,
    run: impl FnOnce() -> Result<(), Failed> + Send + 'static,
) -> Trial {
    Trial::test(format!("{storage}::{}", promise.name()), run)
}
