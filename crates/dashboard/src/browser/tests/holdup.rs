//! The explanation of a queue, on its page and as JSON.

use axum::http::StatusCode;
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue_admin::RawSend;
use jobqueue_testing::faults::{Fault, Faulty};

use super::support::{Browser, filled, operate};
use crate::{Dashboard, Field};

#[tokio::test]
async fn page_of_a_queue_says_why_nothing_runs_and_what_to_do() {
    let storage = filled().await;
    let browser = Browser::operating(&storage);
    let page = browser.page("/queues/mails").await;
    assert!(page.contains("What holds it up") && page.contains("<code>no_worker</code>"), "{page}");
    assert!(page.contains("<bdi>jobqueue workers --all</bdi>"), "{page}");
    assert!(page.contains("<dt>Empty in</dt><dd>unknown</dd>"), "{page}");
    operate(&storage).pause("mails").await.unwrap();
    let browser = Browser::operating(&storage);
    assert!(browser.page("/queues/mails").await.contains("<bdi>jobqueue queue resume mails</bdi>"));
    let found = browser.page("/api/explain?queue=mails").await;
    assert!(found.contains("\"code\":\"paused\"") && found.contains("\"ended_per_second\":null"), "{found}");
    assert_eq!(browser.get("/api/explain?queue=none").await.status, StatusCode::NOT_FOUND);
    assert_eq!(browser.get("/api/explain?queue=mails-poison").await.status, StatusCode::BAD_REQUEST);
    // Dead letters wait for no worker.
    assert!(!browser.page("/queues/mails-poison").await.contains("What holds it up"));
}

// newcomers 33: the kinds and limits of jobs that could not be read were left out without a word.
#[tokio::test(start_paused = true)]
async fn jobs_that_cannot_be_read_are_a_reason() {
    let faulty = Faulty::new(&filled().await);
    let browser = Browser::operating(&faulty.storage());
    browser.page("/").await;
    faulty.plan_always(Operation::Peek, Fault::Refuse(StoreErrorKind::Unavailable));
    let page = browser.page("/queues/mails").await;
    assert!(page.contains("<code>next_unread</code>") && page.contains("They cannot be read"), "{page}");
    assert!(page.contains("so their kinds and limits are unknown: "), "{page}");
    let found = browser.page("/api/explain?queue=mails").await;
    assert!(found.contains("\"code\":\"next_unread\""), "{found}");
}

#[tokio::test]
async fn keys_of_the_backlog_are_shown_on_request_and_redacted() {
    let storage = filled().await;
    for id in ["1", "2"] {
        let mail = RawSend::json("mail", r#"{"to":"ada"}"#).unwrap().id(id).key("ada@example.org");
        operate(&storage).send("mails", mail).await.unwrap();
    }
    let browser = Browser::operating(&storage);
    assert!(!browser.page("/queues/mails").await.contains("ada@example.org"));
    let page = browser.page("/queues/mails?groups=1").await;
    assert!(page.contains("<bdi>ada@example.org</bdi>: 2 jobs"), "{page}");
    assert!(page.contains("Waiting without a key: 1"), "{page}");
    // D31: jobs of several kinds may have the key.
    let hide = |shown: &crate::Shown<'_>| {
        (shown.field == Field::Key && shown.kind.is_none()).then(|| "a customer".to_owned())
    };
    let browser = Browser::new(Dashboard::new(operate(&storage)).redact(hide));
    let page = browser.page("/queues/mails?groups=1").await;
    assert!(page.contains("<bdi>a customer</bdi>: 2 jobs") && !page.contains("ada@example.org"), "{page}");
}
