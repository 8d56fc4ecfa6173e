//! SIGKILL at random moments: every acknowledged message exists, and the file is sound.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use jobqueue::storage::{ExpiredReceipt, GetMessages, PutMessage};
use jobqueue_tests::children::{Part, part};
use jobqueue_tests::say;
use jobqueue_tests::sqlite_file::{open, queue};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rusqlite::Connection;

// A part of the next test: puts and deletes until killed, and says what was acknowledged.
#[tokio::test(flavor = "multi_thread")]
async fn part_work() {
    let Some(input) = part("crashes::part_work") else { return };
    let (round, path) = input.split_once(':').unwrap();
    let storage = open(Path::new(path)).await;
    let mut running = tokio::task::JoinSet::new();
    for task in 0..8 {
        let (queues, round) = (storage.queues().clone(), round.to_owned());
        running.spawn(async move {
            for n in 0.. {
                let text = format!("{round}-{task}-{n}-{}", "x".repeat(n % 3000));
                let put = queues.put(&queue(), PutMessage::new(&text)).await.unwrap();
                say!("put {text}.");
                if n % 3 == 0 {
                    say!("deleting {text}.");
                    queues.delete(&queue(), &put.message, ExpiredReceipt::Refuse).await.unwrap();
                    say!("deleted {text}.");
                }
            }
        });
    }
    while running.join_next().await.is_some() {}
}

// F53, F54, F41, F45
#[tokio::test]
async fn a_kill_loses_nothing_that_was_acknowledged() {
    const ROUNDS: usize = 12;
    let seed = jobqueue_tests::seed();
    let mut random = StdRng::seed_from_u64(seed);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let (mut put, mut doomed, mut deleted) = (HashSet::new(), HashSet::new(), HashSet::new());
    for round in 0..ROUNDS {
        let mut part = Part::start("crashes::part_work", format!("{round}:{}", path.display()));
        let mut heard = Vec::new();
        for _ in 0..random.random_range(1..1500) {
            heard.extend(part.says());
        }
        heard.extend(part.kill());
        // The last line may be cut off, and then has no full stop.
        for (what, text) in heard.iter().filter_map(|words| words.strip_suffix('.')?.split_once(' ')) {
            match what {
                "put" => drop(put.insert(text.to_owned())),
                "deleting" => drop(doomed.insert(text.to_owned())),
                _ => drop(deleted.insert(text.to_owned())),
            }
        }
        let checked = Connection::open(&path).unwrap();
        let check: String = checked.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
        assert_eq!(check, "ok");
    }

    let storage = open(&path).await;
    let mut found = HashSet::new();
    loop {
        let options = GetMessages::new(32, Duration::from_secs(3600));
        let got = storage.queues().get(&queue(), options).await.unwrap().messages;
        if got.is_empty() {
            break;
        }
        found.extend(got.into_iter().map(|message| message.text.unwrap()));
    }
    assert!(put.len() > 100, "too little was done to tell: {}", put.len());
    let lost: Vec<_> = put.iter().filter(|text| !doomed.contains(*text) && !found.contains(*text)).collect();
    assert!(lost.is_empty(), "lost: {lost:?}");
    let back: Vec<_> = deleted.intersection(&found).collect();
    assert!(back.is_empty(), "came back: {back:?}");
    // Of each round and task at most one message may be there whose put was not yet heard of.
    let unheard = found.difference(&put).count();
    assert!(unheard <= ROUNDS * 8, "{unheard} messages from nowhere");
    let properties = storage.queues().queue_properties(&queue()).await.unwrap();
    assert_eq!(properties.approximate_count, found.len() as u64);
}
