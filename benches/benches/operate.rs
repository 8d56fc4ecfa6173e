//! Measures the cost of operating: how long each page of the dashboard takes with 100,000 waiting and 10,000
//! dead messages on SQLite while a worker runs, and what a viewer, the workers' records and the journal cost
//! in throughput.
//!
//! ```console
//! $ cargo bench -p jobqueue-bench --bench operate
//! ```

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark that fails ends")]

use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use futures_util::StreamExt as _;
use jobqueue::{JobError, QueueMessage, Storage, Worker, WorkerBuilder};
use jobqueue_admin::{AccessLevel, Admin};
use jobqueue_bench_harness::{cpu_time, median};
use jobqueue_dashboard::Dashboard;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

/// A job that the measured worker runs.
#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "thumbnails", kind = "bench.thumbnail")]
struct Thumbnail {
    number: u64,
    url: String,
}

/// A job that waits, or is dead.
#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "letters", kind = "bench.letter")]
struct Letter {
    number: u64,
}

/// The amount of messages that are measured.
#[derive(Clone, Copy)]
struct Size {
    waiting: u64,
    dead: u64,
    /// The loads of each page.
    loads: usize,
    /// The jobs of a run whose throughput is measured.
    jobs: u64,
    rounds: usize,
}

const FULL: Size = Size { waiting: 100_000, dead: 10_000, loads: 15, jobs: 600_000, rounds: 3 };
/// Shows that it runs.
const QUICK: Size = Size { waiting: 300, dead: 50, loads: 1, jobs: 300, rounds: 1 };

/// The interval of the dashboard whose pages are measured: a page that was loaded before this time reads the
/// storage again.
const REFRESH: Duration = Duration::from_millis(100);

fn thumbnail(number: u64) -> Thumbnail {
    Thumbnail {
        number,
        url: "https://photos.example.org/albums/2026/summer/IMG_20260714_183012.jpeg".to_owned(),
    }
}

async fn open(folder: &tempfile::TempDir) -> Storage {
    Storage::connect(&format!("sqlite:{}", folder.path().join("jobs.db").display())).await.unwrap()
}

async fn send<M: QueueMessage>(storage: &Storage, messages: impl Iterator<Item = M>) {
    let sent = storage.queue::<M>().await.unwrap().send_all(messages).await.unwrap();
    sent.into_iter().for_each(|sent| drop(sent.unwrap()));
}

/// Fills a storage with jobs that wait, dead letters, a batch and a journal.
async fn fill(storage: &Storage, size: Size) {
    send(storage, (0..size.dead).map(|number| Letter { number })).await;
    let reject = |letter: Letter| async move {
        Err::<(), _>(JobError::dead_letter(format!("nobody lives in house {}", letter.number)))
    };
    let worker =
        Worker::builder(storage.clone()).concurrency(64).history(Duration::from_secs(86_400)).handle(reject);
    let report = worker.build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.dead_lettered, size.dead);
    send(storage, (0..size.waiting).map(|number| Letter { number })).await;
    let mut batch = storage.batch("album").await.unwrap();
    batch.send_all((0..size.dead).map(thumbnail)).await.unwrap();
    batch.then(&thumbnail(0)).await.unwrap();
}

fn builder(storage: &Storage) -> WorkerBuilder {
    Worker::builder(storage.clone()).concurrency(64).handle(|_: Thumbnail| async { Ok::<(), JobError>(()) })
}

fn dashboard(storage: &Storage, refresh: Duration, stop: &CancellationToken) -> Router {
    let admin = Admin::builder(storage.clone()).access(AccessLevel::Operate).operator("ada").build();
    Dashboard::new(admin).refresh(refresh).stop_when(stop.clone()).router()
}

/// Loads a page, and returns how long that took.
async fn load(router: &Router, path: &str) -> Duration {
    let request = Request::get(path).body(Body::empty()).unwrap();
    let began = Instant::now();
    let answer = router.clone().oneshot(request).await.unwrap();
    let status = answer.status();
    let body = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
    let took = began.elapsed();
    assert!(status.is_success(), "{path}: {status} {}", String::from_utf8_lossy(&body));
    took
}

