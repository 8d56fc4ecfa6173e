//! The crash ledger: processes on one SQLite file, killed at random and at named points, and the books they kept.
//!
//! Every process appends to a ledger of its own and syncs it before it goes on. At the end the storage is drained and the
//! books are balanced: what was acknowledged was done or is there (F52, I1), nothing was done that was not sent (I4),
//! nothing is delivered after its deletion was acknowledged (F45), checkpoints are never older than the newest that was
//! acknowledged (I10, F43), and each duplicate has a cause.
//!
//! Runs for 40 seconds, or for `JOBQUEUE_CRASH_SECONDS`.

#![allow(clippy::unwrap_used)] // A helper that fails fails its test.

mod ledger;
mod process;

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use jobqueue::Storage;
use jobqueue_tests::jobs::Task;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use ledger::{Entry, read_all};

/// What a process is to be, where, and whether it dies at a point: the variables by which it is told.
pub(crate) const ROLE: &str = "JOBQUEUE_CRASH_ROLE";
pub(crate) const FOLDER: &str = "JOBQUEUE_CRASH_FOLDER";
pub(crate) const FAILPOINT: &str = "JOBQUEUE_FAILPOINT";

/// `operation:before|after:nth`. After: done and not answered.
const POINTS: [&str; 8] = [
    "put message:after",
    "put message:before",
    "get messages:after",
    "update message:after",
    "update message:before",
    "delete message:after",
    "delete message:before",
    "write blob:after",
];

fn start(folder: &std::path::Path, role: &str, number: u64, random: &mut StdRng) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["process::part_of_the_crash_ledger", "--exact", "--nocapture"])
        .env(ROLE, format!("{role}:{number}"))
        .env(FOLDER, folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if random.random_bool(0.5) {
        let point = POINTS[random.random_range(0..POINTS.len())];
        command.env(FAILPOINT, format!("{point}:{}", random.random_range(1..60)));
    }
    command.spawn().unwrap()
}

// I1, F41, F42, F43, F44, F45, F52
#[test]
fn kill_at_any_moment_loses_and_invents_nothing() {
    let seconds =
        std::env::var("JOBQUEUE_CRASH_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(40);
    let seed = jobqueue_tests::seed();
    let mut random = StdRng::seed_from_u64(seed);
    let folder = tempfile::tempdir().unwrap();
    let mut processes: Vec<(&str, Child)> = Vec::new();
    let (mut number, mut kills) = (0, 0);
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        processes.retain_mut(|(_, child)| child.try_wait().unwrap().is_none());
        for (role, wanted) in [("producer", 1), ("worker", 3)] {
            while processes.iter().filter(|(present, _)| *present == role).count() < wanted {
                number += 1;
                processes.push((role, start(folder.path(), role, number, &mut random)));
            }
        }
        std::thread::sleep(Duration::from_millis(random.random_range(50..800)));
        let victim = random.random_range(0..processes.len());
        let (_, mut child) = processes.swap_remove(victim);
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
    }
    for (_, mut child) in processes {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    // A last worker, which nobody kills, does what is left.
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["process::part_of_the_crash_ledger", "--exact", "--nocapture"])
        .env(ROLE, format!("drain:{}", number + 1))
        .env(FOLDER, folder.path())
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success(), "the storage cannot be drained");
    balance(&read_all(folder.path()), kills, number);
    check_file(folder.path());
}

fn check_file(folder: &std::path::Path) {
    let connection = rusqlite::Connection::open(folder.join("jobs.db")).unwrap();
    let verdict: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(verdict, "ok");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let storage = Storage::connect(&process::path(folder)).await.unwrap();
        let queue = storage.queue::<Task>().await.unwrap();
        assert_eq!(queue.len().await.unwrap(), 0, "drained");
        let letters = queue.dead_letters().unwrap();
        assert_eq!(
            letters.len().await.unwrap(),
            0,
            "crashes cost deliveries, not attempts: {:?}",
            letters.peek().await
        );
    });
}

fn balance(entries: &[Entry], kills: u32, processes: u64) {
    let mut intended = BTreeSet::new();
    let mut acknowledged = BTreeSet::new();
    let mut ended: BTreeMap<&str, u32> = BTreeMap::new();
    let mut completed = BTreeSet::new();
    let mut newest: BTreeMap<&str, u32> = BTreeMap::new();
    let (mut resumed, mut runs) = (0, 0);
    for entry in entries {
        let job = entry.job.as_str();
        match entry.what.as_str() {
            "intend" => drop(intended.insert(job)),
            "sent" => drop(acknowledged.insert(job)),
            "start" => {
                runs += 1;
                assert!(intended.contains(job), "unexpected: {job}");
                // The ledger of the completing process may be synced after the message is gone, never before.
                assert!(
                    !completed.contains(job),
                    "{job} was delivered after its deletion was acknowledged (F45)"
                );
                let known = newest.get(job).copied().unwrap_or_default();
                assert!(
                    entry.number >= known,
                    "{job} resumed at {} after {known} was acknowledged (I10)",
                    entry.number
                );
                resumed += u32::from(entry.number > 0);
            }
            "saved" => {
                let newest = newest.entry(job).or_default();
                *newest = entry.number.max(*newest);
            }
            "end" => *ended.entry(job).or_default() += 1,
            "completed" => drop(completed.insert(job)),
            "attempt" => assert_eq!(entry.number, 1, "{job}: a crash cost an attempt"),
            other => panic!("what is `{other}`?"),
        }
    }
    let lost: Vec<_> = acknowledged.iter().filter(|job| !ended.contains_key(**job)).collect();
    let again: u32 = ended.values().map(|times| times - 1).sum();
    println!(
        "{} sent, {} acknowledged, {runs} runs, {} done, {again} done again, {resumed} resumed; {kills} kills of {processes} processes",
        intended.len(),
        acknowledged.len(),
        ended.len(),
    );
    assert!(lost.is_empty(), "lost: {lost:?}");
    assert!(acknowledged.len() > 20 && kills > 10, "too little happened to say anything");
    // Every second run of a job that had ended needs a process that died between end and deletion.
    assert!(u64::from(again) <= processes * process::CONCURRENCY as u64, "{again} duplicates have no cause");
}
