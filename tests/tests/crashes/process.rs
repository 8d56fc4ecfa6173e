//! The processes that are killed: this program, started again with a role.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jobqueue::storage::Operation;
use jobqueue::testing::faults::{Fault, Faulty};
use jobqueue::{Context, Event, JobError, Outcome, SendOptions, SettingOverrides, Storage, Worker};
use jobqueue_tests::jobs::Task;
use uuid::Uuid;

use super::ledger::Ledger;
use super::{FAILPOINT, FOLDER, ROLE};

/// Jobs at once in a worker.
pub const CONCURRENCY: usize = 4;

/// The storage in a folder.
pub fn path(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("jobs.db").display())
}

/// Kills this process at the named point, as SIGKILL does: nothing is unwound, nothing is flushed.
fn arm(faulty: &Faulty) {
    let Ok(point) = std::env::var(FAILPOINT) else { return };
    let mut words = point.split(':');
    let (name, moment) = (words.next().unwrap().to_owned(), words.next().unwrap().to_owned());
    let nth: u64 = words.next().unwrap().parse().unwrap();
    let operations =
        [Operation::Put, Operation::Get, Operation::Update, Operation::Delete, Operation::PutBlob];
    let operation = *operations.iter().find(|operation| operation.as_str() == name).unwrap();
    faulty.on(operation, move |call| {
        if call.nth != nth {
            return None;
        }
        if moment == "before" {
            kill();
        }
        // Done and never answered; killed when it is certainly done.
        std::thread::spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            kill();
        });
        Some(Fault::HangAfter)
    });
}

fn kill() -> ! {
    let _ = std::process::Command::new("kill").args(["-KILL", &std::process::id().to_string()]).status();
    std::process::abort()
}

#[tokio::test(flavor = "multi_thread")]
async fn part_of_the_crash_ledger() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let folder = PathBuf::from(std::env::var(FOLDER).unwrap());
    let ledger = Arc::new(Ledger::open(&folder, &role));
    let faulty = Faulty::new(&Storage::connect(&path(&folder)).await.unwrap());
    arm(&faulty);
    let storage = faulty.storage();
    match role.split(':').next().unwrap() {
        "producer" => produce(&storage, &ledger).await,
        "worker" => work(&storage, ledger, false).await,
        _ => work(&storage, ledger, true).await,
    }
}

async fn produce(storage: &Storage, ledger: &Ledger) {
    let queue = storage.queue::<Task>().await.unwrap();
    for n in 0.. {
        let id = Uuid::new_v4().to_string();
        // Every eighth has its payload in a blob.
        let data = if n % 8 == 0 { "x".repeat(70_000) } else { String::new() };
        ledger.note("intend", 0, &id);
        let _ = queue.send_with(&Task { name: id.clone(), data }, SendOptions::new().id(&id)).await.unwrap();
        ledger.note("sent", 0, &id);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn work(storage: &Storage, ledger: Arc<Ledger>, drain: bool) {
    let mut terms = SettingOverrides::default();
    terms.timeout = Some(Duration::from_secs(2));
    terms.max_deliveries = Some(10_000);
    let book = Arc::clone(&ledger);
    let handler = move |task: Task, ctx: Context| {
        let book = Arc::clone(&book);
        async move {
            let job = task.name.as_str();
            let from: u32 = ctx.resume().await?.unwrap_or_default();
            book.note("start", from, job);
            book.note("attempt", ctx.info().attempt, job);
            for stage in from..3 {
                tokio::time::sleep(Duration::from_millis(5)).await;
                ctx.checkpoint(&(stage + 1)).await?;
                book.note("saved", stage + 1, job);
            }
            book.note("end", 3, job);
            Ok::<(), JobError>(())
        }
    };
    let listen = move |event: &Event| {
        if let Event::Finished { job: Some(job), outcome: Outcome::Completed, .. } = event {
            ledger.note("completed", 0, &job.id);
        }
    };
    let worker = Worker::builder(storage.clone()).concurrency(CONCURRENCY).overrides(terms).handle(handler);
    let worker = worker.on_event(listen).build().unwrap();
    if !drain {
        let _ = worker.run_until(std::future::pending()).await.unwrap();
        return;
    }
    let queue = storage.queue::<Task>().await.unwrap();
    let empty = async {
        while !queue.is_empty().await.unwrap() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let _ = worker.run_until(empty).await.unwrap();
}