/// Returns an address of each page, with jobs that are there.
async fn addresses(storage: &Storage) -> Vec<String> {
    let admin = Admin::new(storage.clone());
    let waiting = admin.peek("letters").await.unwrap().swap_remove(0).id;
    let dead = admin.dead_letters("letters", &Default::default()).await.unwrap().letters.swap_remove(0).id;
    let job = |id: &str| format!("/job?queue=letters&id={id}");
    let plain = [
        "/",
        "/queues/letters",
        "/queues/thumbnails",
        "/queues/letters/dead",
        "/dead",
        "/workers",
        "/schedules",
    ];
    let others = [
        "/batches",
        "/batch?id=album",
        "/search",
        "/search?kind=bench.letter&outcome=dead_lettered",
        "/send",
    ];
    let machines = ["/metrics", "/scale"];
    let mut all: Vec<String> = plain.into_iter().chain(others).chain(machines).map(str::to_owned).collect();
    all.push("/queues/letters/dead?text=house%209999".to_owned());
    all.push(format!("/search?id={dead}"));
    all.extend([job(&waiting), job(&dead), job("no-such-job")]);
    all
}

/// Loads each page several times while a worker has always something to do, and prints how long that took.
async fn pages(storage: &Storage, size: Size) {
    let stop = CancellationToken::new();
    let worker = builder(storage)
        .presence(Duration::from_secs(15))
        .history(Duration::from_secs(86_400))
        .build()
        .unwrap();
    let worker = tokio::spawn(worker.run_until(stop.clone().cancelled_owned()));
    let feeding = tokio::spawn(stop.clone().run_until_cancelled_owned(feed(storage.clone())));
    let router = dashboard(storage, REFRESH, &stop);
    println!("| page | median | worst |\n|---|--:|--:|");
    for path in addresses(storage).await {
        let mut times = Vec::new();
        for _ in 0..size.loads {
            // What an earlier load has read is not used again.
            tokio::time::sleep(REFRESH * 2).await;
            times.push(load(&router, &path).await);
        }
        times.sort();
        let [median, worst] =
            [times[times.len() / 2], times[times.len() - 1]].map(|time| time.as_secs_f64() * 1e3);
        let path = path.split("id=").next().unwrap();
        println!("| `{path}` | {median:.0} ms | {worst:.0} ms |");
    }
    stop.cancel();
    feeding.await.unwrap();
    let report = worker.await.unwrap().unwrap();
    println!("\nMeanwhile the worker completed {} jobs.\n", report.completed);
    // What is left would count among the jobs of the next run.
    let _ = builder(storage).build().unwrap().run_until_idle().await.unwrap();
}

