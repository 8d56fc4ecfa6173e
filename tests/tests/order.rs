//! Messages that are sent in order: one of a key at a time, in the order of their sends, on every storage.

#![allow(clippy::unwrap_used)] // A helper that fails fails its test.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::storage::sharded::Sharded;
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::testing::faults::{Fault, Faulty};
use jobqueue::{
    ErrorKind, JobError, JobInfo, Queue, QueueMessage, RedriveOptions, SendOptions, SettingOverrides, State,
    Storage, Worker,
};
use jobqueue_tests::azurite::Azurite;
use jobqueue_tests::children::{Part, part};
use jobqueue_tests::jobs::{clock, in_memory, worker};
use jobqueue_tests::say;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// The `number`-th of its key, which fails so often before it succeeds.
#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(
    queue = "steps",
    kind = "step",
    poison_threshold = 3,
    timeout = "30s",
    backoff(base = "1s", max = "5s")
)]
struct Step {
    #[message(key)]
    of: String,
    number: u32,
    fails: u32,
    millis: u64,
}

fn step(of: impl Into<String>, number: u32) -> Step {
    Step { of: of.into(), number, fails: 0, millis: 10 }
}

async fn send(queue: &Queue<Step>, step: &Step) {
    queue.send_with(step, SendOptions::new().in_order(true)).await.unwrap();
}

/// What handlers saw of each key.
#[derive(Debug, Default)]
struct Seen {
    running: BTreeSet<String>,
    /// Numbers of steps in the order in which their handlers began.
    begun: BTreeMap<String, Vec<u32>>,
    /// Keys and numbers whose last attempt has ended.
    ended: BTreeSet<(String, u32)>,
    overlaps: Vec<String>,
}

#[derive(Debug, Clone, Default)]
struct Watch {
    seen: Arc<Mutex<Seen>>,
    /// An end that nothing follows: done, or the last attempt.
    end: Arc<Notify>,
}

/// Ends with the handler, however it ends.
struct Running(Watch, String);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.seen.lock().unwrap().running.remove(&self.1);
    }
}

impl Watch {
    fn begin(&self, step: &Step) -> Running {
        let mut seen = self.seen.lock().unwrap();
        if !seen.running.insert(step.of.clone()) {
            seen.overlaps.push(format!("{} {}", step.of, step.number));
        }
        seen.begun.entry(step.of.clone()).or_default().push(step.number);
        Running(self.clone(), step.of.clone())
    }

    async fn ends(&self, count: usize) {
        while self.seen.lock().unwrap().ended.len() < count {
            self.end.notified().await;
        }
    }

    fn begun(&self, key: &str) -> Vec<u32> {
        self.seen.lock().unwrap().begun.get(key).cloned().unwrap_or_default()
    }

    /// Runs of one step stand side by side, and steps in the order of their sends.
    fn assert_in_order(&self, keys: u32, steps: u32) {
        let seen = self.seen.lock().unwrap();
        assert!(seen.overlaps.is_empty(), "two of a key at once: {:?}", seen.overlaps);
        for key in 0..keys {
            let mut begun = seen.begun[&key.to_string()].clone();
            assert!(begun.is_sorted(), "key {key}: {begun:?}");
            begun.dedup();
            assert_eq!(begun, (0..steps).collect::<Vec<_>>(), "key {key}");
        }
    }
}

async fn handle(step: Step, info: JobInfo, State(watch): State<Watch>) -> Result<(), JobError> {
    let _running = watch.begin(&step);
    tokio::time::sleep(Duration::from_millis(step.millis)).await;
    let last = info.attempt > step.fails || info.attempt == 3;
    if last {
        watch.seen.lock().unwrap().ended.insert((step.of.clone(), step.number));
        watch.end.notify_one();
    }
    if info.attempt <= step.fails { Err(JobError::retry("not yet")) } else { Ok(()) }
}

fn sharded(accounts: &[Storage]) -> Storage {
    let mut builder = Sharded::builder().shards("steps", 4).clock(clock());
    for (number, account) in accounts.iter().enumerate() {
        builder = builder.account(format!("a{number}"), account.clone());
    }
    builder.build().unwrap().storage()
}

