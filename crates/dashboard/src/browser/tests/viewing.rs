//! The content of the pages, and the requests that they send.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use jobqueue::settings::Metadata;
use jobqueue::storage::{BlobName, Operation, PutBlob, StoreErrorKind};
use jobqueue::{JobError, Storage, Worker};
use jobqueue_admin::{Admin, DeadLetterFilter, HistoryFilter};
use jobqueue_testing::faults::{Fault, Faulty};
use tokio_util::sync::CancellationToken;

use super::support::{Browser, Mail, filled, operate, send};
use crate::Dashboard;
use crate::browser::looks::Looks;
use crate::snapshot::Snapshots;

#[tokio::test]
async fn pages_show_waiting_jobs_and_dead_letters() {
    let storage = filled().await;
    let browser = Browser::operating(&storage);
    let overview = browser.page("/").await;
    assert!(overview.contains("queues/mails/dead\">1</a>"), "{overview}");
    let queue = browser.page("/queues/mails").await;
    assert!(queue.contains("<bdi>waiting</bdi>") && !queue.contains("<bdi>dead</bdi>"), "{queue}");
    let dead = browser.page("/queues/mails/dead").await;
    assert!(dead.contains("<bdi>dead</bdi>") && dead.contains("no such address: bob@example.org"), "{dead}");
    assert!(
        browser.page("/queues/mails/dead?reason=cancelled").await.contains("0 of the 1 listed dead letters")
    );
    let job = browser.page("/job?queue=mails&id=dead").await;
    assert!(job.contains("Dead-lettered: rejected") && job.contains("do/redrive"), "{job}");
    let job = browser.page("/job?queue=mails&id=waiting").await;
    assert!(job.contains("<code>no_worker</code>") && job.contains("do/cancel"), "{job}");
    let found = browser.page("/search?id=dead").await;
    assert!(found.contains("job?queue=mails&#38;id=dead"), "{found}");
}

// The journal has the time after the message was deleted.
#[tokio::test(start_paused = true)]
async fn death_that_the_journal_has_too_is_one_event() {
    let faulty = Faulty::new(&Storage::memory());
    let storage = faulty.storage();
    operate(&storage).create_queue("mails").await.unwrap();
    send(&operate(&storage), "dead").await;
    let run = async || {
        let handler = async |_: Mail| Err::<(), _>(JobError::dead_letter("no such address"));
        let worker = Worker::builder(storage.clone()).history(Duration::from_secs(3_600)).handle(handler);
        worker.build().unwrap().run_until_idle().await.unwrap()
    };
    let deaths = async || {
        let page = Browser::operating(&storage).page("/job?queue=mails&id=dead").await;
        page.matches("Dead-lettered: rejected").count()
    };
    assert_eq!(run().await.dead_lettered, 1);
    assert_eq!(deaths().await, 1);
    let redrive = operate(&storage).redrive("mails").filter(DeadLetterFilter::all()).run().await.unwrap();
    assert_eq!(redrive.count, 1);
    assert_eq!(deaths().await, 1, "it waits");
    assert_eq!(run().await.dead_lettered, 1);
    assert_eq!(deaths().await, 2);
}

#[tokio::test]
async fn tiles_are_red_while_jobs_are_dead_or_wait_for_no_worker() {
    let storage = filled().await;
    let browser = Browser::operating(&storage);
    let page = browser.page("/").await;
    for tile in ["Dead letters", "Workers"] {
        assert!(page.contains(&format!("<div class=\"alarm\"><dt>{tile}</dt>")), "{tile}: {page}");
    }
    assert!(page.contains("<div><dt>Oldest</dt>"), "it waits for no key: {page}");
    let page = browser.page("/queues/mails").await;
    assert!(page.contains("<div class=\"alarm\"><dt>Dead letters</dt>"), "{page}");
    let idle = Storage::memory();
    operate(&idle).create_queue("mails").await.unwrap();
    for path in ["/", "/queues/mails"] {
        let page = Browser::operating(&idle).page(path).await;
        assert!(!page.contains("class=\"alarm\""), "{page}");
    }
}

