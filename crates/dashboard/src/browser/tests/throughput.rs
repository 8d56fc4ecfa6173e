//! The jobs that ended before the dashboard was opened, as the journal has them.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use jobqueue::clock::ManualClock;
use jobqueue::{JobError, Runtime, Storage, Worker};
use serde_json::Value;

use super::support::{Browser, Mail, operate, send};

/// Returns a storage in which a worker with a journal has completed three mails, with a queue `films` that
/// has no worker.
async fn with_a_journal() -> Storage {
    let storage = Storage::memory();
    let admin = operate(&storage);
    for queue in ["mails", "films"] {
        admin.create_queue(queue).await.unwrap();
    }
    for id in ["a", "b", "c"] {
        send(&admin, id).await;
    }
    let handler = async |_: Mail| Ok::<_, JobError>(());
    let worker = Worker::builder(storage.clone()).history(Duration::from_secs(3_600)).handle(handler);
    let _ = worker.build().unwrap().run_until_idle().await.unwrap();
    storage
}

/// Returns the overview once it has the journal, which is read in the background and delays no page.
async fn page_with_the_journal(browser: &Browser) -> String {
    let started = Instant::now();
    loop {
        let page = browser.page("/").await;
        if page.contains("completed: ≥ 3") {
            return page;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "{page}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn hour_before_the_first_look_is_from_the_journal() {
    let browser = Browser::operating(&with_a_journal().await);
    let first = browser.page("/").await;
    assert!(first.contains("class=\"unknown\"") && first.contains("Grey minutes are unknown"), "{first}");
    assert!(first.contains("completed: ?") && first.contains("the journal is still being read"), "{first}");
    let page = page_with_the_journal(&browser).await;
    let mails = browser.page("/queues/mails").await;
    for page in [&page, &mails] {
        assert!(page.contains("completed: ≥ 3") && page.contains("are from the journal"), "{page}");
        assert!(page.contains("only the queues whose workers keep one"), "films may be missing: {page}");
        assert!(page.contains("Grey minutes are unknown"), "the journal began with the worker: {page}");
    }
    let films = browser.page("/queues/films").await;
    assert!(films.contains("Grey minutes are unknown"), "no journal may have its jobs: {films}");
}

#[tokio::test]
async fn hour_from_the_journal_ends_now_whatever_the_clock_shows() {
    let (now, off) = (SystemTime::now(), Duration::from_secs(300));
    for wrong in [now - off, now + off] {
        let runtime = Runtime::new().with_clock(Arc::new(ManualClock::at(wrong)));
        let storage = with_a_journal().await.with_runtime(runtime);
        let page = page_with_the_journal(&Browser::operating(&storage)).await;
        // A minute may have begun since the jobs ended.
        let known = ["the first 59 min are unknown", "the first 58 min are unknown"];
        assert!(known.iter().any(|known| page.contains(known)), "{page}");
    }
}

#[tokio::test]
async fn last_day_is_counted_from_the_journal() {
    let browser = Browser::operating(&with_a_journal().await);
    for path in ["/throughput", "/throughput?queue=mails"] {
        let page = browser.page(path).await;
        assert!(page.contains("completed: ≥ 3") && page.contains("hours: ≥ 3 completed"), "{page}");
        assert!(page.contains("Grey hours are unknown"), "the journal began with the worker: {page}");
        let hours = page.matches("In the queue at first\">≥ ").count();
        // The jobs may have ended just before an hour ended.
        assert!((1..=2).contains(&hours), "{page}");
    }
    let films = browser.page("/throughput?queue=films").await;
    assert!(films.contains("Unknown: the journal has no job of this queue"), "{films}");
    let document: Value = serde_json::from_str(&browser.page("/api/throughput").await).unwrap();
    let hours = document["queues"]["mails"].as_array().unwrap();
    assert_eq!(hours.len(), 24, "{document}");
    assert_eq!(hours.iter().filter_map(|hour| hour["completed"].as_u64()).sum::<u64>(), 3, "{document}");
    assert!(hours[0].is_null(), "unknown, and not 0: {document}");
    assert!(document["queues"]["films"].is_null(), "unknown, and not 0: {document}");
}
