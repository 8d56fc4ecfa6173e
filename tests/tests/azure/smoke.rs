//! Every operation of the port once over Azurite, by key, by SAS and by token.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jobqueue::QueueName;
use jobqueue::Runtime;
use jobqueue::azure::Options;
use jobqueue::settings::Metadata;
use jobqueue::storage::{BlobName, ContainerName};
use jobqueue::storage::{
    Condition, Created, ExpiredReceipt, GetMessages, LeaseId, PutBlob, PutMessage, Storage, StoreErrorKind,
    UpdateMessage,
};
use jobqueue_tests::azurite::{Azurite, Certificate, FakeToken};
use jobqueue_tests::sas;

const MINUTE: Duration = Duration::from_secs(60);

fn unique(prefix: &str) -> String {
    format!("{prefix}-{}", uuid::Uuid::new_v4().simple())
}

async fn every_queue_operation(storage: &Storage) {
    let queues = storage.queues();
    let queue = QueueName::new(unique("smoke")).unwrap();
    let metadata = Metadata::new().with("poisonthreshold", "3");
    assert_eq!(queues.create_queue(&queue, &metadata).await.unwrap(), Created::New);
    assert_eq!(queues.create_queue(&queue, &metadata).await.unwrap(), Created::Existed);
    let other = queues.create_queue(&queue, &Metadata::new().with("a", "b")).await.unwrap_err();
    assert_eq!(other.kind(), StoreErrorKind::QueueAlreadyExists, "{other}");
    queues.set_queue_metadata(&queue, &Metadata::new().with("a1", "x").with("a_b", "y")).await.unwrap();
    let properties = queues.queue_properties(&queue).await.unwrap();
    assert_eq!(properties.metadata, Metadata::new().with("a1", "x").with("a_b", "y"));
    assert!(queues.list_queues(&queue.as_str()[..20]).await.unwrap().contains(&queue));

    let text = "<a> & \"b\"\r\n\tü€😀 ]]> ";
    let put = queues.put(&queue, PutMessage::new(text)).await.unwrap();
    assert_eq!(put.expires, None);
    queues.put(&queue, PutMessage::new("").with_ttl(Some(MINUTE))).await.unwrap();
    let peeked = queues.peek(&queue, 32).await.unwrap();
    assert_eq!(peeked.len(), 2);
    assert_eq!(peeked[0].text.as_deref(), Ok(text));
    let got = queues.get(&queue, GetMessages::new(32, MINUTE)).await.unwrap().messages;
    assert_eq!(got.len(), 2);
    let (first, second) = (&got[0], &got[1]);
    assert_eq!(first.text.as_deref(), Ok(text));
    assert_eq!(first.dequeue_count, 1);
    assert_eq!(second.text.as_deref(), Ok(""));
    assert!(second.expires.is_some());
    let change = |text: Option<&str>| UpdateMessage::new(MINUTE).with_text(text.map(str::to_owned));
    let updated = queues.update(&queue, &first.message, change(Some("new & better"))).await.unwrap();
    let stale = queues.update(&queue, &first.message, change(None)).await.unwrap_err();
    assert!(stale.is_lease_lost() && !stale.is_ambiguous(), "{stale}");
    let mut fresh = first.message.clone();
    fresh.receipt = updated.receipt;
    let released = UpdateMessage::new(Duration::ZERO);
    queues.update(&queue, &fresh, released).await.unwrap();
    let again = queues.get(&queue, GetMessages::new(1, MINUTE)).await.unwrap().messages;
    assert_eq!(again[0].text.as_deref(), Ok("new & better"));
    assert_eq!(again[0].dequeue_count, 2);
    queues.delete(&queue, &again[0].message, ExpiredReceipt::Refuse).await.unwrap();
    let gone = queues.delete(&queue, &again[0].message, ExpiredReceipt::Refuse).await.unwrap_err();
    assert_eq!(gone.kind(), StoreErrorKind::MessageNotFound, "{gone}");
    let many = queues.put_all(&queue, (0..40).map(|n| PutMessage::new(n.to_string())).collect()).await;
    assert!(many.iter().all(Result::is_ok));
    let got = queues.get(&queue, GetMessages::new(32, MINUTE)).await.unwrap().messages;
    let gone =
        queues.delete_all(&queue, got.into_iter().map(|m| m.message).collect(), ExpiredReceipt::Refuse).await;
    assert!(gone.len() == 32 && gone.iter().all(Result::is_ok));
}

