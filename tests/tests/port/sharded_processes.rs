//! Sharded storage among processes, on SQLite files: the number of shards changes under load.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jobqueue::clock::Clock;
use jobqueue::sharded::Sharded;
use jobqueue::{JobError, QueueMessage, QueueName, Runtime, State, Storage, Worker};
use jobqueue_tests::children::{Part, part};
use jobqueue_tests::say;
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "work", kind = "work", lease = "10s")]
struct Work {
    name: String,
}

/// Two accounts, each of them a file. The maps are read again twice a second.
async fn open(folder: &Path) -> (Sharded, Vec<Storage>) {
    let mut accounts = Vec::new();
    for name in ["a", "b"] {
        let url = format!("sqlite:{}", folder.join(name).with_extension("db").display());
        accounts.push(Storage::connect(&url).await.unwrap());
    }
    (spread(&accounts), accounts)
}

fn spread(accounts: &[Storage]) -> Sharded {
    let builder = Sharded::builder().shards("work", 4).refresh(Duration::from_millis(500));
    let named = ["a", "b"].into_iter().zip(accounts);
    named.fold(builder, |builder, (name, account)| builder.account(name, account.clone())).build().unwrap()
}

/// A clock that is ahead by the minute that `retire` leaves to puts under way. On a file none takes so long.
#[derive(Debug)]
struct Ahead;

impl Clock for Ahead {
    fn now(&self) -> SystemTime {
        SystemTime::now() + Duration::from_secs(60)
    }
}

fn ahead(account: &Storage) -> Storage {
    account.clone().with_runtime(Runtime::new().with_clock(Arc::new(Ahead)))
}

/// Resolves when the process that started this part closes its end.
async fn closed() {
    let read = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
    drop(read.await);
}

/// Sends until the stop signal, then prints the number of acknowledged sends.
#[tokio::test(flavor = "multi_thread")]
async fn part_produces() {
    let Some(input) = part("sharded_processes::part_produces") else { return };
    let (name, folder) = input.split_once(' ').unwrap();
    let queue = Storage::from(open(Path::new(folder)).await.0.stores()).queue::<Work>().await.unwrap();
    say!("sends");
    let (mut sent, mut stop) = (0, std::pin::pin!(closed()));
    loop {
        queue.send(&Work { name: format!("{name}-{sent}") }).await.unwrap();
        sent += 1;
        if tokio::time::timeout(Duration::from_millis(2), stop.as_mut()).await.is_ok() {
            break say!("{sent}");
        }
    }
}

/// Records the jobs that it handles until the stop signal.
#[tokio::test(flavor = "multi_thread")]
async fn part_works() {
    let Some(folder) = part("sharded_processes::part_works").map(PathBuf::from) else { return };
    async fn work(work: Work, State(folder): State<PathBuf>) -> Result<(), JobError> {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(folder.join("log"))?;
        // One write is not torn by others.
        (&log).write_all(format!("{}\n", work.name).as_bytes())?;
        Ok(())
    }
    let (sharded, _accounts) = open(&folder).await;
    let worker = Worker::builder(Storage::from(sharded.stores())).state(folder).handle(work).build().unwrap();
    say!("works");
    let _ = worker.run_until(closed()).await.unwrap();
}

// I17, F85
#[tokio::test(flavor = "multi_thread")]
async fn resharding_under_load_strands_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (sharded, accounts) = open(folder.path()).await;
    let (storage, name) = (Storage::from(sharded.stores()), QueueName::new("work").unwrap());
    let operator = spread(&accounts.iter().map(ahead).collect::<Vec<_>>());
    let queue = storage.queue::<Work>().await.unwrap();
    // A backlog in all four shards before anybody works.
    for number in 0..200 {
        queue.send(&Work { name: format!("backlog-{number}") }).await.unwrap();
    }
    let start = |what: &str, input: String| {
        let mut part = Part::start(what, input);
        part.says().unwrap();
        part
    };
    let producers = ["x", "y"]
        .map(|who| start("sharded_processes::part_produces", format!("{who} {}", folder.path().display())));
    sharded.reshard(&name, 8).await.unwrap();
    let works = || start("sharded_processes::part_works", folder.path().display().to_string());
    let mut workers = vec![works(), works()];
    retired(&operator, &name).await;
    assert_eq!(generations(&accounts).await, BTreeSet::from([2]), "the first four are drained and gone");

    sharded.reshard(&name, 4).await.unwrap();
    workers.push(works());
    retired(&operator, &name).await;
    assert_eq!(generations(&accounts).await, BTreeSet::from([3]), "the eight are drained and gone");

    let mut sent: BTreeSet<String> = (0..200).map(|number| format!("backlog-{number}")).collect();
    for (who, producer) in ["x", "y"].into_iter().zip(producers) {
        let count: u32 = producer.finish().last().unwrap().parse().unwrap();
        assert!(count > 0);
        sent.extend((0..count).map(|number| format!("{who}-{number}")));
    }
    while !queue.is_empty().await.unwrap() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for worker in workers {
        worker.finish();
    }
    let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
    let handled: BTreeSet<String> = log.lines().map(str::to_owned).collect();
    assert_eq!(sent.difference(&handled).collect::<Vec<_>>(), Vec::<&String>::new(), "stranded");
    assert_eq!(handled, sent);
}

/// Waits until all former shards are deleted.
async fn retired(sharded: &Sharded, queue: &QueueName) {
    while sharded.retire(queue).await.unwrap() > 0 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Returns the generations of the shards that exist in the accounts.
async fn generations(accounts: &[Storage]) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    for account in accounts {
        for shard in account.queues().list_queues("work-s").await.unwrap() {
            found.insert(shard.as_str().rsplit_once('v').unwrap().1.parse().unwrap());
        }
    }
    found
}
