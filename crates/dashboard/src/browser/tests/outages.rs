//! Pages while the storage or a part of it does not answer, and pages with partial content.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use jobqueue::storage::{BlobName, Operation, PutBlob, PutMessage, StoreErrorKind};
use jobqueue::{JobError, Runtime, Storage, Worker, memory};
use jobqueue_admin::RawSend;
use jobqueue_testing::faults::{Fault, Faulty};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::support::{Browser, Mail, filled, operate, reject_all, send};
use crate::browser::looks::Looks;
use crate::browser::throughput::Throughput;
use crate::snapshot::Snapshots;

/// The attribute of the element that refreshes a page.
const STREAM: &str = "id=\"stream\"";
#[tokio::test(start_paused = true)]
async fn pages_recover_by_themselves_after_an_outage() {
    let faulty = Faulty::new(&filled().await);
    let browser = Browser::operating(&faulty.storage());
    browser.page("/").await;
    for operation in [
        Operation::QueueProperties,
        Operation::QueueMetadata,
        Operation::Peek,
        Operation::ListBlobs,
        Operation::GetBlob,
    ] {
        faulty.plan_always(operation, Fault::Refuse(StoreErrorKind::Unavailable));
    }
    for path in
        ["/job?queue=mails&id=waiting", "/queues/mails/dead", "/batches", "/batch?id=import", "/schedules"]
    {
        let answer = browser.get(path).await;
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{path}: {}", answer.text);
        assert!(answer.text.contains(STREAM), "{path}: {}", answer.text);
    }
    let refused = browser.post("/do/pause", &[("queue", "mails")]).await;
    assert_eq!(refused.status, StatusCode::BAD_GATEWAY, "{}", refused.text);
    assert!(!refused.text.contains(STREAM), "a change is not made again: {}", refused.text);
}