/// Sends jobs as fast as they are run.
async fn feed(storage: Storage) {
    let queue = storage.queue::<Thumbnail>().await.unwrap();
    loop {
        send(&storage, (0..1_000).map(thumbnail)).await;
        while queue.approximate_len().await.unwrap() > 5_000 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// The work that runs beside the worker, or that it does besides its jobs.
#[derive(Clone, Copy, PartialEq)]
enum Beside {
    Nothing,
    /// Somebody looks at the overview and at a queue, with the default interval.
    Viewer,
    Presence,
    PresenceAndJournal,
}

/// The figures of one run.
#[derive(Clone, Copy, Default)]
struct Run {
    /// The jobs per second.
    rate: f64,
    /// The microseconds of processor time of the whole process for each job. Other processes change it less
    /// than the rate.
    cpu: f64,
}

/// Runs jobs with handlers of this duration.
async fn throughput(storage: &Storage, jobs: u64, beside: Beside, duration: Duration) -> Run {
    send(storage, (0..jobs).map(thumbnail)).await;
    let stop = CancellationToken::new();
    let handler = move |_: Thumbnail| async move {
        if !duration.is_zero() {
            tokio::time::sleep(duration).await;
        }
        Ok::<(), JobError>(())
    };
    let builder = Worker::builder(storage.clone()).concurrency(64).handle(handler);
    let (presence, journal) = (Duration::from_secs(15), Duration::from_secs(86_400));
    let worker = match beside {
        Beside::Nothing => builder.presence(None),
        Beside::Viewer | Beside::Presence => builder.presence(presence),
        Beside::PresenceAndJournal => builder.presence(presence).history(journal),
    };
    let viewer = (beside == Beside::Viewer)
        .then(|| tokio::spawn(view(dashboard(storage, Duration::from_secs(5), &stop), stop.clone())));
    let worker = worker.build().unwrap();
    let (began, used) = (Instant::now(), cpu_time().as_secs_f64());
    assert_eq!(worker.run_until_idle().await.unwrap().completed, jobs);
    let run = Run {
        rate: jobs as f64 / began.elapsed().as_secs_f64(),
        cpu: (cpu_time().as_secs_f64() - used) * 1e6 / jobs as f64,
    };
    stop.cancel();
    if let Some(viewer) = viewer {
        viewer.await.unwrap();
    }
    run
}

/// Follows the events of an open page, and loads it again after each, as a browser does.
async fn view(router: Router, stop: CancellationToken) {
    let answer = router.clone().oneshot(Request::get("/events").body(Body::empty()).unwrap()).await.unwrap();
    let mut events = answer.into_body().into_data_stream();
    while let Some(Some(_)) = stop.run_until_cancelled(events.next()).await {
        load(&router, "/").await;
        load(&router, "/queues/letters").await;
    }
}

/// Measures two ways in turn, and prints the ratio of each pair of neighbours.
async fn compare(
    storage: &Storage,
    size: Size,
    (name, beside, base): (&str, Beside, Beside),
    duration: Duration,
) {
    let jobs = if duration.is_zero() { size.jobs } else { size.jobs / 6 };
    let mut pairs = Vec::new();
    for round in 0..size.rounds {
        let mut pair = [Run::default(); 2];
        // In another order each time, so that neither always comes second.
        for place in 0..2 {
            let which = (place + round) % 2;
            pair[which] = throughput(storage, jobs, [beside, base][which], duration).await;
        }
        pairs.push(pair);
    }
    let of = |figure: fn(&[Run; 2]) -> f64| median(pairs.iter().map(figure).collect());
    let ratios = || pairs.iter().map(|[with, without]| 100.0 * with.rate / without.rate);
    println!(
        "| {name} | {:.0} | {:.0} | {:.1} % ({:.1}–{:.1}) | {:.1} | {:.1} | {:+.1} % |",
        of(|[_, without]| without.rate),
        of(|[with, _]| with.rate),
        median(ratios().collect()),
        ratios().fold(f64::MAX, f64::min),
        ratios().fold(0.0, f64::max),
        of(|[_, without]| without.cpu),
        of(|[with, _]| with.cpu),
        of(|[with, without]| 100.0 * (with.cpu / without.cpu - 1.0)),
    );
}

#[tokio::main]
async fn main() {
    // `cargo bench` says so; everybody else wants to see that it runs.
    let size = if std::env::args().any(|argument| argument == "--bench") { FULL } else { QUICK };
    let folder = tempfile::tempdir().unwrap();
    let storage = open(&folder).await;
    fill(&storage, size).await;
    println!("{} messages wait, {} are dead.\n", size.waiting, size.dead);
    pages(&storage, size).await;
    println!(
        "| 64 handlers at once | jobs/s without | jobs/s with | ratio | µs of processor a job without | with | more |\n|---|--:|--:|--:|--:|--:|--:|"
    );
    let (none, slow) = (Duration::ZERO, Duration::from_millis(5));
    let viewer = ("a viewer (records on in both)", Beside::Viewer, Beside::Presence);
    compare(&storage, size, viewer, none).await;
    compare(&storage, size, ("records", Beside::Presence, Beside::Nothing), none).await;
    let journal = Beside::PresenceAndJournal;
    compare(&storage, size, ("records and journal", journal, Beside::Nothing), none).await;
    compare(&storage, size, ("records and journal, handlers of 5 ms", journal, Beside::Nothing), slow).await;
}
