//! Tests of the adapter with a service in this process.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use azure_core::credentials::{AccessToken, TokenCredential, TokenRequestOptions};
use azure_core::http::headers::Headers;
use azure_core::http::{AsyncRawResponse, HttpClient, Method, Request};
use jobqueue_storage::{BlobName, OpenStores as _, PutBlob, PutMessage, StoreErrorKind, Stores};

use azure_core::time::OffsetDateTime;

use crate::Options;

/// Answers each request after a pause, and records it.
#[derive(Debug)]
struct Service {
    pause: Duration,
    answers: fn(&Request) -> (u16, String),
    seen: Mutex<Vec<String>>,
}

#[async_trait]
impl HttpClient for Service {
    async fn execute_request(&self, request: &Request) -> azure_core::Result<AsyncRawResponse> {
        self.seen.lock().unwrap().push(format!("{} {}", request.method().as_str(), request.url()));
        tokio::time::sleep(self.pause).await;
        let mut headers = Headers::new();
        headers.insert("x-ms-request-id", "1");
        headers.insert("etag", "\"1\"");
        headers.insert("last-modified", "Fri, 20 Nov 2026 20:37:46 GMT");
        let (status, body) = (self.answers)(request);
        if status == 409 {
            headers.insert("x-ms-error-code", body.clone());
        }
        Ok(AsyncRawResponse::from_bytes(status.into(), headers, body))
    }
}

async fn open(pause: u64, answers: fn(&Request) -> (u16, String)) -> (Arc<Service>, Stores) {
    let service = Service { pause: Duration::from_secs(pause), answers, seen: Mutex::default() };
    let service = Arc::new(service);
    let options = Options::from_connection_string("UseDevelopmentStorage=true").unwrap();
    let stores = options.in_process(Arc::clone(&service) as _).open().await.unwrap();
    (service, stores)
}

fn blob() -> BlobName {
    BlobName::new("blobs".parse().unwrap(), "a").unwrap()
}

/// 16 MiB in 100 seconds: a slow connection, not a hanging service.
#[tokio::test(start_paused = true)]
async fn large_content_has_more_time_than_a_small_message() {
    let ok = |request: &Request| match request.method() {
        Method::Put => (201, String::new()),
        _ => (200, "x".to_owned()),
    };
    let (_, stores) = open(100, ok).await;
    let content = vec![0; 16 << 20];
    stores.blobs.put_blob(&blob(), content.into(), PutBlob::new()).await.unwrap();
    assert_eq!(&stores.blobs.get_blob(&blob(), 16 << 20).await.unwrap().data[..], b"x");
    let error = stores.blobs.put_blob(&blob(), "small".into(), PutBlob::new()).await.unwrap_err();
    assert!(error.kind() == StoreErrorKind::Timeout && error.is_ambiguous(), "{error}");
}

fn page(queue: &str, next: &str) -> (u16, String) {
    let queues = format!("<Queues><Queue><Name>{queue}</Name></Queue></Queues>");
    (200, format!("<EnumerationResults>{queues}<NextMarker>{next}</NextMarker></EnumerationResults>"))
}

#[tokio::test]
async fn listing_goes_on_behind_a_page_of_external_names() {
    let pages = |request: &Request| match request.url().query_pairs().find(|(name, _)| name == "marker") {
        None => page("$logs", "2"),
        Some(_) => page("orders", ""),
    };
    let (_, stores) = open(0, pages).await;
    assert_eq!(stores.queues.list_queues("").await.unwrap(), ["orders"]);
}

