//! The cost of a job on Service Bus: frames and time on the tests' emulator, by a worker, and by loops on the
//! same client: one by hand that keeps the same promises ([`careful`]), and the least that completes a
//! message ([`bare`]). A worker on a queue that requires sessions shows what jobs in order cost; no loop is
//! compared with it.
//!
//! ```console
//! $ cargo bench -p jobqueue-bench --bench servicebus
//! ```
//!
//! Each round runs them one after the other, so that what else the machine does meets all of them; the ratios
//! are medians of the rounds' ratios. The processor time of this process is measured beside the time on the
//! clock, which the emulator determines for the most part. With the name of one of them as an argument, only
//! that one runs, for a profiler.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark that fails ends")]

mod answers;
mod bare;
mod careful;
mod proxy;
mod renewals;
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use jobqueue::servicebus::Options;
use jobqueue::{JobError, QueueMessage, Storage, Worker};
use jobqueue_bench_harness::{cpu_time, median};
use jobqueue_test_support::servicebus::ServiceBus;
use serde::{Deserialize, Serialize};

/// The messages that are handled at the same time.
const SLOTS: u32 = 32;
const QUEUE: &str = "thumbnails";
/// The queue that requires sessions, and the jobs of each of its keys.
const ALBUMS: &str = "albums";
const PER_ALBUM: u64 = 10;

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "thumbnails", kind = "bench.thumbnail")]
struct Thumbnail {
    number: u64,
    url: String,
}

/// The same, in the order of its album.
#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "albums", kind = "bench.page")]
struct Page {
    number: u64,
    url: String,
    #[message(key)]
    album: u64,
}

async fn thumbnail(_job: Thumbnail) -> Result<(), JobError> {
    Ok(())
}

async fn page(_job: Page) -> Result<(), JobError> {
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Bare,
    Careful,
    Worker,
    Sessions,
}

impl Side {
    fn queue(self) -> &'static str {
        if self == Self::Sessions { ALBUMS } else { QUEUE }
    }
}

const SIDES: [(Side, &str); 4] = [
    (Side::Bare, "bare"),
    (Side::Careful, "careful"),
    (Side::Worker, "worker"),
    (Side::Sessions, "sessions"),
];
const ALL: usize = SIDES.len();

/// The figures of one run, per job.
#[derive(Clone, Copy, Default)]
struct Cost {
    frames: f64,
    microseconds: f64,
    /// The processor time of this process.
    cpu: f64,
    /// The processor time of the emulator.
    emulator: f64,
}

/// An emulator, and a proxy before it that counts frames.
struct Bench {
    emulator: ServiceBus,
    blobs: Storage,
    proxy: u16,
    frames: Arc<AtomicU64>,
    jobs: u64,
}

impl Bench {
    async fn new(jobs: u64) -> Self {
        // A token costs a request or two; neither side is to be measured by them.
        let emulator = ServiceBus::emulator(&["--checks-tokens", "false"]);
        emulator.create_queue(QUEUE, serde_json::json!({ "LockDuration": "PT5M" }));
        emulator.create_queue(ALBUMS, serde_json::json!({ "LockDuration": "PT5M", "RequiresSession": true }));
        let (proxy, frames) = proxy::counting_proxy(emulator.port()).await;
        Self { emulator, blobs: Storage::memory(), proxy, frames, jobs }
    }

    /// Returns the storage, by the proxy if `port` is its port.
    fn storage(&self, port: u16) -> Storage {
        let (before, after) = (format!(":{};", self.emulator.port()), format!(":{port};"));
        let text = self.emulator.connection_string().replacen(&before, &after, 1);
        Storage::from(Options::from_connection_string(&text).unwrap().with_blobs_of(&self.blobs).unwrap())
    }

    async fn fill(&self, side: Side) {
        let storage = self.storage(self.emulator.port());
        let url = || "https://photos.example.org/albums/2026/summer/IMG_20260714_183012.jpeg".to_owned();
        let sent = if side == Side::Sessions {
            let queue = storage.queue::<Page>().await.unwrap();
            let jobs = (0..self.jobs).map(|number| Page { number, url: url(), album: number / PER_ALBUM });
            queue.send_all(jobs).in_order().await
        } else {
            let queue = storage.queue::<Thumbnail>().await.unwrap();
            queue.send_all((0..self.jobs).map(|number| Thumbnail { number, url: url() })).await
        };
        sent.unwrap().into_iter().for_each(|sent| drop(sent.unwrap()));
    }

