//! Many keys at once: workers run, jobs fail and die, dead letters are redriven, and answers are lost. At the
//! end every acknowledged job is done, and no key is blocked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::{JobError, JobInfo, Queue, SendOptions, State, Storage, Worker, WorkerBuilder};
use jobqueue_testing::faults::{AzureLike, Faulty};
use jobqueue_tests::jobs::worker;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::{Instant, sleep, timeout};

use crate::order::{Step, keep_running, logged, opened, step};

/// The completed jobs, and those whose handlers began while another job of their key was running.
#[derive(Debug, Clone, Default)]
struct Book {
    done: Arc<Mutex<BTreeSet<(String, u32)>>>,
    running: Arc<Mutex<BTreeMap<String, u32>>>,
    overlaps: Arc<Mutex<Vec<String>>>,
    /// The number of times that each job has failed.
    failed: Arc<Mutex<BTreeMap<String, u32>>>,
}

/// Fails `fails` times in all, including redrives, and then succeeds.
async fn work(step: Step, info: JobInfo, State(book): State<Book>) -> Result<(), JobError> {
    if let Some(other) = book.running.lock().unwrap().insert(step.of.clone(), step.number) {
        book.overlaps.lock().unwrap().push(format!("{} {} beside {other}", step.of, step.number));
    }
    tokio::time::sleep(Duration::from_millis(step.millis)).await;
    book.running.lock().unwrap().remove(&step.of);
    let mut failed = book.failed.lock().unwrap();
    let failures = failed.entry(info.id.to_string()).or_default();
    if *failures < step.fails {
        *failures += 1;
        return Err(JobError::dead_letter("it dies"));
    }
    book.done.lock().unwrap().insert((step.of.clone(), step.number));
    Ok(())
}

/// Sends jobs of all keys; sends again under the same id after an error.
async fn send_all(queue: &Queue<Step>, keys: u32, jobs: u32, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    for number in 0..jobs {
        for key in 0..keys {
            let fails = u32::from(random.random_range(0..5) == 0) * random.random_range(1..3);
            let job = Step { fails, millis: random.random_range(0..3), ..step(key.to_string(), number) };
            let id = format!("{key}-{number}");
            while queue.send(&job).in_order().id(&id).await.is_err() {}
        }
    }
}

/// Redrives dead letters until all jobs are done.
async fn redrive_until_done(queue: &Queue<Step>, book: &Book, jobs: usize) {
    while book.done.lock().unwrap().len() < jobs {
        sleep(Duration::from_millis(300)).await;
        let _ = queue.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await;
    }
}

async fn all_is_done(
    storages: [Storage; 3],
    build: impl Fn(&Storage) -> WorkerBuilder + Copy + Send + 'static,
    (keys, jobs, seed): (u32, u32, u64),
    limit: Duration,
) {
    let book = Book::default();
    let (stop, stopped) = tokio::sync::watch::channel(());
    let workers = storages[..2].iter().map(|storage| {
        let (storage, book) = (storage.clone(), book.clone());
        let build = move || build(&storage).state(book.clone()).handle(work).build().unwrap();
        tokio::spawn(keep_running(build, stopped.clone()))
    });
    let workers: Vec<_> = workers.collect();
    let queue = opened(&storages[2]).await;
    let all = async {
        tokio::join!(
            send_all(&queue, keys, jobs, seed),
            redrive_until_done(&queue, &book, (keys * jobs) as usize)
        )
    };
    let ended = timeout(limit, all).await;
    let done = book.done.lock().unwrap().clone();
    let missing: Vec<_> =
        (0..keys).flat_map(|key| (0..jobs).map(move |number| (key.to_string(), number))).collect();
    let missing: Vec<_> = missing.into_iter().filter(|job| !done.contains(job)).take(20).collect();
    assert!(ended.is_ok(), "seed {seed}: never done, among others: {missing:?}");
    stop.send(()).unwrap();
    for worker in workers {
        worker.await.unwrap();
    }
    assert!(book.overlaps.lock().unwrap().is_empty(), "seed {seed}: {:?}", book.overlaps.lock().unwrap());
}

/// Loses answers, breaks connections and throttles, as a busy Azure Storage account does.
fn flaky(storage: &Storage, seed: u64) -> Storage {
    Faulty::with_profile(storage, AzureLike::seeded(seed).faults(0.05)).storage()
}

// W-order
#[tokio::test(start_paused = true)]
async fn no_key_is_blocked_by_deaths_and_redrives() {
    for seed in 0..6 {
        let storage = logged();
        let storages = [(); 3].map(|()| storage.clone());
        all_is_done(storages, worker, (40, 6, seed), Duration::from_secs(7_200)).await;
        assert!(storage.queue::<Step>().await.unwrap().is_empty().await.unwrap(), "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_key_is_blocked_by_deaths_redrives_and_lost_answers() {
    for seed in 0..12 {
        let storage = logged();
        let storages = [0, 1, 2].map(|number| flaky(&storage, seed * 10 + number));
        all_is_done(storages, worker, (12, 6, seed), Duration::from_secs(40_000)).await;
    }
}

// W-order: in real time, two handles on one file.
#[tokio::test(flavor = "multi_thread")]
async fn no_key_is_blocked_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let file = format!("sqlite:{}", folder.path().join("jobs.db").display());
    let mut storages = Vec::new();
    for _ in 0..3 {
        storages.push(Storage::connect(&file).await.unwrap());
    }
    let build = |storage: &Storage| Worker::builder(storage.clone());
    let storages: [Storage; 3] = storages.try_into().unwrap();
    all_is_done(storages, build, (60, 5, 1), Duration::from_secs(240)).await;
}

// W-flow: in real time.
#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_of_one_key_drains_fast_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let file = format!("sqlite:{}", folder.path().join("jobs.db").display());
    let storage = Storage::connect(&file).await.unwrap();
    let queue = storage.queue::<Step>().await.unwrap();
    let list: Vec<Step> = (0..610).map(|number| Step { millis: 0, ..step("a", number) }).collect();
    let in_order = || SendOptions::new().in_order();
    let sent = queue.send_all(list.iter().map(|step| (step, in_order()))).await.unwrap();
    assert!(sent.iter().all(Result::is_ok));
    let book = Book::default();
    let worker = Worker::builder(storage).state(book.clone()).handle(work).build().unwrap();
    let began = Instant::now();
    let done = Arc::clone(&book.done);
    let ended = worker.run_until(async move {
        while done.lock().unwrap().len() < 610 {
            sleep(Duration::from_millis(5)).await;
        }
    });
    let _ = timeout(Duration::from_secs(120), ended).await.expect("a backlog of 610").unwrap();
    println!("{:.0} a second", 610.0 / began.elapsed().as_secs_f64());
    // Some 200 a second on a machine with nothing else to do.
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
}