#[tokio::test]
async fn listing_in_a_circle_ends() {
    let (service, stores) = open(0, |_| page("orders", "2")).await;
    assert_eq!(stores.queues.list_queues("").await.unwrap(), ["orders"]);
    assert_eq!(service.seen.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn blob_with_snapshots_is_deleted() {
    let delete = |request: &Request| {
        let includes = request.headers().get_optional_str(&"x-ms-delete-snapshots".into()) == Some("include");
        if includes { (202, String::new()) } else { (409, "SnapshotsPresent".to_owned()) }
    };
    let (_, stores) = open(0, delete).await;
    stores.blobs.delete_blob(&blob(), None).await.unwrap();
}

/// A server in front of the service, or in its place, that answers each request with this status and number
/// of bytes.
#[derive(Debug)]
struct Gateway {
    status: u16,
    length: usize,
    request_id: Option<&'static str>,
}

#[async_trait]
impl HttpClient for Gateway {
    async fn execute_request(&self, _: &Request) -> azure_core::Result<AsyncRawResponse> {
        let mut headers = Headers::new();
        headers.insert("content-type", "text/html");
        headers.insert("retry-after", "3600");
        headers.insert("date", "Fri, 20 Nov 2026 20:37:46 GMT");
        if let Some(id) = self.request_id {
            headers.insert("x-ms-request-id", id);
        }
        Ok(AsyncRawResponse::from_bytes(self.status.into(), headers, vec![b'x'; self.length]))
    }
}

async fn behind(gateway: Gateway) -> Stores {
    let options = Options::from_connection_string("UseDevelopmentStorage=true").unwrap();
    options.in_process(Arc::new(gateway)).open().await.unwrap()
}

/// Neither status nor length nor headers of another server's answer are taken for the service's.
#[tokio::test(start_paused = true)]
async fn answer_of_another_server_is_an_outage() {
    for status in [200, 201, 302, 400, 401, 403, 404, 405, 407, 408, 412, 413, 429, 500, 502, 503] {
        for length in [1_000, 2 << 20] {
            let stores = behind(Gateway { status, length, request_id: None }).await;
            let error = stores.blobs.get_blob(&blob(), 1 << 20).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{status} {length}: {error}");
            assert!(!error.is_ambiguous(), "{status} {length}: {error}");
            let queue = "orders".parse().unwrap();
            let error = stores.queues.put(&queue, PutMessage::new("x")).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{status} {length}: {error}");
            assert!(error.is_ambiguous(), "{status} {length}: {error}");
            assert_eq!(error.retry_after(), None, "{status} {length}");
            assert_eq!(error.answered_at(), None, "{status} {length}");
        }
    }
}

/// Only a blob can be too long. A long error page is an error.
#[tokio::test(start_paused = true)]
async fn length_of_an_error_is_not_the_length_of_the_blob() {
    for (status, kind) in [(500, StoreErrorKind::Unavailable), (200, StoreErrorKind::TooLarge)] {
        let stores = behind(Gateway { status, length: 2 << 20, request_id: Some("1") }).await;
        let error = stores.blobs.get_blob(&blob(), 1 << 20).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{status}: {error}");
    }
}

/// Counts the tokens that it returns.
#[derive(Debug, Default)]
struct Tokens(AtomicUsize);

#[async_trait]
impl TokenCredential for Tokens {
    async fn get_token(
        &self,
        _: &[&str],
        _: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(AccessToken::new("token", OffsetDateTime::now_utc() + Duration::from_secs(3_600)))
    }
}

#[tokio::test]
async fn queues_and_blobs_share_a_token() {
    let tokens = Arc::new(Tokens::default());
    let answers = |request: &Request| match request.url().host_str() {
        Some("orders.queue.core.windows.net") => page("orders", ""),
        _ => (200, "x".to_owned()),
    };
    let service = Service { pause: Duration::ZERO, answers, seen: Mutex::default() };
    let options = Options::from_endpoint("https://orders.queue.core.windows.net").unwrap();
    let options = options.credential(Arc::clone(&tokens) as _).in_process(Arc::new(service));
    let stores = options.open().await.unwrap();
    assert_eq!(stores.queues.list_queues("").await.unwrap(), ["orders"]);
    assert_eq!(&stores.blobs.get_blob(&blob(), 1).await.unwrap().data[..], b"x");
    assert_eq!(tokens.0.load(Ordering::Relaxed), 1);
}

// round 30, storages 3: a list was tried for minutes.
#[tokio::test(start_paused = true)]
async fn list_is_given_up_while_the_service_does_not_answer() {
    let (service, stores) = open(3_600, |_| (201, String::new())).await;
    let began = tokio::time::Instant::now();
    let messages = vec![PutMessage::new("text"); 100].into();
    let answers = stores.queues.put_all(&"orders".parse().unwrap(), messages).await;
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
    let errors: Vec<_> = answers.into_iter().map(Result::unwrap_err).collect();
    assert_eq!(errors.len(), 100);
    assert!(errors.iter().all(|error| error.kind() == StoreErrorKind::Timeout));
    let sent = service.seen.lock().unwrap().len();
    assert!(sent < 20, "{sent} were sent");
    assert_eq!(errors.iter().filter(|error| error.is_ambiguous()).count(), sent);
}
