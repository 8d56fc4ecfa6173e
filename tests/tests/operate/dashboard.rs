//! The dashboard in a real browser: an operator's journeys, and what holds on every page.

use std::collections::HashSet;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use jobqueue::settings::SettingOverrides;
use jobqueue::{Context, JobError, QueueMessage, State, Storage, Worker};
use jobqueue_admin::{AccessLevel, Admin, DeadLetterFilter, RawSend};
use jobqueue_dashboard::Dashboard;
use jobqueue_test_support::azurite::Azurite;
use jobqueue_test_support::{browser, target_folder};
use jobqueue_tests::children::{Part, part};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// The time after which a script that hangs is ended.
const LIMIT: Duration = Duration::from_secs(300);

/// The id of a job whose texts would like to do harm.
const HARMFUL: &str = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)> \u{202e}txt.exe {{7*7}}";

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "mails", kind = "mail")]
struct Mail {
    to: String,
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "films", kind = "film")]
struct Film {
    title: String,
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "albums", kind = "album")]
struct Album {}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "photos", kind = "photo")]
struct Photo {
    number: u32,
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "reports", kind = "report")]
struct Report {}

/// The jobs that have been rejected once.
#[derive(Clone, Default)]
struct Rejected(Arc<Mutex<HashSet<String>>>);

async fn mail(mail: Mail, ctx: Context, State(rejected): State<Rejected>) -> Result<(), JobError> {
    let is_first = rejected.0.lock().unwrap().insert(ctx.info().id.to_string());
    match mail.to.as_str() {
        "broken" => Err(JobError::dead_letter("this address is broken")),
        to if to.ends_with("@nowhere") && is_first => {
            Err(JobError::dead_letter(format!("no such address: {to}")))
        }
        to if to.contains("script") => Err(JobError::dead_letter(format!("harmful: {to}"))),
        _ => Ok(()),
    }
}

async fn film(film: Film, ctx: Context) -> Result<(), JobError> {
    for part in 0..100_000 {
        ctx.progress(part, 100_000, format!("encoding {}", film.title));
        tokio::select! {
            () = ctx.token().cancelled() => return Err(JobError::retry("stopped")),
            () = tokio::time::sleep(Duration::from_millis(100)) => {}
        }
    }
    Ok(())
}

async fn album(_: Album, ctx: Context) -> Result<(), JobError> {
    let mut batch = ctx.batch("photos").await?;
    batch.send_all((0..3).map(|number| Photo { number })).await?;
    Ok(batch.then(&Report {}).await?)
}

async fn photo(photo: Photo) -> Result<(), JobError> {
    match photo.number {
        1 => Err(JobError::dead_letter("this part is broken")),
        _ => Ok(()),
    }
}

async fn report(_: Report) -> Result<(), JobError> {
    Ok(())
}

fn worker(storage: &Storage) -> Worker {
    let builder = Worker::builder(storage.clone())
        .name("the worker")
        .state(Rejected::default())
        .presence(Duration::from_millis(500))
        .history(Duration::from_secs(86_400))
        .settings_refresh(Duration::from_millis(200))
        .handle(mail)
        .handle(film)
        .handle(album)
        .handle(photo)
        .handle(report)
        .schedule("30 2 * * *", "Europe/Berlin", || Report {});
    builder.build().unwrap()
}

