//! The search for jobs by key, among those that wait and those that have ended.

use std::time::Duration;

use axum::http::StatusCode;
use jobqueue::{JobError, Storage, Worker};
use jobqueue_admin::RawSend;

use super::support::{Browser, Mail, operate};
use crate::{Dashboard, Field};

/// Sends a job for each of these ids and keys.
async fn send_with_keys(storage: &Storage, jobs: &[(&str, &str)]) {
    let admin = operate(storage);
    admin.create_queue("mails").await.unwrap();
    for (id, key) in jobs {
        let mail = RawSend::json("mail", r#"{"to":"bob@example.org"}"#).unwrap().id(id).key(key);
        admin.send("mails", mail).await.unwrap();
    }
}

/// Returns a storage whose job `ended` has ended and whose jobs `waiting` and `other` wait. The first two
/// have the key `order 17`.
async fn with_keys() -> Storage {
    let storage = Storage::memory();
    send_with_keys(&storage, &[("ended", "order 17")]).await;
    let handler = async |_: Mail| Ok::<_, JobError>(());
    let worker = Worker::builder(storage.clone()).history(Duration::from_secs(3_600)).handle(handler);
    let _ = worker.build().unwrap().run_until_idle().await.unwrap();
    send_with_keys(&storage, &[("waiting", "order 17"), ("other", "order 18")]).await;
    storage
}

#[tokio::test]
async fn jobs_of_a_key_are_found_while_they_wait_and_after_their_end() {
    let browser = Browser::operating(&with_keys().await);
    for path in ["/search?key=order+17", "/search?find=order+17"] {
        let page = browser.page(path).await;
        assert!(page.contains("<bdi>waiting</bdi>") && page.contains("<bdi>ended</bdi>"), "{path}: {page}");
        assert!(!page.contains("<bdi>other</bdi>"), "{path}: {page}");
        assert!(page.contains(">Key</th>") && page.contains("<bdi>order 17</bdi>"), "{path}: {page}");
    }
    let none = browser.page("/search?key=order").await;
    assert!(none.contains("No job with this key waits or runs"), "{none}");
    let job = browser.page("/job?queue=mails&id=ended").await;
    assert!(job.contains("<dt>Key</dt><dd><bdi>order 17</bdi></dd>"), "{job}");
}

#[tokio::test]
async fn text_that_is_an_id_is_not_searched_as_a_key() {
    let storage = with_keys().await;
    send_with_keys(&storage, &[("order 17", "order 19")]).await;
    let browser = Browser::operating(&storage);
    let page = browser.page("/search?find=order+17").await;
    assert!(page.contains("<bdi>order 17</bdi>") && !page.contains("<bdi>waiting</bdi>"), "{page}");
    assert!(page.contains("search?key=order%2017"), "the jobs of the key are one click away: {page}");
    let both = browser.page("/search?id=waiting&key=order+18").await;
    assert!(both.contains("No job with this id and key waits or runs"), "{both}");
}

#[tokio::test]
async fn hidden_keys_are_neither_shown_nor_searched() {
    let hides_keys = Dashboard::new(operate(&with_keys().await))
        .redact(|shown| matches!(shown.field, Field::Key).then(|| "hidden".to_owned()));
    let browser = Browser::new(hides_keys);
    for path in ["/search", "/job?queue=mails&id=ended"] {
        let page = browser.page(path).await;
        assert!(page.contains("<bdi>hidden</bdi>") && !page.contains("order 17"), "{path}: {page}");
    }
    assert_eq!(browser.get("/search?key=order+17").await.status, StatusCode::FORBIDDEN);
    // A page that found the job by this text would reveal its key.
    let found = browser.page("/search?find=order+17").await;
    assert!(!found.contains("<bdi>waiting</bdi>") && !found.contains("search?key="), "{found}");
}