async fn whole_queue_operations(storage: &Storage) {
    let queues = storage.queues();
    let queue = QueueName::new(unique("smoke")).unwrap();
    queues.create_queue(&queue, &Metadata::new()).await.unwrap();
    queues.put(&queue, PutMessage::new("x")).await.unwrap();
    queues.clear(&queue).await.unwrap();
    assert_eq!(queues.queue_properties(&queue).await.unwrap().approximate_count, 0);
    queues.delete_queue(&queue).await.unwrap();
    let gone = queues.put(&queue, PutMessage::new("x")).await.unwrap_err();
    assert_eq!(gone.kind(), StoreErrorKind::QueueNotFound, "{gone}");
    assert!(!gone.is_ambiguous());
}

async fn every_blob_operation(storage: &Storage) {
    let blobs = storage.blobs();
    let container = ContainerName::new(unique("smoke")).unwrap();
    blobs.create_container(&container).await.unwrap();
    blobs.create_container(&container).await.unwrap();
    let blob = BlobName::new(container.clone(), "20261120/a=b/0190").unwrap();
    let data = Bytes::from_static(b"\x00\xFFpayload");
    let metadata = Metadata::new().with("owner", "me");
    let options = PutBlob::if_absent().with_metadata(metadata.clone());
    let written = blobs.put_blob(&blob, data.clone(), options.clone()).await.unwrap();
    let again = blobs.put_blob(&blob, data.clone(), options).await.unwrap_err();
    assert_eq!(again.kind(), StoreErrorKind::BlobAlreadyExists, "{again}");
    let read = blobs.get_blob(&blob, 1024).await.unwrap();
    assert_eq!(read.data, data);
    assert_eq!(read.properties.etag, written.etag);
    assert_eq!(read.properties.metadata, metadata);
    let large = blobs.get_blob(&blob, 3).await.unwrap_err();
    assert_eq!(large.kind(), StoreErrorKind::TooLarge, "{large}");
    assert_eq!(blobs.get_blob(&blob, 9).await.unwrap().data.len(), 9, "exactly the limit is allowed");
    let empty = BlobName::new(container.clone(), "empty").unwrap();
    blobs.put_blob(&empty, Bytes::new(), PutBlob::new()).await.unwrap();
    assert!(blobs.get_blob(&empty, 0).await.unwrap().data.is_empty());
    assert_eq!(blobs.blob_properties(&blob).await.unwrap().length, 9);
    let wrong = PutBlob::new().with_condition(Condition::IfMatch(jobqueue::storage::ETag::new("\"0x0\"")));
    let wrong = blobs.put_blob(&blob, Bytes::new(), wrong).await.unwrap_err();
    assert_eq!(wrong.kind(), StoreErrorKind::ConditionNotMet, "{wrong}");
    let listed = blobs.list_blobs(&container, "2026", None).await.unwrap();
    assert_eq!(listed.blobs.len(), 1);
    assert_eq!(listed.blobs[0].1, blobs.blob_properties(&blob).await.unwrap());

    every_lease_operation(storage, &blob).await;

    blobs.delete_blob(&blob, None).await.unwrap();
    let gone = blobs.get_blob(&blob, 10).await.unwrap_err();
    assert_eq!(gone.kind(), StoreErrorKind::BlobNotFound, "{gone}");
    blobs.delete_container(&container).await.unwrap();
    let gone = blobs.get_blob(&blob, 10).await.unwrap_err();
    assert_eq!(gone.kind(), StoreErrorKind::ContainerNotFound, "{gone}");
}

async fn every_lease_operation(storage: &Storage, blob: &BlobName) {
    let (blobs, leases) = (storage.blobs(), storage.leases().unwrap());
    let (mine, yours) = (LeaseId::random(&Runtime::new()), LeaseId::random(&Runtime::new()));
    let finite = Duration::from_secs(15);
    assert_eq!(leases.acquire_lease(blob, finite, &mine).await.unwrap(), mine);
    assert_eq!(leases.acquire_lease(blob, finite, &mine).await.unwrap(), mine);
    let taken = leases.acquire_lease(blob, finite, &yours).await.unwrap_err();
    assert_eq!(taken.kind(), StoreErrorKind::LeaseAlreadyPresent, "{taken}");
    assert_eq!(leases.renew_lease(blob, &mine).await.unwrap(), mine);
    assert!(blobs.blob_properties(blob).await.unwrap().is_leased);
    let unleased = blobs.put_blob(blob, Bytes::new(), PutBlob::new()).await.unwrap_err();
    assert_eq!(unleased.kind(), StoreErrorKind::LeaseIdMissing, "{unleased}");
    blobs.put_blob(blob, Bytes::new(), PutBlob::new().with_lease(mine)).await.unwrap();
    leases.release_lease(blob, &mine).await.unwrap();
    assert!(!blobs.blob_properties(blob).await.unwrap().is_leased);
}