#[tokio::test(start_paused = true)]
async fn rare_requests_for_figures_get_fresh_ones() {
    let snapshots = Snapshots::new(operate(&filled().await));
    for _ in 0..3 {
        let snapshot = snapshots.latest().await.unwrap();
        assert!(snapshot.taken.elapsed() < Duration::from_secs(60));
        tokio::time::sleep(Duration::from_secs(600)).await;
    }
}
#[tokio::test]
async fn job_is_found_although_another_queue_cannot_be_read() {
    let storage = filled().await;
    let admin = operate(&storage);
    admin.create_queue("secret").await.unwrap();
    // The queue of another program, whose name is too long for a dead-letter queue.
    let long = "a".repeat(60).parse().unwrap();
    storage.queues().create_queue(&long, &Metadata::new()).await.unwrap();
    let faulty = Faulty::new(&storage);
    faulty.on(Operation::Peek, |call| {
        call.subject.contains("secret").then_some(Fault::Refuse(StoreErrorKind::Unauthorized))
    });
    let found = Browser::operating(&faulty.storage()).page("/search?id=dead").await;
    assert!(found.contains("job?queue=mails&#38;id=dead"), "{found}");
    assert!(
        found.contains("Not looked at, because they cannot be read, or not within 8 seconds: secret."),
        "{found}"
    );
}

#[tokio::test]
async fn ended_jobs_are_found_in_the_journal() {
    let storage = Storage::memory();
    let admin = operate(&storage);
    admin.create_queue("mails").await.unwrap();
    for id in ["good", "bad"] {
        send(&admin, id).await;
    }
    let handler = |_: Mail, ctx: jobqueue::Context| async move {
        match &*ctx.info().id {
            "bad" => Err(JobError::dead_letter("no such address")),
            _ => Ok(()),
        }
    };
    let worker =
        Worker::builder(storage.clone()).history(Duration::from_secs(3600)).handle(handler).build().unwrap();
    let _ = worker.run_until_idle().await.unwrap();
    assert_eq!(admin.history(&HistoryFilter::new()).await.unwrap().jobs.len(), 2);
    let browser = Browser::operating(&storage);
    let all = browser.page("/search").await;
    assert!(all.contains("<bdi>good</bdi>") && all.contains("<bdi>bad</bdi>"), "{all}");
    let bad = browser.page("/search?outcome=dead_lettered&younger=1h").await;
    assert!(!bad.contains("<bdi>good</bdi>") && bad.contains("<bdi>bad</bdi>"), "{bad}");
    let job = browser.page("/job?queue=mails&id=good").await;
    assert!(job.contains(">ended<") && job.contains("Ended: completed"), "{job}");
    // Floats have up to 17 digits.
    let (_, run) = job.split_once("attempt 1, ").unwrap();
    let (seconds, _) = run.split_once(" s, by").unwrap();
    assert!(seconds.split_once('.').is_none_or(|(_, digits)| digits.len() <= 3), "{seconds}");
}

/// Lets a worker with a journal complete one mail for each of these ids.
async fn complete(storage: &Storage, ids: impl Iterator<Item = String>) {
    let admin = operate(storage);
    admin.create_queue("mails").await.unwrap();
    for id in ids {
        send(&admin, &id).await;
    }
    let handler = async |_: Mail| Ok::<_, JobError>(());
    let worker = Worker::builder(storage.clone()).history(Duration::from_secs(3600)).handle(handler);
    let _ = worker.build().unwrap().run_until_idle().await.unwrap();
}

/// Returns the path of the page that continues the search of the journal.
fn next(page: &str) -> Option<String> {
    let (before, _) = page.split_once("\">Search jobs that ended before")?;
    let (_, query) = before.rsplit_once("search?")?;
    Some(format!("/search?{}", query.replace("&#38;", "&").replace("&amp;", "&")))
}

#[tokio::test]
async fn pages_of_ended_jobs_show_each_once() {
    let storage = Storage::memory();
    complete(&storage, (0..450).map(|n| format!("mail-{n:03}."))).await;
    let browser = Browser::operating(&storage);
    let mut path = "/search?kind=mail".to_owned();
    let (mut shown, mut pages) = (vec![0; 450], 0);
    loop {
        let page = browser.page(&path).await;
        for (n, shown) in shown.iter_mut().enumerate() {
            *shown += page.matches(&format!("<bdi>mail-{n:03}.</bdi>")).count();
        }
        pages += 1;
        let Some(next) = next(&page) else { break };
        path = next;
    }
    assert!(shown.iter().all(|times| *times == 1), "{shown:?}");
    assert!(pages >= 2);
}

