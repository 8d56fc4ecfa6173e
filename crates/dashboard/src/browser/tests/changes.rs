//! Changes by forms, and what pages show afterwards.

use std::time::{Duration, Instant};

use axum::http::StatusCode;
use jobqueue::Storage;
use jobqueue::admin::QueueOverview;

use super::support::{Browser, filled, operate, reject_all, send};

async fn mails(storage: &Storage) -> QueueOverview {
    operate(storage).queue("mails").await.unwrap()
}

/// Waits until the page of an operation shows its report, and returns the page.
async fn ended(browser: &Browser, location: &str) -> String {
    let path = location.trim_start_matches("..");
    let started = Instant::now();
    loop {
        let page = browser.page(path).await;
        if page.contains("others.") || page.contains("It failed") {
            return page;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "{page}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn paused_queue_is_shown_as_paused_at_once() {
    let storage = filled().await;
    let browser = Browser::operating(&storage);
    assert!(browser.page("/").await.contains("mails"));
    let answer = browser.post("/do/pause", &[("queue", "mails")]).await;
    assert_eq!(answer.status, StatusCode::SEE_OTHER);
    assert_eq!(answer.location(), "../queues/mails?done=paused");
    assert!(mails(&storage).await.paused);
    let page = browser.page("/queues/mails").await;
    assert!(page.contains(">paused<") && page.contains("do/resume"), "{page}");
    assert_eq!(
        browser.post("/do/resume", &[("queue", "mails")]).await.location(),
        "../queues/mails?done=resumed"
    );
    assert!(!mails(&storage).await.paused);
    assert_eq!(browser.post("/do/pause", &[("queue", "no-such")]).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn all_dead_letters_that_match_are_counted_then_put_back() {
    let storage = filled().await;
    let admin = operate(&storage);
    for number in 0..40 {
        send(&admin, &format!("more-{number}")).await;
    }
    reject_all(&storage).await;
    let browser = Browser::operating(&storage);
    let fields = [("queue", "mails"), ("kind", "mail"), ("reason", "rejected"), ("text", "no such address")];
    let preview = browser.post("/do/preview", &fields).await;
    let page = ended(&browser, preview.location()).await;
    assert!(page.contains("42 match") && page.contains("Redrive 42") && page.contains("Purge 42"), "{page}");
    assert_eq!(mails(&storage).await.dead_letters, 42);
    let none = browser.post("/do/preview", &[("queue", "mails"), ("kind", "other")]).await;
    assert!(ended(&browser, none.location()).await.contains("0 match"));
    let redrive = browser.post("/do/redrive", &fields).await;
    let page = ended(&browser, redrive.location()).await;
    assert!(page.contains("42 put back"), "{page}");
    let queue = mails(&storage).await;
    assert_eq!(queue.dead_letters, 0);
    assert_eq!(queue.length, 42);
}

#[tokio::test]
async fn purge_wants_the_name_of_the_queue() {
    let storage = filled().await;
    let browser = Browser::operating(&storage);
    for confirm in ["", "mail", "MAILS"] {
        let answer = browser.post("/do/purge", &[("queue", "mails"), ("confirm", confirm)]).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{confirm}");
    }
    assert_eq!(mails(&storage).await.dead_letters, 1);
    let answer = browser.post("/do/purge", &[("queue", "mails"), ("confirm", "mails")]).await;
    assert!(ended(&browser, answer.location()).await.contains("1 deleted"));
    assert_eq!(mails(&storage).await.dead_letters, 0);
}

#[tokio::test]
async fn slow_redrive_is_stopped_between_two_dead_letters() {
    let storage = filled().await;
    // At one a second they last for a minute: long enough to stop it on the slowest machine.
    for number in 0..60 {
        send(&operate(&storage), &format!("more-{number}")).await;
    }
    reject_all(&storage).await;
    let browser = Browser::operating(&storage);
    let dead = mails(&storage).await.dead_letters;
    let redrive = browser.post("/do/redrive", &[("queue", "mails"), ("rate", "1")]).await;
    let path = redrive.location().trim_start_matches("..").to_owned();
    let id = path.rsplit('/').next().unwrap().to_owned();
    let stopped = browser.post("/do/stop", &[("operation", &id)]).await;
    assert_eq!(stopped.status, StatusCode::SEE_OTHER);
    let page = ended(&browser, &path).await;
    assert!(page.contains("It ended early"), "{page}");
    let queue = mails(&storage).await;
    assert!(queue.dead_letters > 0 && queue.dead_letters + queue.length == dead, "{queue:?}");
}

#[tokio::test]
async fn job_is_sent_and_cancelled_from_the_browser() {
    let storage = filled().await;
    let browser = Browser::operating(&storage);
    let fields = [
        ("queue", "mails"),
        ("kind", "mail"),
        ("payload", r#"{"to":"a"}"#),
        ("id", "by/hand?&"),
        ("delay", ""),
    ];
    let sent = browser.post("/do/send", &fields).await;
    let page = browser.page(sent.location().trim_start_matches("..")).await;
    assert!(page.contains("The job was sent.") && page.contains("by/hand?&#38;"), "{page}");
    let cancelled = browser.post("/do/cancel", &[("queue", "mails"), ("id", "by/hand?&")]).await;
    let page = browser.page(cancelled.location().trim_start_matches("..")).await;
    assert!(page.contains("Cancellation was requested by ada"), "{page}");
    for wrong in [("payload", "{"), ("delay", "soon"), ("version", "-1")] {
        let fields = [("queue", "mails"), ("kind", "mail"), wrong];
        assert_eq!(browser.post("/do/send", &fields).await.status, StatusCode::BAD_REQUEST, "{wrong:?}");
    }
}

#[tokio::test]
async fn setting_is_changed_and_a_wrong_one_refused() {
    let storage = filled().await;
    let browser = Browser::operating(&storage);
    let change = |value| [("queue", "mails"), ("name", "poisonthreshold"), ("value", value)];
    assert_eq!(browser.post("/do/settings", &change("3")).await.status, StatusCode::SEE_OTHER);
    assert_eq!(mails(&storage).await.metadata["poisonthreshold"], "3");
    assert_eq!(browser.post("/do/settings", &change("many")).await.status, StatusCode::BAD_REQUEST);
    assert_eq!(browser.post("/do/settings", &change("")).await.status, StatusCode::SEE_OTHER);
    assert!(!mails(&storage).await.metadata.contains_key("poisonthreshold"));
}
