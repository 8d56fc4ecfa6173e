//! Pages, metrics and figures for autoscalers share reads of the storage.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use jobqueue::Storage;
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue_admin::RawSend;
use jobqueue_testing::faults::{Call, Fault, Faulty};
use tokio::time::Instant;
use tower::ServiceExt;

use super::support::{Browser, filled, operate};
use crate::{Access, Dashboard};

#[tokio::test(start_paused = true)]
async fn pages_metrics_and_scaling_share_one_reading() {
    let faulty = Faulty::new(&filled().await);
    let browser = Browser::operating(&faulty.storage());
    let readings = || faulty.calls_of(Operation::ListQueues);
    assert_eq!(readings(), 0, "nothing has been requested yet");
    let overview = browser.page("/").await;
    let metrics = browser.page("/metrics").await;
    let scale = browser.page("/scale?queue=mails").await;
    assert!(overview.contains("queues/mails/dead"), "{overview}");
    assert!(metrics.contains("jobqueue_queue_dead_letters{queue=\"mails\"} 1"), "{metrics}");
    assert!(scale.contains("\"dead\":1"), "{scale}");
    assert_eq!(readings(), 1);
    // The next read of each of them has the change of an operator.
    assert_eq!(browser.post("/do/pause", &[("queue", "mails")]).await.status, StatusCode::SEE_OTHER);
    let metrics = browser.page("/metrics").await;
    assert!(metrics.contains("jobqueue_queue_paused{queue=\"mails\"} 1"), "{metrics}");
    assert!(browser.page("/").await.contains("paused"));
    assert_eq!(readings(), 2);
}

#[tokio::test]
async fn metrics_and_scaling_need_the_access_of_the_pages() {
    let storage = filled().await;
    let strangers = Browser::new(Dashboard::new(operate(&storage)).access(|_| Access::forbidden()));
    let unnamed = Browser::new(Dashboard::new(operate(&storage)).credentials("ada", "secret"));
    for path in ["/metrics", "/scale", "/scale?queue=mails"] {
        assert_eq!(strangers.get(path).await.status, StatusCode::FORBIDDEN, "{path}");
        assert_eq!(unnamed.get(path).await.status, StatusCode::UNAUTHORIZED, "{path}");
        let readers =
            Browser::new(Dashboard::new(operate(&storage)).access(|_| Access::read_only("prometheus")));
        assert_eq!(readers.get(path).await.status, StatusCode::OK, "{path}");
    }
}

#[tokio::test]
async fn token_opens_the_figures_in_addition_to_the_access_function() {
    let storage = filled().await;
    let access = |parts: &axum::http::request::Parts| {
        if parts.headers.contains_key("x-user") { Access::read_only("ada") } else { Access::forbidden() }
    };
    let browser = Browser::new(Dashboard::new(operate(&storage)).access(access).metrics_token("figures"));
    let status = async |path: &str, name: &str, value: &str| {
        let request = Request::get(path).header(name, value).body(Body::empty()).unwrap();
        browser.send(request).await.status
    };
    for path in ["/metrics", "/scale"] {
        assert_eq!(status(path, "authorization", "Bearer figures").await, StatusCode::OK, "{path}");
        assert_eq!(status(path, "authorization", "Bearer wrong").await, StatusCode::FORBIDDEN, "{path}");
    }
    assert_eq!(status("/", "authorization", "Bearer figures").await, StatusCode::FORBIDDEN);
    assert_eq!(status("/", "x-user", "ada").await, StatusCode::OK);
}

/// Returns a dashboard whose storage refuses to count the messages of a queue.
async fn without_the_figures_of(queue: &'static str) -> Browser {
    let faulty = Faulty::new(&filled().await);
    let refuse =
        move |call: &Call| (call.subject == queue).then_some(Fault::Refuse(StoreErrorKind::Unauthorized));
    faulty.on(Operation::QueueProperties, refuse);
    Browser::operating(&faulty.storage())
}
#[tokio::test(start_paused = true)]
async fn figure_that_cannot_be_read_is_not_shown_as_zero() {
    let browser = without_the_figures_of("mails-poison").await;
    let page = browser.page("/queues/mails").await;
    assert!(page.contains("the dead letters cannot be counted") && page.contains(">?</a>"), "{page}");
    assert!(page.contains(">open<") && page.contains("<dt>Waiting</dt><dd>1</dd>"), "{page}");
    let overview = browser.page("/").await;
    assert!(overview.contains("dead\">?</a></dd>"), "{overview}");
    assert!(overview.contains("Dead letters <span class=\"count\">?</span>"), "{overview}");
    assert!(!browser.page("/metrics").await.contains("jobqueue_queue_dead_letters{queue=\"mails\"}"));
    let browser = without_the_figures_of("mails").await;
    let overview = browser.page("/").await;
    assert!(overview.contains("<dt>Waiting</dt><dd>?</dd>"), "{overview}");
    assert_eq!(browser.get("/queues/mails").await.status, StatusCode::OK);
    let page = browser.page("/queues/mails").await;
    assert!(page.contains("not read") && page.contains("<dt>Waiting</dt><dd>?</dd>"), "{page}");
    assert!(!page.contains(">open<"), "{page}");
}