#[tokio::test]
async fn page_of_a_job_shows_how_far_back_it_searched() {
    let storage = Storage::memory();
    for _ in 0..25 {
        complete(&storage, std::iter::once("again".to_owned())).await;
    }
    let browser = Browser::operating(&storage);
    let page = browser.page("/job?queue=mails&id=again").await;
    assert_eq!(page.matches("Ended: completed").count(), 20);
    let older = browser.page(&next(&page).unwrap()).await;
    assert_eq!(older.matches("<th scope=\"row\" class=\"id\">").count(), 5, "{older}");
    complete(&storage, std::iter::once("once".to_owned())).await;
    assert!(!browser.page("/job?queue=mails&id=once").await.contains("Search jobs that ended before"));
}

#[tokio::test]
async fn viewers_share_one_look_at_the_storage() {
    let storage = filled().await;
    let snapshots = Snapshots::new(Admin::new(storage));
    let looks = Looks::new(snapshots.clone(), Duration::from_secs(3600));
    let first = looks.latest().await.unwrap().figures;
    assert!(Arc::ptr_eq(&first, &looks.latest().await.unwrap().figures));
    snapshots.expire();
    assert!(!Arc::ptr_eq(&first, &looks.latest().await.unwrap().figures));
}

#[tokio::test]
async fn open_page_is_notified_of_each_look_and_ends_with_the_dashboard() {
    let stop = CancellationToken::new();
    let dashboard = Dashboard::new(operate(&filled().await));
    let browser = Browser::new(dashboard.refresh(Duration::from_millis(100)).stop_when(stop.clone()));
    let events = tokio::spawn(async move { browser.get("/events").await });
    tokio::time::sleep(Duration::from_millis(1500)).await;
    stop.cancel();
    let events = events.await.unwrap();
    assert_eq!(events.headers["content-type"], "text/event-stream");
    assert!(events.text.matches("event: refresh").count() >= 2, "{}", events.text);
}

/// Begins a batch whose child begins another batch, in which a job fails.
async fn nested_batches(storage: &Storage) {
    let to = |to: &str| Mail { to: to.to_owned() };
    let mut batch = storage.batch("newsletter").await.unwrap();
    batch.send_all([to("region")]).await.unwrap();
    batch.then(&to("end")).await.unwrap();
    let handler = async |mail: Mail, ctx: jobqueue::Context| match mail.to.as_str() {
        "region" => {
            let mut inner = ctx.batch("region").await?;
            inner.send_all(["good", "bad"].map(|name| Mail { to: name.to_owned() })).await?;
            Ok(inner.then(&Mail { to: "end".to_owned() }).await?)
        }
        "bad" => Err(JobError::dead_letter("no such street")),
        _ => Ok(()),
    };
    let _ = Worker::builder(storage.clone()).handle(handler).build().unwrap().run_until_idle().await.unwrap();
}

#[tokio::test]
async fn nested_batches_are_a_tree_with_their_blocking_children() {
    let storage = Storage::memory();
    nested_batches(&storage).await;
    let browser = Browser::operating(&storage);
    let all = browser.page("/batches").await;
    let [outer, inner] =
        ["batch?id=newsletter\"><bdi>newsletter", "batch?id=region\"><bdi>region"].map(|text| all.find(text));
    assert!(outer.is_some() && outer < inner, "{all}");
    assert!(all.contains("└ ") && all.contains("child 0 of"), "{all}");
    let outer = browser.page("/batch?id=newsletter").await;
    assert!(outer.contains("in a batch") && outer.contains("1 done of 2 children"), "{outer}");
    let inner = browser.page("/batch?id=region").await;
    assert!(inner.contains("no such street") && inner.contains("ends with this one"), "{inner}");
}

// newcomers 34 d, 2-2: the pages counted no dead letter.
#[tokio::test]
async fn continuation_that_is_a_dead_letter_blocks_its_batch() {
    let storage = Storage::memory();
    let mut batch = storage.batch("mosaic").await.unwrap();
    batch.send(&Mail { to: "tile".to_owned() }).await.unwrap();
    batch.then(&Mail { to: "join".to_owned() }).await.unwrap();
    let handler = async |mail: Mail| match mail.to.as_str() {
        "join" => Err(JobError::dead_letter("no printer")),
        _ => Ok(()),
    };
    let _ = Worker::builder(storage.clone()).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    let browser = Browser::operating(&storage);
    let page = browser.page("/batch?id=mosaic").await;
    assert!(
        page.contains("blocks the batch until it is redriven</strong> (<bdi>no printer</bdi>)"),
        "{page}"
    );
    let list = browser.page("/batches").await;
    assert!(list.contains("its continuation is a dead letter"), "{list}");
    assert!(list.contains("<span class=\"tag bad\">1</span>"), "{list}");
    // round 35 f, C3: each refresh searched it at length.
    assert!(!page.contains("data-again"), "{page}");
    storage.queues().clear(&"mails-poison".parse().unwrap()).await.unwrap();
    let page = Browser::operating(&storage).page("/batch?id=mosaic").await;
    assert!(page.contains("data-again=\"20\"") && page.contains("is gone</strong>"), "{page}");
}

