//! Answers that arrive and are wrong: refusals, redirects, huge, malformed, and pages of a gateway.

use jobqueue::QueueName;
use jobqueue::storage::{ExpiredReceipt, PutBlob, PutMessage, StoreErrorKind};
use jobqueue_tests::azurite::Azurite;
use jobqueue_tests::proxy::{Fault, Proxy};

use crate::lost_answers::{Bench, change, open};

/// F12: an expired signature is reported apart from every error that a retry could fix, and is not quoted.
#[tokio::test]
async fn expired_signature_is_unauthorized() {
    let azurite = Azurite::shared();
    let sas = jobqueue_tests::sas::account_sas("raup", "2021-01-01T00:00:00Z");
    let string =
        jobqueue_tests::sas::connection_string(azurite.queue_endpoint(), azurite.blob_endpoint(), &sas);
    let storage = open(&string).await;
    let queue = QueueName::new("orders").unwrap();
    let error = storage.queues().put(&queue, PutMessage::new("x")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unauthorized, "{error}");
    assert!(!error.is_retryable() && !error.is_ambiguous());
    let signature = sas.split_once("sig=").unwrap().1;
    assert!(!format!("{error} {error:?}").contains(signature));
}

/// F16: a redirect is not followed, so that no signature goes to the host it names.
#[tokio::test]
async fn redirects_are_not_followed() {
    let bench = Bench::new().await;
    let trap = Proxy::start(Azurite::shared().queue_endpoint()).await;
    let to = trap.endpoint(Azurite::shared().queue_endpoint());
    for status in ["301 Moved", "307 Temporary", "308 Permanent"] {
        let answer =
            format!("HTTP/1.1 {status}\r\nLocation: {to}/orders/messages\r\nContent-Length: 0\r\n\r\n");
        bench.queue_proxy.plan("POST", Fault::Answer(answer.into_bytes()));
        let error = bench.put("x").await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("the endpoint is wrong"), "{error}");
    }
    assert_eq!(trap.seen(), Vec::<String>::new());
}

/// F18: an answer that is too long, declared or not, is not read to its end.
// F105
#[tokio::test]
async fn huge_answers_are_cut_off() {
    let bench = Bench::new().await;
    let (large, outage) = (StoreErrorKind::TooLarge, StoreErrorKind::Unavailable);
    for (head, of_get, of_blob) in [
        (
            "200 OK\r\nx-ms-request-id: 1\r\nContent-Length: 1073741824\r\nETag: \"1\"",
            StoreErrorKind::Protocol,
            large,
        ),
        ("200 OK\r\nx-ms-request-id: 1\r\nETag: \"1\"", StoreErrorKind::Protocol, large),
        ("500 Broken\r\nx-ms-request-id: 1", outage, outage),
        // A gateway's page says nothing of the blob.
        ("502 Bad Gateway\r\nContent-Length: 1073741824", outage, outage),
        ("200 OK", outage, outage),
    ] {
        let head = format!("HTTP/1.1 {head}\r\n\r\n");
        let endless = || Fault::Endless(head.clone().into_bytes(), vec![b'x'; 64 * 1024]);
        bench.queue_proxy.plan("GET", endless());
        let error = bench.get(&bench.storage).await.unwrap_err();
        assert!(error.is_ambiguous() && error.kind() == of_get, "{head}: {error}");
        bench.blob_proxy.outage(Some(endless()));
        let error = bench.storage.blobs().get_blob(&bench.blob("b"), 1024).await.unwrap_err();
        assert_eq!(error.kind(), of_blob, "{head}: {error}");
        bench.blob_proxy.outage(None);
    }
}

// A service that reads ranges as signed numbers refuses one that ends at 2^64.
#[tokio::test]
async fn range_of_a_read_ends_behind_the_longest_blob_that_is_allowed() {
    let bench = Bench::new().await;
    let (blobs, blob) = (bench.storage.blobs(), bench.blob("b"));
    blobs.put_blob(&blob, "12345".into(), PutBlob::new()).await.unwrap();
    for max_bytes in [5, 1024, u64::MAX] {
        assert_eq!(&blobs.get_blob(&blob, max_bytes).await.unwrap().data[..], b"12345");
    }
    let seen = bench.blob_proxy.seen();
    let ranges: Vec<u64> =
        seen.iter().filter_map(|line| line.rsplit_once("bytes=0-")?.1.parse().ok()).collect();
    assert_eq!(ranges, [5, 1024, 5_000 * 1024 * 1024]);
    assert_eq!(blobs.get_blob(&blob, 4).await.unwrap_err().kind(), StoreErrorKind::TooLarge);
}