/// The page shows who has paused the queue even if its messages cannot be read.
#[tokio::test(start_paused = true)]
async fn queue_whose_messages_cannot_be_read_shows_the_rest() {
    for (fault, reason) in
        [(Fault::Refuse(StoreErrorKind::Unavailable), ""), (Fault::Hang, "no answer within 8s")]
    {
        let faulty = Faulty::new(&filled().await);
        let browser = Browser::operating(&faulty.storage());
        browser.page("/").await;
        faulty.plan_always(Operation::Peek, fault);
        let page = browser.page("/queues/mails").await;
        assert!(
            page.contains(">open<") && page.contains(&format!("They cannot be read: {reason}")),
            "{page}"
        );
        assert!(!page.contains("No message is visible"), "{page}");
    }
}

// The page used to give up in the same tick in which its snapshot left out the hanging parts.
#[tokio::test(start_paused = true)]
async fn queue_and_records_that_hang_are_no_outage_of_the_storage() {
    let faulty = Faulty::new(&filled().await);
    let browser = Browser::operating(&faulty.storage());
    faulty.on(Operation::ListBlobs, |call| call.subject.contains("jobqueue-workers").then_some(Fault::Hang));
    assert_eq!(browser.get("/").await.status, StatusCode::OK);
    faulty.plan_always(Operation::Peek, Fault::Hang);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!browser.page("/").await.contains("The storage does not answer"));
}