#[tokio::test]
async fn documents_have_the_content_of_the_pages() {
    let storage = filled().await;
    let browser = Browser::operating(&storage);
    let read = async |path: &str| -> serde_json::Value {
        let answer = browser.get(path).await;
        assert_eq!(answer.headers["content-type"], "application/json", "{path}");
        serde_json::from_str(&answer.text).unwrap()
    };
    let queues = read("/api/queues").await;
    assert!(queues["problem"].is_null(), "{queues}");
    assert_eq!(queues["queues"][0]["dead_letters"], 1, "{queues}");
    let dead = read("/api/dead?queue=mails&reason=rejected").await;
    assert_eq!(dead["letters"][0]["id"], "dead", "{dead}");
    assert_eq!(dead["errors"][0]["count"], 1, "{dead}");
    assert_eq!(read("/api/job?queue=mails&id=waiting").await["place"], "waiting");
    assert!(read("/api/dead?queue=none").await["error"].as_str().unwrap().contains("none"));
    assert!(read("/api/history?until=soon").await["error"].is_string());
    // A program would take the unfiltered document for the filtered one.
    for path in [
        "/api/dead?queue=mails&reasn=none",
        "/api/dead?queue=mails&queue=other",
        "/api/history?eror=none",
        "/api/history?outcome=dead-lettered",
        "/api/job?queue=mails&id=waiting&sender=/shop",
        "/api/queues?name=mails",
        "/api/schedules?name=nightly",
    ] {
        let answer = browser.get(path).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path}: {}", answer.text);
    }
    let hiding = Browser::new(Dashboard::new(operate(&storage)).redact(|_| None));
    for path in [
        "/api/workers",
        "/api/dead?queue=mails",
        "/api/jobs?queue=mails",
        "/api/job?queue=mails&id=dead",
        "/api/history",
    ] {
        assert_eq!(hiding.get(path).await.status, StatusCode::FORBIDDEN, "{path}");
    }
    assert_eq!(hiding.get("/api/queues").await.status, StatusCode::OK);
}

#[tokio::test]
async fn schedule_without_a_leader_is_marked_and_its_trigger_says_so() {
    let storage = filled().await;
    let blob = BlobName::new("jobqueue-schedules".parse().unwrap(), "nightly").unwrap();
    storage.blobs().create_container(blob.container()).await.unwrap();
    let about = r#"{"queue":"mails","kind":"mail","every_ms":3600000}"#;
    let state = format!("{{\"done\":1767225600000,\"pending\":null,\"about\":{about}}}");
    let _ = storage.blobs().put_blob(&blob, state.into(), PutBlob::new()).await.unwrap();
    let browser = Browser::operating(&storage);
    let page = browser.page("/schedules").await;
    assert!(page.contains("no leader") && page.contains("when a worker leads it"), "{page}");
    let triggered = browser.post("/do/trigger-schedule", &[("schedule", "nightly")]).await;
    assert_eq!(triggered.location(), "../schedules?done=triggered-without-leader");
    let page = browser.page("/schedules?done=triggered-without-leader").await;
    assert!(page.contains("No worker leads the schedule now"), "{page}");
}

// A storage in memory shows every message, without a limit.
#[tokio::test]
async fn age_of_the_oldest_job_is_exact_where_every_message_is_shown() {
    let storage = filled().await;
    for number in 0..40 {
        send(&operate(&storage), &number.to_string()).await;
    }
    let browser = Browser::operating(&storage);
    let (overview, queue) = (browser.page("/").await, browser.page("/queues/mails").await);
    assert!(!overview.contains("≥") && !queue.contains("≥"), "{overview}");
    assert!(!queue.contains("of the next 32"), "{queue}");
}

#[tokio::test]
async fn oldest_job_of_a_queue_that_cannot_be_read_is_not_known() {
    let faulty = Faulty::new(&filled().await);
    faulty.plan_always(Operation::QueueProperties, Fault::Refuse(StoreErrorKind::Unavailable));
    let page = Browser::operating(&faulty.storage()).page("/").await;
    assert!(page.contains("<dt>Oldest</dt><dd>?</dd>"), "{page}");
}
