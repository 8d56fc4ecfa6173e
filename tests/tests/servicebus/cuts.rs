//! Connections that are cut after any byte, and processes that are killed: the books of what was sent and
//! done.
//!
//! `JOBQUEUE_SEED` repeats the places of the cuts and the moments of the kills.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::servicebus::Options;
use jobqueue::{Context, JobError, Queue, Storage, Worker, WorkerBuilder};
use jobqueue_tests::children::{Part, part};
use jobqueue_tests::say;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::json;
use tokio::io::copy_bidirectional;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use super::jobs::{Work, work};
use super::{Bench, MINUTE};

/// The names of the jobs that were done, and how often.
type Done = Arc<Mutex<BTreeMap<String, u32>>>;

/// Returns a worker whose jobs fail once if their name begins with `again`, and for good if with `bad`.
fn worker(storage: Storage, tell: impl Fn(&str) + Clone + Send + Sync + 'static) -> WorkerBuilder {
    let handler = move |job: Work, context: Context| {
        let tell = tell.clone();
        async move {
            let step: u32 = context.resume().await?.unwrap_or_default();
            context.checkpoint(&(step + 1)).await?;
            if job.name.starts_with("bad") {
                return Err(JobError::dead_letter("bad"));
            }
            if job.name.starts_with("again") && step == 0 {
                return Err(JobError::retry("not yet"));
            }
            tell(&job.name);
            Ok(())
        }
    };
    Worker::builder(storage).concurrency(4).max_idle_delay(Duration::from_millis(200)).handle(handler)
}

fn name(number: u32) -> String {
    let kind = ["good", "again", "bad"][number as usize % 3];
    format!("{kind}-{number}")
}

/// Audits the books: every job was done, or is one dead letter, and nothing is left.
fn audit(bench: &Bench, sent: &BTreeSet<String>, done: &BTreeSet<String>) {
    let (bad, good): (BTreeSet<_>, BTreeSet<_>) =
        sent.iter().cloned().partition(|name| name.starts_with("bad"));
    let lost: Vec<_> = good.difference(done).collect();
    assert!(lost.is_empty(), "lost: {lost:?}");
    let unsent: Vec<_> = done.difference(&good).collect();
    assert!(unsent.is_empty(), "done and never sent: {unsent:?}");
    let letters = bench.emulator.queue("work")["counts"]["deadLetters"].as_u64().unwrap();
    assert_eq!(letters, bad.len() as u64, "each bad job is one dead letter");
    assert_eq!(bench.count("active"), 0);
    assert_eq!(bench.count("scheduled"), 0);
}

/// A proxy that cuts each connection after a number of bytes, in the middle of whatever is under way.
pub(super) struct CuttingProxy {
    port: u16,
    is_cutting: Arc<AtomicBool>,
    cuts: Arc<AtomicU32>,
}

impl CuttingProxy {
    pub(super) async fn start(port: u16, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Self {
            port: listener.local_addr().unwrap().port(),
            is_cutting: Arc::new(AtomicBool::new(true)),
            cuts: Arc::default(),
        };
        let (is_cutting, cuts) = (Arc::clone(&proxy.is_cutting), Arc::clone(&proxy.cuts));
        let mut random = StdRng::seed_from_u64(seed);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
                let budgets = [random.random_range(2_000..20_000), random.random_range(2_000..20_000)];
                let (is_cutting, cuts) = (Arc::clone(&is_cutting), Arc::clone(&cuts));
                tokio::spawn(async move {
                    if is_cutting.load(Ordering::Relaxed) {
                        pass_until(client, server, budgets).await;
                        cuts.fetch_add(1, Ordering::Relaxed);
                    } else {
                        let (mut client, mut server) = (client, server);
                        let _ = copy_bidirectional(&mut client, &mut server).await;
                    }
                });
            }
        });
        proxy
    }
}

impl CuttingProxy {
    /// Returns a connection string that leads through the proxy.
    pub(super) fn through(&self, bench: &Bench) -> String {
        let (before, after) = (format!(":{};", bench.emulator.port()), format!(":{};", self.port));
        bench.emulator.connection_string().replacen(&before, &after, 1)
    }

    pub(super) fn stop_cutting(&self) {
        self.is_cutting.store(false, Ordering::Relaxed);
    }

    /// Returns the number of connections that were cut.
    pub(super) fn cuts(&self) -> u32 {
        self.cuts.load(Ordering::Relaxed)
    }
}

/// Passes bytes on, until one direction has used its budget; then both ends close.
async fn pass_until(client: TcpStream, server: TcpStream, [up, down]: [usize; 2]) {
    let (client_in, client_out) = client.into_split();
    let (server_in, server_out) = server.into_split();
    tokio::select! {
        () = pass(client_in, server_out, up) => {}
        () = pass(server_in, client_out, down) => {}
    }
}

async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut budget: usize,
) {
    let mut bytes = [0_u8; 4096];
    while budget > 0 {
        let most = budget.min(bytes.len());
        let Ok(count @ 1..) = from.read(&mut bytes[..most]).await else { return };
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
        budget -= count;
    }
}

/// Sends jobs one by one, until each is acknowledged; returns their names.
async fn send_all(queue: &Queue<Work>, jobs: u32) -> BTreeSet<String> {
    let mut sent = BTreeSet::new();
    for number in 0..jobs {
        let job = work(&name(number));
        // With an id of its own, a send that is repeated is one job.
        while let Err(error) = queue.send(&job).id(job.name.clone()).await {
            assert!(error.is_retryable(), "{error:?}");
        }
        sent.insert(job.name);
    }
    sent
}