/// Loses answers and refuses, now and then.
fn faults(storage: &Storage, seed: u64) -> Storage {
    let faulty = Faulty::new(storage);
    let random = Arc::new(Mutex::new(StdRng::seed_from_u64(seed)));
    for operation in
        [Operation::Delete, Operation::Put, Operation::PutBlob, Operation::Update, Operation::Get]
    {
        let random = Arc::clone(&random);
        faulty.on(operation, move |_| match random.lock().unwrap().random_range(0..40) {
            0 => Some(Fault::DropAnswer(StoreErrorKind::Timeout)),
            1 => Some(Fault::LoseRequest(StoreErrorKind::Timeout)),
            2 => Some(Fault::Refuse(StoreErrorKind::Throttled)),
            _ => None,
        });
    }
    faulty.storage()
}

const KEYS: u32 = 5;
const STEPS: u32 = 12;

async fn keeps_order(seed: u64, faulty: bool) {
    println!("seed {seed}, faults {faulty}");
    let accounts = [in_memory(), in_memory()];
    let open = |number: u64| {
        let storage = sharded(&accounts);
        if faulty { faults(&storage, seed * 10 + number) } else { storage }
    };
    let watch = Watch::default();
    let workers = (0..3).map(|number| worker(&open(number)).concurrency(8).state(watch.clone()));
    let workers: Vec<_> = workers.map(|w| w.handle(handle).build().unwrap()).collect();
    let (stop, _) = tokio::sync::watch::channel(());
    let workers: Vec<_> = workers
        .into_iter()
        .map(|worker| {
            let mut stopped = stop.subscribe();
            tokio::spawn(worker.run_until(async move { drop(stopped.changed().await) }))
        })
        .collect();

    let storage = open(9);
    let queue = storage.queue::<Step>().await.unwrap();
    let mut random = StdRng::seed_from_u64(seed);
    for number in 0..STEPS {
        for key in 0..KEYS {
            // A dead letter that cannot be stored at once is tried again, behind the others.
            let fails = [0, 0, 0, 1, 2, if faulty { 0 } else { 3 }][random.random_range(0..6)];
            let step = Step { of: key.to_string(), number, fails, millis: random.random_range(1..3000) };
            let id = format!("{key}-{number}");
            let options = || SendOptions::new().in_order(true).id(id.clone());
            // As the documentation says: again, under the same id.
            while let Err(error) = queue.send_with(&step, options()).await {
                assert!(faulty && error.kind() != ErrorKind::Invalid, "{error:?}");
            }
        }
    }
    watch.ends((KEYS * STEPS) as usize).await;
    // What comes back because its deletion was lost runs no second time.
    tokio::time::sleep(Duration::from_secs(120)).await;
    stop.send(()).unwrap();
    for worker in workers {
        let _ = worker.await.unwrap().unwrap();
    }
    watch.assert_in_order(KEYS, STEPS);
    let first = &accounts[0];
    assert!(first.queue::<Step>().await.unwrap().is_empty().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn messages_of_a_key_run_one_by_one_in_the_order_of_their_sends_through_failures_and_dead_letters() {
    for seed in 0..4 {
        keeps_order(seed, false).await;
    }
}

#[tokio::test(start_paused = true)]
async fn order_survives_lost_answers_lost_requests_and_throttling() {
    for seed in 0..6 {
        keeps_order(seed, true).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_failing_job_holds_back_its_key_and_no_other() {
    let storage = sharded(&[in_memory()]);
    let queue = storage.queue::<Step>().await.unwrap();
    send(&queue, &Step { fails: 3, ..step("a", 0) }).await;
    for number in 1..4 {
        send(&queue, &step("a", number)).await;
        send(&queue, &step("b", number)).await;
    }
    let watch = Watch::default();
    let (seen, order) = (watch.clone(), Arc::new(Mutex::new(Vec::new())));
    let log = Arc::clone(&order);
    let worker = worker(&storage).concurrency(2).state(watch.clone()).handle(handle);
    let worker = worker.on_event(move |event| {
        if let jobqueue::Event::Finished { job: Some(job), outcome, .. } = event {
            log.lock().unwrap().push(format!("{} {}", job.key.as_deref().unwrap(), outcome.name()));
        }
    });
    let _ = worker.build().unwrap().run_until(async move { seen.ends(7).await }).await.unwrap();
    assert_eq!(watch.begun("a"), [0, 0, 0, 1, 2, 3]);
    assert_eq!(watch.begun("b"), [1, 2, 3]);
    let order = order.lock().unwrap().clone();
    let place = |what: &str| order.iter().position(|line| line == what).unwrap();
    assert!(place("b completed") < place("a dead_lettered"), "{order:?}");
    assert!(place("a dead_lettered") < place("a completed"), "{order:?}");

    // Put back, it is the last of its key, whatever it was before.
    send(&queue, &step("a", 4)).await;
    let _ = queue.dead_letters().unwrap().redrive(RedriveOptions::new()).await.unwrap();
    let watch = Watch::default();
    let seen = watch.clone();
    let worker = jobqueue_tests::jobs::worker(&storage).state(watch.clone()).handle(handle);
    let _ = worker.build().unwrap().run_until(async move { seen.ends(2).await }).await.unwrap();
    assert_eq!(watch.begun("a"), [4, 0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_delayed_or_taken_back_or_cleared_away_is_waited_for_or_not() {
    let storage = in_memory();
    let queue = storage.queue::<Step>().await.unwrap();
    let watch = Watch::default();
    let run = |ends: usize| {
        let seen = watch.clone();
        let worker = worker(&storage).state(watch.clone()).handle(handle).build().unwrap();
        worker.run_until(async move { seen.ends(ends).await })
    };
    let later = SendOptions::new().in_order(true).delay(Duration::from_secs(3600));
    queue.send_with(&step("a", 0), later.clone()).await.unwrap();
    send(&queue, &step("a", 1)).await;
    let _ = run(2).await.unwrap();
    assert_eq!(watch.begun("a"), [0, 1], "a delay holds back its key");

    let sent = queue.send_with(&step("a", 2), later.clone()).await.unwrap();
    send(&queue, &step("a", 3)).await;
    assert!(queue.cancel(&sent).await.unwrap());
    let _ = run(3).await.unwrap();
    assert_eq!(watch.begun("a"), [0, 1, 3], "what was taken back is not waited for");

    queue.send_with(&step("a", 4), later).await.unwrap();
    queue.clear().await.unwrap();
    send(&queue, &step("a", 5)).await;
    let _ = run(4).await.unwrap();
    assert_eq!(watch.begun("a"), [0, 1, 3, 5], "what was cleared away is not waited for");
}

#[tokio::test(start_paused = true)]
async fn unique_work_that_is_taken_back_by_its_key_gives_up_its_place() {
    let storage = in_memory();
    let queue = storage.queue::<Step>().await.unwrap();
    let watch = Watch::default();
    let later = SendOptions::new().in_order(true).delay(Duration::from_secs(3600));
    assert!(
        queue.send_unique_with(&step("a", 0), Duration::from_secs(86_400), later).await.unwrap().is_sent()
    );
    send(&queue, &step("a", 1)).await;
    assert!(queue.cancel_unique("a").await.unwrap());
    let seen = watch.clone();
    let worker = worker(&storage).state(watch.clone()).handle(handle).build().unwrap();
    let ended = worker.run_until(async move { seen.ends(1).await });
    let _ = tokio::time::timeout(Duration::from_secs(86_400), ended)
        .await
        .expect("nothing is waited for")
        .unwrap();
    assert_eq!(watch.begun("a"), [1]);
}

#[tokio::test(start_paused = true)]
async fn an_order_needs_a_key_and_excludes_a_time_to_live() {
    let storage = in_memory();
    let queue = storage.queue::<Step>().await.unwrap();
    let no_key = queue.send_with(&step("", 0), SendOptions::new().in_order(true)).await.unwrap_err();
    assert!(no_key.kind() == ErrorKind::Invalid && no_key.to_string().contains("key"), "{no_key}");
    let short = SendOptions::new().in_order(true).ttl(Duration::from_secs(60));
    let expires = queue.send_with(&step("a", 0), short).await.unwrap_err();
    assert!(expires.kind() == ErrorKind::Invalid && expires.to_string().contains("expire"), "{expires}");
    assert!(queue.is_empty().await.unwrap());
}

/// Two accounts, each a file.
async fn files(folder: &Path) -> Storage {
    let mut builder = Sharded::builder().shards("steps", 4);
    for name in ["a", "b"] {
        let url = format!("sqlite:{}", folder.join(name).with_extension("db").display());
        builder = builder.account(name, Storage::connect(&url).await.unwrap());
    }
    builder.build().unwrap().storage()
}

/// Lines are appended whole, so that their order is that of what happened.
fn append(folder: &Path, line: &str) {
    let log = std::fs::OpenOptions::new().create(true).append(true).open(folder.join("log")).unwrap();
    (&log).write_all(format!("{line}\n").as_bytes()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn part_works_on_steps() {
    let Some(input) = part("part_works_on_steps") else { return };
    let (name, folder) = input.split_once(' ').unwrap();
    let place = (name.to_owned(), PathBuf::from(folder));
    async fn work(step: Step, State((name, folder)): State<(String, PathBuf)>) -> Result<(), JobError> {
        append(&folder, &format!("begin {} {} {name}", step.of, step.number));
        tokio::time::sleep(Duration::from_millis(step.millis)).await;
        append(&folder, &format!("end {} {} {name}", step.of, step.number));
        Ok(())
    }
    let mut short = SettingOverrides::default();
    short.timeout = Some(Duration::from_secs(2));
    let worker = Worker::builder(files(&place.1).await).overrides(short).state(place).handle(work);
    let closed = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
    say!("works");
    let _ = worker.build().unwrap().run_until(async { drop(closed.await) }).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_on_sqlite_files_keep_the_order_of_a_key_although_one_is_killed() {
    const KEYS: usize = 3;
    const STEPS: u32 = 12;
    let folder = tempfile::tempdir().unwrap();
    let storage = files(folder.path()).await;
    let queue = storage.queue::<Step>().await.unwrap();
    let start = |name: &str| {
        let mut part = Part::start("part_works_on_steps", format!("{name} {}", folder.path().display()));
        assert_eq!(part.says().as_deref(), Some("works"));
        part
    };
    let log = || std::fs::read_to_string(folder.path().join("log")).unwrap_or_default();
    let (one, doomed) = (start("one"), start("doomed"));
    for number in 0..STEPS {
        for key in 0..KEYS {
            send(&queue, &Step { millis: 40, ..step(key.to_string(), number) }).await;
        }
    }
    // In the middle of a handler: its last line is a beginning.
    let in_the_middle =
        || log().lines().rfind(|line| line.ends_with("doomed")).is_some_and(|l| l.starts_with("begin"));
    while !in_the_middle() {
        assert!(!queue.is_empty().await.unwrap(), "all done before a handler could be interrupted");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    doomed.kill();
    append(folder.path(), "killed");
    let two = start("two");
    while !queue.is_empty().await.unwrap() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    drop((one.finish(), two.finish()));

    let log = log();
    let (mut next, mut running) = ([0; KEYS], [None::<&str>; KEYS]);
    for line in log.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [what, key, number, who] = words[..] else {
            running.iter_mut().for_each(|who| *who = who.filter(|who| *who != "doomed"));
            continue;
        };
        let (key, number): (usize, u32) = (key.parse().unwrap(), number.parse().unwrap());
        if what == "begin" {
            assert!(running[key].is_none(), "two of key {key} at once:\n{log}");
            // Once more, if its first run was cut off.
            assert!(number == next[key] || number + 1 == next[key], "out of order at `{line}`:\n{log}");
            running[key] = Some(who);
            next[key] = number + 1;
        } else {
            running[key] = None;
        }
    }
    assert_eq!(next, [STEPS; KEYS], "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn order_over_azurite() {
    let azurite = Azurite::shared();
    let storage = Storage::connect(&azurite.connection_string()).await.unwrap();
    let queue = storage.queue::<Step>().await.unwrap();
    for number in 0..4 {
        for key in 0..2 {
            let fails = u32::from(number == 1);
            send(&queue, &Step { fails, ..step(key.to_string(), number) }).await;
        }
    }
    let watch = Watch::default();
    let workers = (0..2).map(|_| {
        let seen = watch.clone();
        let worker = Worker::builder(storage.clone()).state(watch.clone()).handle(handle).build().unwrap();
        worker.run_until(async move {
            seen.ends(8).await;
            seen.end.notify_one();
        })
    });
    for report in futures_util::future::join_all(workers).await {
        let _ = report.unwrap();
    }
    watch.assert_in_order(2, 4);
}