/// On Azure Storage, the records are in another service than the queues.
#[tokio::test(start_paused = true)]
async fn queues_are_shown_while_the_records_of_workers_cannot_be_read() {
    let faulty = Faulty::new(&filled().await);
    let browser = Browser::operating(&faulty.storage());
    faulty.on(Operation::ListBlobs, |call| {
        call.subject.contains("jobqueue-workers").then_some(Fault::Refuse(StoreErrorKind::Unavailable))
    });
    for path in ["/", "/queues/mails", "/queues/mails/dead"] {
        let page = browser.page(path).await;
        assert!(page.contains("The records of workers cannot be read: "), "{path}: {page}");
        assert!(!page.contains("The storage does not answer"), "{path}: {page}");
        assert!(!page.contains("no worker seen"), "unknown does not mean none: {path}: {page}");
    }
    assert!(!browser.page("/workers").await.contains("No worker is running"));
    let metrics = browser.page("/metrics").await;
    for line in [
        "jobqueue_scrape_success 1",
        "jobqueue_workers_readable 0",
        "jobqueue_queue_length{queue=\"mails\"} 1",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    for missing in ["jobqueue_queue_workers{", "jobqueue_queue_desired_workers{", "jobqueue_workers{"] {
        assert!(!metrics.contains(missing), "{missing}: {metrics}");
    }
    let scale = browser.get("/scale").await;
    assert_eq!(scale.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(scale.text.contains("the records of workers cannot be read"), "{}", scale.text);
}

#[tokio::test(start_paused = true)]
async fn job_is_found_while_the_journal_cannot_be_read() {
    let faulty = Faulty::new(&filled().await);
    let browser = Browser::operating(&faulty.storage());
    faulty.on(Operation::ListBlobs, |call| {
        call.subject.contains("jobqueue-history").then_some(Fault::Refuse(StoreErrorKind::Unavailable))
    });
    for (path, shown) in
        [("/search?id=waiting", ">waiting</span>"), ("/job?queue=mails&id=waiting", "id=\"cancel\"")]
    {
        let page = browser.page(path).await;
        assert!(page.contains("The journal of ended jobs cannot be read: "), "{path}: {page}");
        assert!(page.contains(shown) && !page.contains("The journal has no such job"), "{path}: {page}");
    }
}

#[tokio::test(start_paused = true)]
async fn search_names_what_it_could_not_read() {
    let faulty = Faulty::new(&filled().await);
    let browser = Browser::operating(&faulty.storage());
    let page = browser.page("/search?id=waiting").await;
    assert!(!page.contains("Not looked at") && page.contains("As of "), "{page}");
    let page = browser.page("/search?id=waiting&queue=misspelt").await;
    assert!(
        page.contains("Not looked at, because they cannot be read, or not within 8 seconds: misspelt"),
        "{page}"
    );
    faulty.plan_always(Operation::ListQueues, Fault::Refuse(StoreErrorKind::Unavailable));
    tokio::time::sleep(Duration::from_secs(60)).await;
    let page = browser.page("/search?id=waiting").await;
    assert!(page.contains("The storage does not answer"), "{page}");
    assert!(
        page.contains(
            "Not looked at, because they cannot be read, or not within 8 seconds: the records of workers"
        ),
        "{page}"
    );
}

#[tokio::test(start_paused = true)]
async fn cancellation_without_a_worker_says_so() {
    let browser = Browser::operating(&filled().await);
    let cancelled = browser.post("/do/cancel?queue=mails&id=waiting", &[]).await;
    assert!(cancelled.location().ends_with("done=cancel-unserved"), "{}", cancelled.location());
    let page = browser.page("/job?queue=mails&id=waiting&done=cancel-unserved").await;
    assert!(page.contains("No worker with a record serves the queue"), "{page}");
}
#[tokio::test(start_paused = true)]
async fn failed_reading_is_shown_by_all_and_not_repeated() {
    let faulty = Faulty::new(&filled().await);
    let browser = Browser::operating(&faulty.storage());
    faulty.plan_always(Operation::ListQueues, Fault::Refuse(StoreErrorKind::Unavailable));
    for path in ["/", "/workers", "/dead"] {
        let answer = browser.get(path).await;
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{path}");
        assert!(answer.text.contains("has not answered since this dashboard started"), "{}", answer.text);
        for empty in ["There are no queues", "No worker", "No queue has dead letters"] {
            assert!(!answer.text.contains(empty), "{path} shows an outage as {empty:?}");
        }
    }
    assert_eq!(faulty.calls_of(Operation::ListQueues), 1, "pages wait for the next interval");
    assert!(browser.page("/metrics").await.contains("jobqueue_scrape_success 0"));
    assert_eq!(browser.get("/scale").await.status, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test(start_paused = true)]
async fn reading_that_hung_is_not_repeated_at_once() {
    let faulty = Faulty::new(&filled().await);
    let browser = Browser::operating(&faulty.storage());
    browser.page("/").await;
    faulty.plan_always(Operation::ListQueues, Fault::Hang);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let seconds_of_a_page = async |delay: u64| {
        tokio::time::sleep(Duration::from_secs(delay)).await;
        let began = Instant::now();
        assert!(browser.page("/workers").await.contains("no answer within"));
        began.elapsed().as_secs()
    };
    // The second page is requested halfway through the read of the first, and the last page after its end.
    let pages = tokio::join!(seconds_of_a_page(0), seconds_of_a_page(10), seconds_of_a_page(22));
    assert_eq!(pages, (9, 9, 0));
}

/// Returns a dashboard and its storage, which has a large job in `mails` and takes a second for each call of
/// `operation`.
async fn slow(operation: Operation) -> (Browser, Faulty) {
    let storage = Storage::memory();
    let admin = operate(&storage);
    admin.create_queue("mails").await.unwrap();
    let large = format!(r#"{{"to":"{}"}}"#, "x".repeat(100_000));
    admin.send("mails", RawSend::json("mail", &large).unwrap().id("large")).await.unwrap();
    let faulty = Faulty::new(&storage);
    faulty.plan_always(operation, Fault::DelayBefore(Duration::from_secs(1)));
    (Browser::operating(&faulty.storage()), faulty)
}
#[tokio::test(start_paused = true)]
async fn viewers_read_a_bounded_number_of_payloads_and_journals_at_the_same_time() {
    let cases = [
        (Operation::GetBlob, "/job?queue=mails&id=large&show=content"),
        (Operation::GetBlob, "/send?queue=mails&id=large"),
        (Operation::ListBlobs, "/search?key=ada"),
    ];
    for (operation, path) in cases {
        let (browser, faulty) = slow(operation).await;
        // The first request reads everything that viewers share.
        browser.get(path).await;
        let (began, before) = (Instant::now(), faulty.calls_of(operation));
        let asked = (0..40).map(|_| browser.get(path));
        futures_util::future::join_all(asked).await;
        let calls = faulty.calls_of(operation) - before;
        let seconds = began.elapsed().as_secs();
        assert!(calls as u64 <= 8 * seconds.max(1), "{path}: {calls} calls in {seconds} seconds");
    }
}
#[tokio::test]
async fn streams_of_open_pages_have_a_bound() {
    let browser = Browser::operating(&filled().await);
    let stream = || Request::get("/events").body(Body::empty()).unwrap();
    let mut open = Vec::new();
    for _ in 0..200 {
        let page = browser.0.clone().oneshot(stream()).await.unwrap();
        assert_eq!(page.status(), StatusCode::OK);
        open.push(page);
    }
    assert_eq!(browser.get("/events").await.status, StatusCode::TOO_MANY_REQUESTS);
    // A page that is closed makes room for another.
    open.pop();
    assert_eq!(browser.0.clone().oneshot(stream()).await.unwrap().status(), StatusCode::OK);
}
