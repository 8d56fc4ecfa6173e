//! Incidents that an operator finds and puts right in a real browser, within four clicks each.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use jobqueue::clock::ManualClock;
use jobqueue::{Context, JobError, QueueMessage, Runtime, Storage, Worker};
use jobqueue_admin::{AccessLevel, Admin, PauseOptions, RawSend, WorkerOverview};
use jobqueue_dashboard::Dashboard;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::dashboard::in_the_browser;

const HOUR: Duration = Duration::from_secs(3_600);
const PRESENCE: Duration = Duration::from_millis(500);

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "mails", kind = "mail")]
struct Mail {
    text: String,
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "films", kind = "film")]
struct Film {}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "letters", kind = "letter")]
struct Letter {}

async fn mail(mail: Mail) -> Result<(), JobError> {
    Err(JobError::dead_letter(match mail.text.as_str() {
        "" => "the file is empty".to_owned(),
        text => format!("invalid symbol in {text}"),
    }))
}

async fn film(_: Film, ctx: Context) -> Result<(), JobError> {
    ctx.token().cancelled().await;
    Err(JobError::retry("stopped"))
}

async fn letter(_: Letter) -> Result<(), JobError> {
    Ok(())
}

/// Has 5,000 jobs rejected with two errors.
async fn reject(storage: &Storage) {
    let text = |number: u32| if number % 5 < 3 { String::new() } else { format!("line {}", 1_000 + number) };
    let mails = (0..5_000).map(|number| Mail { text: text(number) });
    for sent in storage.queue::<Mail>().await.unwrap().send_all(mails).await.unwrap() {
        let _ = sent.unwrap();
    }
    let worker = Worker::builder(storage.clone()).circuit_breaker(None).concurrency(64).handle(mail);
    assert_eq!(worker.build().unwrap().run_until_idle().await.unwrap().dead_lettered, 5_000);
}

/// Has a job done, now or on an earlier day.
async fn end(storage: &Storage, id: &str, age: Duration) {
    let clock = Arc::new(ManualClock::at(SystemTime::now() - age));
    let storage = storage.clone().with_runtime(Runtime::new().with_clock(clock));
    storage.queue::<Letter>().await.unwrap().send(&Letter {}).id(id).await.unwrap();
    let worker = Worker::builder(storage).history(100 * HOUR).handle(letter).build().unwrap();
    assert_eq!(worker.run_until_idle().await.unwrap().completed, 1);
}

/// Leaves the record of a worker that has ended without a shutdown.
async fn lose_a_worker(storage: &Storage, admin: &Admin) {
    let worker = Worker::builder(storage.clone()).name("the doomed").presence(PRESENCE).handle(letter);
    let running = tokio::spawn(worker.build().unwrap().run_until(std::future::pending()));
    let is_recorded =
        |workers: Vec<WorkerOverview>| workers.iter().any(|worker| worker.record.name == "the doomed");
    while !is_recorded(admin.all_workers().await.unwrap()) {
        tokio::time::sleep(PRESENCE / 10).await;
    }
    running.abort();
}

async fn incidents(width: &str, scripts: &str) {
    let storage = Storage::memory();
    let admin = Admin::builder(storage.clone()).access(AccessLevel::Operate).operator("ada").build();
    reject(&storage).await;
    end(&storage, "of-yesterday", 24 * HOUR).await;
    end(&storage, "of-today", Duration::ZERO).await;
    lose_a_worker(&storage, &admin).await;
    storage.queue::<Letter>().await.unwrap().send(&Letter {}).id("held").await.unwrap();
    admin.pause_with("letters", PauseOptions::new().note("the bank is down")).await.unwrap();
    let films = storage.queue::<Film>().await.unwrap();
    films.send(&Film {}).id("film").await.unwrap();
    films.send(&Film {}).id("delayed").delay(HOUR).await.unwrap();
    admin.send("films", RawSend::json("flim", "{}").unwrap().id("typo")).await.unwrap();
    let stop = CancellationToken::new();
    let worker = Worker::builder(storage).presence(PRESENCE).history(100 * HOUR).handle(film);
    let worker = tokio::spawn(worker.build().unwrap().run_until(stop.clone().cancelled_owned()));
    let before = |hours: u32| Timestamp::try_from(SystemTime::now() - hours * HOUR).unwrap().to_string();
    let (since, until) = (before(36), before(12));
    let variables =
        [("WIDTH", width), ("SCRIPTS", scripts), ("SINCE", since.as_str()), ("UNTIL", until.as_str())];
    in_the_browser(Dashboard::new(admin), "incidents.cjs", &variables).await;
    stop.cancel();
    let _ = worker.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn incidents_are_put_right_on_a_wide_screen() {
    incidents("1280", "true").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn incidents_are_put_right_on_a_wide_screen_without_scripts() {
    incidents("1280", "false").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn incidents_are_put_right_on_a_phone() {
    incidents("390", "true").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn incidents_are_put_right_on_a_phone_without_scripts() {
    incidents("390", "false").await;
}