/// Looks every half second whether all is over; connections are no longer cut after half a minute. Returns
/// the number of cuts.
pub(super) async fn cut_until(
    bench: &Bench,
    proxy: &CuttingProxy,
    is_over: impl Fn() -> bool,
    between: impl Fn(),
) -> u32 {
    let over = async {
        let mut rounds = 0;
        while !is_over() {
            sleep(Duration::from_millis(500)).await;
            between();
            rounds += 1;
            if rounds == 60 {
                proxy.stop_cutting();
            }
        }
    };
    let waited = timeout(4 * MINUTE, over).await;
    let cuts = proxy.cuts();
    println!("{cuts} cuts");
    assert!(waited.is_ok(), "after {cuts} cuts not over: {}", bench.emulator.queue("work")["counts"]);
    cuts
}

// B2, I1, I12
#[tokio::test]
async fn connections_cut_at_any_byte_lose_no_job() {
    const JOBS: u32 = 90;
    let bench = Bench::with(json!({ "RequiresDuplicateDetection": true }), &[]);
    let proxy = CuttingProxy::start(bench.emulator.port(), jobqueue_tests::seed()).await;
    let text = proxy.through(&bench);
    let open = || {
        Storage::from(Options::from_connection_string(&text).unwrap().with_blobs_of(&bench.blobs).unwrap())
    };
    let done = Done::default();
    let book = Arc::clone(&done);
    let tell = move |name: &str| *book.lock().unwrap().entry(name.to_owned()).or_default() += 1;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = worker(open(), tell).build().unwrap().run_until(async { drop(stopped.await) });
    let running = tokio::spawn(running);
    let sender = open();
    let queue = loop {
        match sender.queue::<Work>().await {
            Ok(queue) => break queue,
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
        }
    };
    let sent = send_all(&queue, JOBS).await;
    let is_over = || {
        let bad = sent.iter().filter(|name| name.starts_with("bad")).count();
        let letters = bench.emulator.queue("work")["counts"]["deadLetters"].as_u64().unwrap();
        let left = bench.count("active") + bench.count("scheduled");
        done.lock().unwrap().len() + bad >= sent.len() && letters >= bad as u64 && left == 0
    };
    // Locks of answers that were lost, and delays.
    let cuts = cut_until(&bench, &proxy, is_over, || bench.emulator.advance(Duration::from_secs(5))).await;
    assert!(cuts > 5, "only {cuts} cuts");
    stop.send(()).unwrap();
    drop(running.await.unwrap());
    let done: BTreeSet<_> = done.lock().unwrap().keys().cloned().collect();
    audit(&bench, &sent, &done);
}

// A part of the next test: works until it is killed, and says what it does.
#[tokio::test(flavor = "multi_thread")]
async fn part_of_the_ledger() {
    let Some(storage) = part("cuts::part_of_the_ledger") else { return };
    let storage = Storage::connect(&storage).await.unwrap();
    let tell = |name: &str| say!("done {name}.");
    worker(storage, tell).build().unwrap().run_until(std::future::pending()).await.map(drop).unwrap();
}

fn kill_after(storage: &str, lines: u32, done: &mut BTreeSet<String>) {
    let mut process = Part::start("cuts::part_of_the_ledger", storage);
    let mut heard = Vec::new();
    for _ in 0..lines {
        heard.extend(process.says());
    }
    heard.extend(process.kill());
    let whole = heard.iter().filter_map(|words| words.strip_suffix('.')?.strip_prefix("done "));
    done.extend(whole.map(str::to_owned));
}

// F52, I1
#[tokio::test(flavor = "multi_thread")]
async fn workers_killed_at_random_lose_no_job() {
    const ROUNDS: u32 = 5;
    let mut random = StdRng::seed_from_u64(jobqueue_tests::seed());
    let bench = Bench::new();
    let folder = tempfile::tempdir().unwrap();
    let storage = string(&bench, &folder.path().join("blobs.db"));
    let queue = Storage::connect(&storage).await.unwrap().queue::<Work>().await.unwrap();
    let (mut sent, mut done) = (BTreeSet::new(), BTreeSet::new());
    for round in 0..ROUNDS {
        for number in 0..30 {
            let job = work(&name(round * 30 + number));
            queue.send(&job).await.unwrap();
            sent.insert(job.name);
        }
        let lines = random.random_range(1..8);
        tokio::task::block_in_place(|| kill_after(&storage, lines, &mut done));
        // The locks of the killed worker.
        bench.emulator.advance(MINUTE);
    }
    let rest = Done::default();
    let all = async {
        while bench.count("active") + bench.count("scheduled") > 0 {
            let book = Arc::clone(&rest);
            let tell = move |name: &str| *book.lock().unwrap().entry(name.to_owned()).or_default() += 1;
            let storage = Storage::connect(&storage).await.unwrap();
            worker(storage, tell).build().unwrap().run_until_idle().await.map(drop).unwrap();
            bench.emulator.advance(MINUTE);
        }
    };
    timeout(4 * MINUTE, all).await.expect("jobs are left");
    done.extend(rest.lock().unwrap().keys().cloned());
    audit(&bench, &sent, &done);
}

fn string(bench: &Bench, blobs: &Path) -> String {
    format!("{};Blobs=sqlite:{}", bench.emulator.connection_string(), blobs.display())
}