/// F19: a message without a receipt is skipped. One without a count was delivered once, and keeps its text.
#[tokio::test]
async fn malformed_message_spoils_no_others() {
    let bench = Bench::new().await;
    for text in ["one", "two"] {
        bench.put(text).await.unwrap();
    }
    let count = || {
        Fault::Replace(
            "<DequeueCount>1</DequeueCount><MessageText>one".into(),
            "<New/><MessageText>one".into(),
        )
    };
    bench.queue_proxy.plan("GET", count());
    let got = bench.get(&bench.storage).await.unwrap();
    assert_eq!(got.len(), 2);
    assert_eq!(got[0].text.as_deref(), Ok("one"), "{got:?}");
    assert_eq!(got[0].dequeue_count, 1, "{got:?}");
    assert_eq!(got[1].text.as_deref(), Ok("two"));
}

/// A gateway that passes the service's headers on, and the answer under another status.
fn with_status(status: &str) -> Fault {
    let head =
        format!("HTTP/1.1 {status}\r\nx-ms-request-id: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    Fault::Answer(head.into_bytes())
}

/// A gateway that answers every request with 200 and a page of its own: W-http.
fn page() -> Fault {
    let body = "<html><body>Please sign in.</body></html>";
    let length = body.len();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    Fault::Answer(format!("{head}{body}").into_bytes())
}

#[tokio::test]
async fn a_page_of_html_is_never_an_empty_result() {
    let bench = Bench::new().await;
    bench.put("x").await.unwrap();
    let container = bench.blob("b").container().clone();
    let (queues, blobs) = (bench.storage.queues(), bench.storage.blobs());
    bench.queue_proxy.outage(Some(page()));
    assert!(bench.get(&bench.storage).await.unwrap_err().is_ambiguous());
    queues.peek(&bench.queue, 1).await.unwrap_err();
    queues.list_queues("").await.unwrap_err();
    queues.queue_properties(&bench.queue).await.unwrap_err();
    bench.blob_proxy.outage(Some(page()));
    let error = blobs.list_blobs(&container, "", None).await.unwrap_err();
    assert!(error.to_string().contains("proxy or gateway"), "{error}");
    blobs.get_blob(&bench.blob("b"), 1024).await.unwrap_err();
}

#[tokio::test]
async fn a_change_answered_by_a_page_of_html_stays_open() {
    changes_stay_open_that_are_answered_by(page).await;
}

// Jobs that were stored were taken for refused, and their payloads were deleted.
#[tokio::test]
async fn a_change_answered_with_another_status_stays_open() {
    for status in ["200 OK", "207 Multi-Status", "304 Not Modified"] {
        changes_stay_open_that_are_answered_by(|| with_status(status)).await;
    }
}

async fn changes_stay_open_that_are_answered_by(fault: impl Fn() -> Fault) {
    let bench = Bench::new().await;
    let message = bench.leased().await;
    let queues = bench.storage.queues();
    let mut errors = Vec::new();
    bench.queue_proxy.plan("POST", fault());
    errors.push(bench.put("x").await.unwrap_err());
    bench.queue_proxy.plan("PUT", fault());
    errors.push(queues.update(&bench.queue, &message, change(Some("y"))).await.unwrap_err());
    bench.queue_proxy.plan("DELETE", fault());
    errors.push(queues.delete(&bench.queue, &message, ExpiredReceipt::Refuse).await.unwrap_err());
    bench.blob_proxy.plan("PUT", fault());
    let put = bench.storage.blobs().put_blob(&bench.blob("b"), "x".into(), PutBlob::default()).await;
    errors.push(put.unwrap_err());
    assert!(errors.iter().all(jobqueue::storage::StoreError::is_ambiguous), "{errors:?}");
}

/// F38: a receipt with characters that have a meaning in URLs reaches the service unchanged.
#[tokio::test]
async fn receipts_with_special_characters_round_trip() {
    let bench = Bench::new().await;
    let mut message = bench.leased().await;
    message.receipt = jobqueue::storage::PopReceipt::new("AgA+/= %2B&é?#");
    bench.storage.queues().delete(&bench.queue, &message, ExpiredReceipt::Refuse).await.unwrap_err();
    let seen = bench.queue_proxy.seen();
    let line = seen.iter().find(|line| line.starts_with("DELETE")).unwrap();
    let target = line.split(' ').nth(1).unwrap();
    let url = url::Url::parse(&format!("http://x{target}")).unwrap();
    let receipt = url.query_pairs().find(|(name, _)| name == "popreceipt").unwrap().1;
    assert_eq!(receipt, "AgA+/= %2B&é?#");
    assert!(target.contains("%20") && !target.contains('+'), "{target}");
}
