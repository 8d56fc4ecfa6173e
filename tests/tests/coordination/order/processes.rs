//! Two processes on SQLite files; one of them is killed.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jobqueue::settings::SettingOverrides;
use jobqueue::sharded::Sharded;
use jobqueue::{JobError, State, Storage, Worker};
use jobqueue_tests::children::{Part, part};
use jobqueue_tests::say;

use crate::order::{Step, send, step};

const PART: &str = "order::processes::part_works_on_steps";

/// Two accounts, each of them a file.
async fn files(folder: &Path) -> Storage {
    let mut builder = Sharded::builder().shards("steps", 4);
    for name in ["a", "b"] {
        let url = format!("sqlite:{}", folder.join(name).with_extension("db").display());
        builder = builder.account(name, Storage::connect(&url).await.unwrap());
    }
    Storage::from(builder.build().unwrap().stores())
}

/// Lines are appended as a whole, so that their order is that of the events.
fn append(folder: &Path, line: &str) {
    let log = std::fs::OpenOptions::new().create(true).append(true).open(folder.join("log")).unwrap();
    (&log).write_all(format!("{line}\n").as_bytes()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn part_works_on_steps() {
    let Some(input) = part(PART) else { return };
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

// I21
#[tokio::test(flavor = "multi_thread")]
async fn killed_process_keeps_the_order_of_a_key() {
    const KEYS: usize = 3;
    const STEPS: u32 = 12;
    let folder = tempfile::tempdir().unwrap();
    let storage = files(folder.path()).await;
    let queue = storage.queue::<Step>().await.unwrap();
    let start = |name: &str| {
        let mut part = Part::start(PART, format!("{name} {}", folder.path().display()));
        assert_eq!(part.says().as_deref(), Some("works"));
        part
    };
    let log = || std::fs::read_to_string(folder.path().join("log")).unwrap_or_default();
    // Alone at first: a worker keeps the groups that it has begun with.
    let doomed = start("doomed");
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
    let (one, two) = (start("one"), start("two"));
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