#[tokio::test]
async fn by_account_key() {
    let azurite = Azurite::shared();
    let _log = azurite.log_on_failure();
    let storage =
        Storage::open(Options::from_connection_string(&azurite.connection_string()).unwrap()).await.unwrap();
    every_queue_operation(&storage).await;
    whole_queue_operations(&storage).await;
    every_blob_operation(&storage).await;
    every_queue_operation(&storage.detached()).await;
}

#[tokio::test]
async fn by_shared_access_signature() {
    let azurite = Azurite::shared();
    let _log = azurite.log_on_failure();
    let sas = sas::account_sas_for("sco", "rwdlacup", "2100-01-01T00:00:00Z");
    let string = sas::connection_string(azurite.queue_endpoint(), azurite.blob_endpoint(), &sas);
    let storage = Storage::open(Options::from_connection_string(&string).unwrap()).await.unwrap();
    every_queue_operation(&storage).await;
    every_blob_operation(&storage).await;
}

#[tokio::test]
async fn by_token_over_https() {
    let azurite = Azurite::shared_https();
    let _log = azurite.log_on_failure();
    let storage = Storage::open(entra(azurite)).await.unwrap();
    every_queue_operation(&storage).await;
    every_blob_operation(&storage).await;
}

/// F15: a certificate that is not trusted is refused, and no request goes over plain http instead.
#[tokio::test]
async fn an_unknown_certificate_is_refused() {
    let azurite = Azurite::shared_https();
    let options = Options::from_endpoint(azurite.queue_endpoint()).unwrap();
    let options = options.blob_endpoint(azurite.blob_endpoint());
    let storage = Storage::open(options.credential(Arc::new(FakeToken::default()))).await.unwrap();
    let error = storage.queues().queue_properties(&QueueName::new("abc").unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
}

/// F15: a certificate for another host is refused too, even from a trusted authority.
#[tokio::test]
async fn a_certificate_for_another_host_is_refused() {
    let azurite = Azurite::start_https(Certificate::for_names(&["storage.example"]));
    let storage = Storage::open(entra(&azurite)).await.unwrap();
    let error = storage.queues().queue_properties(&QueueName::new("abc").unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("certificate"), "{error}");
}

#[tokio::test]
async fn wrong_options_are_refused_when_they_are_used() {
    let options = || Options::from_endpoint("https://account.queue.core.windows.net").unwrap();
    let addresses =
        ["no address", "http://127.0.0.1:10000/account"].map(|wrong| options().blob_endpoint(wrong));
    for wrong in addresses.into_iter().chain([options().root_certificate(b"no certificate")]) {
        let refused = Storage::open(wrong).await.unwrap_err();
        assert_eq!(refused.kind(), jobqueue::ErrorKind::Configuration, "{refused}");
    }
    let signed = options().blob_endpoint("https://account.blob.core.windows.net/?sig=hunter2");
    assert!(!format!("{signed:?}").contains("hunter2"));
}

/// Tokens are not sent in clear text.
#[tokio::test]
async fn tokens_need_https() {
    let http = Azurite::shared();
    Options::from_endpoint(http.queue_endpoint()).unwrap_err();
    let by_key = Options::from_connection_string(&http.connection_string()).unwrap();
    Storage::open(by_key.credential(Arc::new(FakeToken::default()))).await.unwrap_err();
}

#[tokio::test]
async fn one_string_connects() {
    let storage = Storage::connect(&Azurite::shared().connection_string()).await.unwrap();
    assert_eq!(storage.description(), "azure:devstoreaccount1");
    storage.queues().list_queues("nothing").await.unwrap();
    let error = Storage::connect("AccountName=x;AccountKey=hunter2!").await.unwrap_err();
    let shown = format!("{error} {error:?}");
    assert!(shown.contains("AccountKey") && !shown.contains("hunter2"), "{shown}");
}

fn entra(azurite: &Azurite) -> Options {
    let pem = azurite.certificate.as_ref().expect("https").pem.clone();
    let options = Options::from_endpoint(azurite.queue_endpoint()).unwrap();
    let options = options.blob_endpoint(azurite.blob_endpoint());
    options.root_certificate(pem.as_bytes()).credential(Arc::new(FakeToken::default()))
}
