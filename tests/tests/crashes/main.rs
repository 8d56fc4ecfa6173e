//! The crash ledger: processes on one SQLite file, killed at random and at named points, and the books they
//! kept.
//!
//! Senders, workers and an operator who redrives dead letters write what they do into books outside of
//! SQLite. At the end the last worker runs the remaining jobs, and the books are audited: every acknowledged
//! job was done or is a dead letter (F52, I1), no refused or unsent job ran (I3, I4), no message is delivered
//! after its deletion was acknowledged (F45), checkpoints are never older than the latest acknowledged one
//! (I10, F43), payloads are complete, keys keep their order, continuations follow all children, what a
//! transaction writes and the end of its job are both there or neither, and each duplicate has a cause.
//!
//! Kills for 10 seconds, or for `JOBQUEUE_CRASH_SECONDS`. `JOBQUEUE_SEED` repeats the plan: which processes
//! start and are killed when, at which points they die, and which answers are lost. How far the processes
//! have come by then depends on the machine.

#![allow(clippy::unwrap_used)] // A helper that fails fails its test.

mod audit;
mod audit_tests;
mod drain;
mod duplicates;
mod effects;
mod faults;
mod handlers;
mod history;
mod jobs;
mod ledger;
mod operator;
mod process;
mod senders;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};

use history::History;

/// The variables that tell a process its role, its folder, and its seed.
pub(crate) const ROLE: &str = "JOBQUEUE_CRASH_ROLE";
pub(crate) const FOLDER: &str = "JOBQUEUE_CRASH_FOLDER";
pub(crate) const SEED: &str = "JOBQUEUE_CRASH_SEED";

/// The roles that run, and the number of processes of each.
const ROLES: [(&str, usize); 4] = [("producer", 1), ("batcher", 1), ("operator", 1), ("worker", 2)];

fn command(folder: &Path, role: &str, number: u64, seed: u64) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["process::part_of_the_crash_ledger", "--exact", "--nocapture"])
        .env(ROLE, format!("{role}:{number}"))
        .env(FOLDER, folder)
        .env(SEED, seed.to_string())
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(folder.join(format!("{role}-{number}.log"))).unwrap());
    command
}

/// The processes of a run.
struct Fleet<'a> {
    folder: &'a Path,
    random: StdRng,
    processes: Vec<(&'static str, Child)>,
    started: u64,
    kills: u32,
}

impl Fleet<'_> {
    /// Starts the missing processes.
    fn fill(&mut self) {
        self.processes.retain_mut(|(_, child)| child.try_wait().unwrap().is_none());
        for (role, wanted) in ROLES {
            while self.processes.iter().filter(|(present, _)| *present == role).count() < wanted {
                if role == "operator" {
                    operator::release_letters(self.folder);
                }
                self.started += 1;
                let child = command(self.folder, role, self.started, self.random.next_u64()).spawn().unwrap();
                self.processes.push((role, child));
            }
        }
    }

    fn kill_one(&mut self) {
        let victim = self.random.random_range(0..self.processes.len());
        let (_, mut child) = self.processes.swap_remove(victim);
        child.kill().unwrap();
        child.wait().unwrap();
        self.kills += 1;
    }
}

// A test that fails leaves nothing running.
impl Drop for Fleet<'_> {
    fn drop(&mut self) {
        for (_, child) in &mut self.processes {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

// I1, F41, F42, F43, F44, F45, F52
#[test]
fn kill_at_any_moment_loses_and_invents_nothing() {
    let seconds =
        std::env::var("JOBQUEUE_CRASH_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(10);
    let seed = jobqueue_tests::seed();
    let folder = tempfile::tempdir().unwrap();
    let random = StdRng::seed_from_u64(seed);
    let mut fleet = Fleet { folder: folder.path(), random, processes: Vec::new(), started: 0, kills: 0 };
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        fleet.fill();
        std::thread::sleep(Duration::from_millis(fleet.random.random_range(50..800)));
        fleet.kill_one();
    }
    let (kills, started) = (fleet.kills, fleet.started);
    drop(fleet);
    operator::release_letters(folder.path());
    let drained = command(folder.path(), "drain", started + 1, seed).status().unwrap();
    println!("{kills} kills of {started} processes");
    let history = History::of(ledger::read_all(folder.path()));
    let mut problems = audit::audit(&history);
    problems.extend(effects::audit(folder.path(), &history));
    if !drained.success() {
        problems.push("the storage cannot be drained".into());
    }
    if !problems.is_empty() {
        let kept = folder.keep();
        panic!("JOBQUEUE_SEED={seed}, books in {}: {problems:#?}", kept.display());
    }
    check_file(folder.path());
    let acknowledged = history.jobs.values().filter(|job| job.sent.is_some()).count();
    assert!(acknowledged > 20 && kills > 10, "too little happened to say anything");
}

fn check_file(folder: &Path) {
    let connection = rusqlite::Connection::open(folder.join("jobs.db")).unwrap();
    let verdict: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(verdict, "ok");
    let left: i64 =
        connection.query_row("SELECT count(*) FROM jobqueue_message", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 0, "messages are left, dead letters included");
}