// The search used to wait for a minute.
#[tokio::test(start_paused = true)]
async fn queue_that_hangs_delays_no_search() {
    let faulty = Faulty::new(&filled().await);
    let browser = Browser::operating(&faulty.storage());
    browser.page("/").await;
    faulty.plan_always(Operation::Peek, Fault::Hang);
    let began = Instant::now();
    let page = browser.page("/search?id=waiting").await;
    assert!(
        page.contains("Not looked at, because they cannot be read, or not within 8 seconds: mails"),
        "{page}"
    );
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

// They used to take all permits of a search for a minute.
#[tokio::test(start_paused = true)]
async fn pages_that_hang_do_not_hide_a_job_from_a_search() {
    let storage = filled().await;
    let admin = operate(&storage);
    admin.create_queue("films").await.unwrap();
    let film = RawSend::json("film", "{}").unwrap().id("film");
    admin.send("films", film).await.unwrap();
    let faulty = Faulty::new(&storage);
    let browser = Browser::operating(&faulty.storage());
    browser.page("/").await;
    faulty.on(Operation::Peek, |call| call.subject.contains("mails").then_some(Fault::Hang));
    let paths: Vec<_> = (0..8).map(|number| format!("/queues/mails/dead?kind={number}")).collect();
    let pages = futures_util::future::join_all(paths.iter().map(|path| browser.get(path)));
    let search = async {
        sleep(Duration::from_secs(1)).await;
        browser.page("/search?id=film").await
    };
    let (_, page) = tokio::join!(pages, search);
    assert!(page.contains("job?queue=films&#38;id=film"), "{page}");
    assert!(page.contains("within 8 seconds: mails."), "{page}");
}

#[tokio::test(start_paused = true)]
async fn pages_have_the_figures_of_the_metrics() {
    let storage = memory::open_on(Runtime::paused());
    operate(&storage).create_queue("mails").await.unwrap();
    let looks = Looks::new(Snapshots::new(operate(&storage)), Duration::from_secs(5));
    let stop = CancellationToken::new();
    let deliver = async |_: Mail| Ok::<_, JobError>(());
    let worker =
        Worker::builder(storage.clone()).presence(Duration::from_secs(15)).handle(deliver).build().unwrap();
    let look = async {
        sleep(Duration::from_secs(20)).await;
        let _ = looks.latest().await.unwrap();
        stop.cancel();
    };
    let (report, ()) = tokio::join!(worker.run_until(stop.cancelled()), look);
    let _ = report.unwrap();
    sleep(Duration::from_secs(60)).await;
    let look = looks.latest().await.unwrap();
    let figures = &look.figures.queues["mails"];
    // The slots of the worker that has ended, which a single look does not show.
    assert!(figures.workers.as_ref().unwrap().slots_per_worker.is_some(), "{figures:?}");
    assert_eq!(look.figures_of(look.queue("mails").unwrap()).as_ref(), Some(figures));
}

// newcomers 33, c 2 and a 3: while a process held SQLite's write lock, the pages said that no worker runs.
#[tokio::test(start_paused = true)]
async fn workers_that_cannot_write_are_not_said_to_be_gone() {
    let storage = memory::open_on(Runtime::paused());
    operate(&storage).create_queue("mails").await.unwrap();
    let (browser, faulty) = (Browser::operating(&storage), Faulty::new(&storage));
    let stop = CancellationToken::new();
    let deliver = async |_: Mail| Ok::<_, JobError>(());
    let worker =
        Worker::builder(faulty.storage()).presence(Duration::from_secs(15)).handle(deliver).build().unwrap();
    let looks = async {
        sleep(Duration::from_secs(1)).await;
        assert!(!browser.page("/workers").await.contains("last seen"));
        faulty.plan_always(Operation::PutBlob, Fault::Refuse(StoreErrorKind::Timeout));
        sleep(Duration::from_secs(30)).await;
        let late = browser.page("/workers").await;
        assert!(late.contains("<span class=\"tag warn\">last seen "), "{late}");
        assert!(browser.page("/").await.contains("1 with a late record"));
        sleep(Duration::from_secs(30)).await;
        for path in ["/", "/workers", "/queues/mails"] {
            let page = browser.page(path).await;
            assert!(
                page.contains("No worker is seen: the last record of a worker was written "),
                "{path}: {page}"
            );
            assert!(!page.contains("No worker is running"), "{path}: {page}");
        }
        assert!(browser.page("/").await.contains("workers\">?</a>"), "their number is unknown");
        stop.cancel();
    };
    let (report, ()) = tokio::join!(worker.run_until(stop.cancelled()), looks);
    let _ = report.unwrap();
}

// All of them fell into the minute in which the records could be read again.
#[tokio::test(start_paused = true)]
async fn jobs_that_end_while_no_record_can_be_read_are_spread_over_the_minutes() {
    let storage = memory::open_on(Runtime::paused());
    let admin = operate(&storage);
    admin.create_queue("mails").await.unwrap();
    let faulty = Faulty::new(&storage);
    let looks = Looks::new(Snapshots::new(operate(&faulty.storage())), Duration::from_secs(5));
    let stop = CancellationToken::new();
    let deliver = async |_: Mail| Ok::<_, JobError>(());
    let worker =
        Worker::builder(storage.clone()).presence(Duration::from_secs(15)).handle(deliver).build().unwrap();
    let look = async {
        sleep(Duration::from_secs(20)).await;
        let _ = looks.latest().await.unwrap();
        let (unreadable, is_out) =
            (Fault::Refuse(StoreErrorKind::Unavailable), Arc::new(AtomicBool::new(true)));
        let is_out_now = Arc::clone(&is_out);
        faulty.on(Operation::ListBlobs, move |call| {
            let is_of_records = call.subject.contains("jobqueue-workers");
            (is_of_records && is_out_now.load(Ordering::Relaxed)).then_some(unreadable)
        });
        for id in 0..110 {
            send(&admin, &id.to_string()).await;
        }
        for _ in 0..10 {
            sleep(Duration::from_secs(60)).await;
            assert!(looks.latest().await.unwrap().figures.workers.is_err());
        }
        is_out.store(false, Ordering::Relaxed);
        sleep(Duration::from_secs(60)).await;
        let _ = looks.latest().await.unwrap();
        stop.cancel();
    };
    let (report, ()) = tokio::join!(worker.run_until(stop.cancelled()), look);
    let _ = report.unwrap();
    let minutes = looks.throughput(Throughput::of_all).minutes;
    assert_eq!(minutes.iter().map(|minute| minute.completed).sum::<u64>(), 110);
    assert!(minutes.iter().all(|minute| minute.completed <= 20), "{minutes:?}");
}

// Each refresh reads all messages of the queue twice, and went on for as long as the page was open.
#[tokio::test]
async fn page_of_a_job_that_is_gone_is_refreshed_for_seconds_only() {
    let browser = Browser::operating(&filled().await);
    for (id, is_live) in [("waiting", true), ("dead", false), ("gone", true)] {
        let page = browser.page(&format!("/job?queue=mails&id={id}")).await;
        assert_eq!(page.contains(STREAM), is_live, "{id}: {page}");
        // Workers may not have written the end of a job that is gone into their journal yet: the script ends
        // the stream of such a page.
        assert_eq!(page.contains("data-again"), id == "gone", "{id}: {page}");
    }
}

// review 34 b, C2: each refresh read the first 10,000 messages of each state.
#[tokio::test]
async fn page_of_a_job_behind_the_first_messages_is_not_refreshed() {
    let storage = filled().await;
    let (browser, queue) = (Browser::operating(&storage), "mails".parse().unwrap());
    for number in 0..=10_000 {
        if number == 5_000 {
            send(&operate(&storage), "late").await;
        }
        let _ = storage.queues().put(&queue, PutMessage::new("not an event")).await.unwrap();
    }
    for (id, is_live) in [("waiting", true), ("late", false), ("behind", false)] {
        let page = browser.page(&format!("/job?queue=mails&id={id}")).await;
        assert_eq!(page.contains(STREAM), is_live, "{id}: {page}");
    }
}

// Each refresh used to read up to 10,000 dead letters.
#[tokio::test]
async fn dead_letters_of_an_id_are_not_refreshed() {
    let browser = Browser::operating(&filled().await);
    for (query, is_live) in [("", true), ("?kind=mail", true), ("?id=dead", false)] {
        let page = browser.page(&format!("/queues/mails/dead{query}")).await;
        assert_eq!(page.contains(STREAM), is_live, "{query}: {page}");
    }
}

#[tokio::test(start_paused = true)]
async fn purge_of_a_child_warns_while_its_batch_cannot_be_read() {
    let storage = Storage::memory();
    let mut batch = storage.batch("import").await.unwrap();
    batch.send(&Mail { to: "bob@example.org".to_owned() }).await.unwrap();
    reject_all(&storage).await;
    let faulty = Faulty::new(&storage);
    let browser = Browser::operating(&faulty.storage());
    let path = "/job?queue=mails&id=import/0";
    assert!(browser.page(path).await.contains("A batch that waits for it never continues without it"));
    faulty.plan_always(Operation::GetBlob, Fault::Refuse(StoreErrorKind::Unavailable));
    sleep(Duration::from_secs(60)).await;
    let page = browser.page(path).await;
    assert!(page.contains("A batch may wait for it, which could not be read"), "{page}");
}
#[tokio::test]
async fn batches_beyond_the_listed_ones_are_not_denied() {
    let storage = Storage::memory();
    let browser = Browser::operating(&storage);
    assert!(browser.page("/batches").await.contains("There are no batches"));
    let container = "jobqueue-batches".parse().unwrap();
    storage.blobs().create_container(&container).await.unwrap();
    for number in 0..=200_000 {
        // A blob in the folder of another program.
        let blob = BlobName::new(container.clone(), format!("=/{number}")).unwrap();
        let _ = storage.blobs().put_blob(&blob, "1".into(), PutBlob::new()).await.unwrap();
    }
    let page = Browser::operating(&storage).page("/batches").await;
    assert!(page.contains("Batches with later ids are left out"), "{page}");
    assert!(!page.contains("There are no batches"), "{page}");
}
