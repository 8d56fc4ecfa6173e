//! Answers of a service in this process.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use azure_core::http::headers::Headers;
use azure_core::http::{AsyncRawResponse, HttpClient, Method, Request};
use jobqueue_storage::{BlobName, OpenStores as _, PutBlob, StoreErrorKind, Stores};

use crate::Options;

/// Answers the requests one by one, each after a pause.
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

/// 16 MiB in 100 seconds: a slow line, and not a service that hangs.
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
    assert_eq!(stores.queues.list_queues("").await.unwrap(), ["orders".parse().unwrap()]);
}

#[tokio::test]
async fn listing_in_a_circle_ends() {
    let (service, stores) = open(0, |_| page("orders", "2")).await;
    assert_eq!(stores.queues.list_queues("").await.unwrap(), ["orders".parse().unwrap()]);
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