/// Fills a storage, and waits until the worker has done what it can.
async fn fill(storage: &Storage, admin: &Admin) {
    let mails = storage.queue::<Mail>().await.unwrap();
    mails.send(&Mail { to: "bob@nowhere".to_owned() }).id("mail-1").await.unwrap();
    for number in 0..3 {
        mails.send(&Mail { to: "broken".to_owned() }).id(format!("broken-{number}")).await.unwrap();
    }
    let payload = serde_json::json!({ "to": format!("{HARMFUL}{}", "<b>x</b>".repeat(6_000)) });
    admin.send("mails", RawSend::json("mail", &payload.to_string()).unwrap().id(HARMFUL)).await.unwrap();
    storage
        .queue::<Film>()
        .await
        .unwrap()
        .send(&Film { title: "Metropolis".to_owned() })
        .id("film-1")
        .await
        .unwrap();
    storage.queue::<Album>().await.unwrap().send(&Album {}).await.unwrap();
    loop {
        let is_scheduled = admin.schedules().await.unwrap().iter().any(|schedule| schedule.cron.is_some());
        let is_running = admin.workers().await.unwrap().iter().any(|worker| worker.record.running_total > 0);
        let is_dead = dead(admin, "mails").await == 5 && dead(admin, "photos").await == 1;
        if is_dead && is_scheduled && is_running {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn dead(admin: &Admin, queue: &str) -> u64 {
    admin.dead_letters(queue, &DeadLetterFilter::new()).await.unwrap().matching
}

/// Runs a script in the browser on a storage with a worker.
async fn journey(storage: Storage, script: &str) {
    let stop = CancellationToken::new();
    let admin = Admin::builder(storage.clone()).access(AccessLevel::Operate).operator("ada").build();
    for queue in ["mails", "films", "albums", "photos", "reports"] {
        admin.create_queue(queue).await.unwrap();
    }
    let (worker, stopped) = (worker(&storage), stop.clone());
    let worker = tokio::spawn(worker.run_until(async move { stopped.cancelled().await }));
    tokio::time::timeout(LIMIT, fill(&storage, &admin)).await.expect("the worker does its jobs");
    in_the_browser(Dashboard::new(admin), script, &[("HARMFUL_ID", HARMFUL)]).await;
    stop.cancel();
    let _ = worker.await.unwrap().unwrap();
}

/// Runs a script in the browser, with the dashboard nested under another path, and one of two empty storages
/// beside it.
pub(crate) async fn in_the_browser(dashboard: Dashboard, script: &str, variables: &[(&str, &str)]) {
    let stop = CancellationToken::new();
    let dashboard = dashboard.refresh(Duration::from_millis(500)).stop_when(stop.clone());
    let empty = ["prod", "staging"]
        .map(|name| (name, Dashboard::new(Admin::new(Storage::memory())).stop_when(stop.clone())));
    let router = Router::new()
        .nest_service("/ops/jobs", dashboard.router())
        .nest_service("/ops/all", Dashboard::join(empty).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}/ops/jobs/", listener.local_addr().unwrap());
    let stopped = stop.clone();
    let server =
        axum::serve(listener, router).with_graceful_shutdown(async move { stopped.cancelled().await });
    let server = tokio::spawn(server.into_future());
    let pictures = pictures();
    let node = tokio::process::Command::new("node")
        .arg(browser::script(script))
        .env("NODE_PATH", browser::packages())
        .env("BASE", base)
        .envs(variables.iter().copied())
        .env("PICTURES", &pictures)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(LIMIT, node).await.expect("the script ends").expect("Node starts");
    stop.cancel();
    server.await.unwrap().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}; pictures are in {}:\n{errors}", pictures.display());
}

/// The record's interval of the worker that is killed. Three of them are shorter than the lease of its job.
const INTERVAL: Duration = Duration::from_secs(1);

/// The process that is killed while it runs a job.
#[tokio::test(flavor = "multi_thread")]
async fn worker_that_is_killed() {
    let Some(path) = part("dashboard::worker_that_is_killed") else { return };
    let handler = async |_: Film| {
        println!(">> running");
        std::future::pending::<()>().await;
        Ok::<_, JobError>(())
    };
    let mut overrides = SettingOverrides::default();
    overrides.timeout = Some(Duration::from_secs(20));
    let storage = Storage::connect(&path).await.unwrap();
    let worker =
        Worker::builder(storage).name("the doomed").presence(INTERVAL).overrides(overrides).handle(handler);
    let _ = worker.build().unwrap().run_until(std::future::pending()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_worker_leaves_the_pages_and_its_job_waits_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = format!("sqlite:{}", folder.path().join("jobs.db").display());
    let storage = Storage::connect(&path).await.unwrap();
    let film = Film { title: "Metropolis".to_owned() };
    storage.queue::<Film>().await.unwrap().send(&film).id("film-1").await.unwrap();
    let mut worker = Part::start("dashboard::worker_that_is_killed", &path);
    assert_eq!(worker.says().as_deref(), Some("running"));
    let victim = worker.id().to_string();
    let admin = Admin::new(storage);
    in_the_browser(Dashboard::new(admin), "killed.cjs", &[("VICTIM", &victim)]).await;
    let _ = worker.kill();
}

fn pictures() -> PathBuf {
    let folder = target_folder().join("pictures");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::canonicalize(folder).unwrap()
}

async fn sqlite(folder: &tempfile::TempDir) -> Storage {
    Storage::connect(&format!("sqlite:{}", folder.path().join("jobs.db").display())).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_puts_a_sqlite_storage_right_in_the_browser() {
    let folder = tempfile::tempdir().unwrap();
    journey(sqlite(&folder).await, "operate.cjs").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_puts_an_azure_storage_right_in_the_browser() {
    let azurite = Azurite::start();
    journey(Storage::connect(&azurite.connection_string()).await.unwrap(), "operate.cjs").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_hold_in_a_real_browser() {
    let folder = tempfile::tempdir().unwrap();
    journey(sqlite(&folder).await, "pages.cjs").await;
}
