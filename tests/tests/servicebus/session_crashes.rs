//! The order of sessions while connections are cut and processes are killed.

use std::collections::BTreeMap;
use std::time::Duration;

use jobqueue::{JobError, JobInfo, SendOptions, Storage, Worker, WorkerBuilder};
use jobqueue_tests::children::{Part, part};
use jobqueue_tests::say;
use serde_json::json;
use tokio::time::timeout;

use super::cuts::{CuttingProxy, cut_until};
use super::jobs::{Work, work};
use super::session_jobs::Seen;
use super::{Bench, MINUTE};

/// Returns a worker that reports its events through `tell`.
fn worker(storage: Storage, tell: impl Fn(&str) + Clone + Send + Sync + 'static) -> WorkerBuilder {
    let handler = move |job: Work, info: JobInfo| {
        let tell = tell.clone();
        async move {
            if job.name.ends_with(" 2") && info.attempt == 1 {
                return Err(JobError::retry("holds up its key"));
            }
            tell(&job.name);
            Ok::<(), JobError>(())
        }
    };
    Worker::builder(storage).concurrency(3).max_idle_delay(Duration::from_millis(200)).handle(handler)
}

const KEYS: [&str; 4] = ["a", "b", "c", "d"];

const EACH: usize = 6;

async fn send_in_order(storage: &Storage) {
    let queue = loop {
        match storage.queue::<Work>().await {
            Ok(queue) => break queue,
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
        }
    };
    for number in 0..EACH {
        for key in KEYS {
            let job = work(&format!("{key} {number}"));
            let options = || SendOptions::new().key(key).in_order().id(job.name.clone());
            while let Err(error) = queue.send(&job).with(options()).await {
                assert!(error.is_retryable(), "{error:?}");
            }
        }
    }
}

/// Audits the runs: those of a key are in order; a job may run again until the next one has begun.
fn audit(runs: &[String]) {
    let mut by_key = BTreeMap::<_, Vec<usize>>::new();
    for run in runs {
        let (key, number) = run.split_once(' ').unwrap();
        by_key.entry(key.to_owned()).or_default().push(number.parse().unwrap());
    }
    for (key, mut numbers) in by_key {
        assert!(numbers.is_sorted(), "{key}: {numbers:?}");
        numbers.dedup();
        assert_eq!(numbers, (0..EACH).collect::<Vec<_>>(), "{key}");
    }
}

// I12
#[tokio::test]
async fn connections_cut_at_any_byte_keep_the_order_of_sessions() {
    let bench = Bench::of_sessions_with(json!({ "RequiresDuplicateDetection": true }));
    let proxy = CuttingProxy::start(bench.emulator.port(), jobqueue_tests::seed()).await;
    let text = proxy.through(&bench);
    let open = || {
        Storage::from(
            jobqueue::servicebus::Options::from_connection_string(&text)
                .unwrap()
                .with_blobs_of(&bench.blobs)
                .unwrap(),
        )
    };
    let seen = Seen::default();
    let book = seen.clone();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running =
        worker(open(), move |name| book.note(name)).build().unwrap().run_until(async { drop(stopped.await) });
    let running = tokio::spawn(running);
    send_in_order(&open()).await;
    let cuts = cut_until(&bench, &proxy, || bench.count("active") == 0, || {}).await;
    assert!(cuts > 1, "only {cuts} cuts");
    stop.send(()).unwrap();
    drop(running.await.unwrap());
    audit(&seen.all());
}

// A part of the next test: works until it is killed, and says what it does.
#[tokio::test(flavor = "multi_thread")]
async fn part_that_is_killed() {
    let Some(storage) = part("session_crashes::part_that_is_killed") else { return };
    let storage = Storage::connect(&storage).await.unwrap();
    let tell = |name: &str| say!("done {name}.");
    worker(storage, tell).build().unwrap().run_until(std::future::pending()).await.map(drop).unwrap();
}

// F52, I1, I12
#[tokio::test(flavor = "multi_thread")]
async fn killed_workers_keep_the_order_of_sessions() {
    let bench = Bench::of_sessions();
    let folder = tempfile::tempdir().unwrap();
    let blobs = folder.path().join("blobs.db");
    let storage = format!("{};Blobs=sqlite:{}", bench.emulator.connection_string(), blobs.display());
    send_in_order(&Storage::connect(&storage).await.unwrap()).await;
    let mut runs = Vec::new();
    for lines in [3, 1, 5] {
        tokio::task::block_in_place(|| {
            let mut process = Part::start("session_crashes::part_that_is_killed", &storage);
            let mut heard = Vec::new();
            for _ in 0..lines {
                heard.extend(process.says());
            }
            heard.extend(process.kill());
            let whole = heard.iter().filter_map(|words| words.strip_suffix('.')?.strip_prefix("done "));
            runs.extend(whole.map(str::to_owned));
        });
        // The locks of the killed worker.
        bench.emulator.advance(2 * MINUTE);
    }
    let seen = Seen::default();
    let rest = async {
        while bench.count("active") > 0 {
            let (book, storage) = (seen.clone(), Storage::connect(&storage).await.unwrap());
            let worker = worker(storage, move |name| book.note(name)).build().unwrap();
            worker.run_until_idle().await.map(drop).unwrap();
        }
    };
    timeout(4 * MINUTE, rest).await.expect("jobs are left");
    runs.extend(seen.all());
    audit(&runs);
}