    async fn run(&self, side: Side, port: u16) -> Duration {
        let took = match side {
            Side::Bare => bare::run(port, self.jobs).await,
            Side::Careful => careful::run(port, self.jobs).await,
            Side::Worker => {
                worker::run(Worker::builder(self.storage(port)).handle(thumbnail), self.jobs).await
            }
            Side::Sessions => worker::run(Worker::builder(self.storage(port)).handle(page), self.jobs).await,
        };
        let left = self.emulator.queue(side.queue())["counts"]["active"].as_u64().unwrap();
        assert_eq!(left, 0, "messages are left");
        took
    }

    /// Measures the time straight, and the frames in another run by the proxy.
    async fn measure(&self, side: Side) -> Cost {
        let jobs = self.jobs as f64;
        let per_job = |time: Duration| time.as_secs_f64() * 1e6 / jobs;
        self.fill(side).await;
        let (own, other) = (cpu_time(), self.emulator.cpu_time());
        let took = self.run(side, self.emulator.port()).await;
        let (cpu, emulator) = (cpu_time() - own, self.emulator.cpu_time() - other);
        self.fill(side).await;
        self.frames.store(0, Ordering::Relaxed);
        self.run(side, self.proxy).await;
        let frames = self.frames.load(Ordering::Relaxed) as f64 / jobs;
        Cost { frames, microseconds: per_job(took), cpu: per_job(cpu), emulator: per_job(emulator) }
    }
}

#[tokio::main]
async fn main() {
    // `cargo bench` says so; everybody else wants to see that it runs.
    let is_measured = std::env::args().any(|argument| argument == "--bench");
    let (jobs, rounds) = if is_measured { (5_000, 15) } else { (200, 1) };
    let bench = Bench::new(jobs).await;
    if let Some((side, _)) = SIDES.into_iter().find(|(_, name)| std::env::args().any(|given| given == *name))
    {
        return profile(&bench, side, rounds).await;
    }
    let mut costs = [const { Vec::new() }; ALL];
    for round in 0..rounds {
        // Nobody is always the first after a pause of the others.
        for place in 0..ALL {
            let at = (round + place) % ALL;
            costs[at].push(bench.measure(SIDES[at].0).await);
        }
    }
    report(&costs);
}

/// Runs one side alone.
async fn profile(bench: &Bench, side: Side, rounds: usize) {
    for _ in 0..rounds {
        bench.fill(side).await;
        let began = Instant::now();
        bench.run(side, bench.emulator.port()).await;
        println!("{:.0} µs a job", began.elapsed().as_secs_f64() * 1e6 / bench.jobs as f64);
    }
}

fn report(costs: &[Vec<Cost>; ALL]) {
    let median_of = |at: usize, figure: fn(&Cost) -> f64| median(costs[at].iter().map(figure).collect());
    println!("| {SLOTS} at once | frames | µs | µs of processor | emulator's |\n|---|--:|--:|--:|--:|");
    for (at, (_, name)) in SIDES.into_iter().enumerate() {
        let [frames, time] = [median_of(at, |cost| cost.frames), median_of(at, |cost| cost.microseconds)];
        let [cpu, emulator] = [median_of(at, |cost| cost.cpu), median_of(at, |cost| cost.emulator)];
        println!("| {name} | {frames:.2} | {time:.1} | {cpu:.1} | {emulator:.1} |");
    }
    for (at, name) in [(1, "careful"), (0, "bare")] {
        let ratio = |figure: fn(&Cost) -> f64| {
            let rounds = costs[2].iter().zip(&costs[at]);
            median(rounds.map(|(worker, other)| figure(worker) / figure(other)).collect())
        };
        let [time, cpu] = [ratio(|cost| cost.microseconds), ratio(|cost| cost.cpu)];
        println!(
            "\nThe worker takes {time:.2} times the time of {name}, and {cpu:.2} times its processor time."
        );
    }
}
