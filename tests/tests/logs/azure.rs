//! F114: a log of everything at TRACE shows no key, no signature, no token and no receipt.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jobqueue::QueueName;
use jobqueue::Runtime;
use jobqueue::azure::Options;
use jobqueue::settings::Metadata;
use jobqueue::storage::{
    Access, ExpiredReceipt, GetMessages, LeaseId, PutBlob, PutMessage, Storage, UpdateMessage,
};
use jobqueue::storage::{BlobName, ContainerName};
use jobqueue_tests::azurite::{self, Azurite, FakeToken};
use jobqueue_tests::log;
use jobqueue_tests::proxy::{Fault, Proxy};
use jobqueue_tests::sas;

/// The secrets that must not occur, and the texts of all errors.
#[derive(Default)]
struct Known {
    secrets: Vec<String>,
    errors: Vec<String>,
}

impl Known {
    fn error<T: std::fmt::Debug>(&mut self, result: Result<T, jobqueue::storage::StoreError>) {
        let error = result.unwrap_err();
        self.errors.push(format!("{error} {error:?}"));
    }
}

async fn a_run(storage: &Storage, known: &mut Known) {
    let queues = storage.queues();
    let queue = QueueName::new(format!("secret-{}", uuid::Uuid::new_v4().simple())).unwrap();
    queues.create_queue(&queue, &Metadata::new()).await.unwrap();
    let payload = format!("payload-{}", uuid::Uuid::new_v4().simple());
    let put = queues.put(&queue, PutMessage::new(&payload)).await.unwrap();
    let options = GetMessages::new(1, Duration::from_secs(60));
    let got = queues.get(&queue, options).await.unwrap().messages.remove(0);
    let change = UpdateMessage::new(Duration::from_secs(60));
    let updated = queues.update(&queue, &got.message, change.clone()).await.unwrap();
    known.error(queues.update(&queue, &got.message, change).await);
    known.error(queues.delete(&queue, &put.message, ExpiredReceipt::Refuse).await);
    let mut fresh = got.message.clone();
    fresh.receipt = updated.receipt;
    known.secrets.push(payload);
    for receipt in [&put.message.receipt, &got.message.receipt, &fresh.receipt] {
        known.secrets.push(receipt.expose().to_owned());
    }
    queues.delete(&queue, &fresh, ExpiredReceipt::Refuse).await.unwrap();
    let container = ContainerName::new(queue.as_str()).unwrap();
    storage.blobs().create_container(&container).await.unwrap();
    let blob = BlobName::new(container, "b").unwrap();
    let content = format!("content-{}", uuid::Uuid::new_v4().simple());
    storage.blobs().put_blob(&blob, Bytes::from(content.clone()), PutBlob::new()).await.unwrap();
    storage.blobs().get_blob(&blob, 1024).await.unwrap();
    known.error(storage.leases().unwrap().renew_lease(&blob, &LeaseId::random(&Runtime::new())).await);
    known.secrets.push(content);
}

// F114
#[tokio::test]
async fn trace_log_shows_no_secret() {
    let log = log::record();
    let mut known = Known::default();
    let azurite = Azurite::shared();
    let by_key = Options::from_connection_string(&azurite.connection_string()).unwrap();
    let storage = Storage::open(by_key.clone()).await.unwrap();
    a_run(&storage, &mut known).await;
    storage.queues().check_access(&QueueName::new("nothing").unwrap(), Access::Process).await.unwrap();

    let sas = sas::account_sas("rwdlacup", "2100-01-01T00:00:00Z");
    let string = sas::connection_string(azurite.queue_endpoint(), azurite.blob_endpoint(), &sas);
    let by_sas = Options::from_connection_string(&string).unwrap();
    a_run(&Storage::open(by_sas.clone()).await.unwrap(), &mut known).await;

    let https = Azurite::shared_https();
    let token = FakeToken::default();
    known.secrets.push(token.signature.clone());
    let pem = https.certificate.as_ref().unwrap().pem.clone();
    let by_token = Options::from_endpoint(https.queue_endpoint()).unwrap();
    let by_token = by_token.blob_endpoint(https.blob_endpoint());
    let by_token = by_token.root_certificate(pem.as_bytes()).credential(Arc::new(token));
    a_run(&Storage::open(by_token.clone()).await.unwrap(), &mut known).await;

    // Failures of the connection, whose reasons like to carry URLs.
    let proxy = Proxy::start(azurite.queue_endpoint()).await;
    let broken =
        sas::connection_string(&proxy.endpoint(azurite.queue_endpoint()), azurite.blob_endpoint(), &sas);
    let broken = Storage::open(Options::from_connection_string(&broken).unwrap()).await.unwrap();
    let queue = QueueName::new("nothing").unwrap();
    for fault in [Fault::Refuse, Fault::DropAnswer, Fault::Truncate(9), Fault::Garble] {
        proxy.plan("POST", fault);
        known.error(broken.queues().put(&queue, PutMessage::new("x")).await);
    }
    let narrow = sas::account_sas("ra", "2100-01-01T00:00:00Z");
    let string = sas::connection_string(azurite.queue_endpoint(), azurite.blob_endpoint(), &narrow);
    let storage = Storage::open(Options::from_connection_string(&string).unwrap()).await.unwrap();
    known.error(storage.queues().check_access(&queue, Access::Process).await);

    known.secrets.push(azurite::KEY.to_owned());
    for sas in [&sas, &narrow] {
        known.secrets.push(sas.split_once("sig=").unwrap().1.to_owned());
    }
    let debug = format!("{by_key:?} {by_sas:?} {by_token:?}");
    let log = log.text();
    assert!(log.contains("azurite") || log.contains("127.0.0.1"), "the log is not that of the SDK");
    assert!(log.lines().count() > 100, "the log has only {} lines", log.lines().count());
    for secret in &known.secrets {
        for form in forms(secret) {
            let place = log.find(&form).map(|at| &log[at.saturating_sub(300)..(at + 20).min(log.len())]);
            assert_eq!(place, None, "the log has a secret: {form}");
            assert!(!known.errors.iter().any(|error| error.contains(&form)), "an error has a secret: {form}");
            assert!(!debug.contains(&form), "Debug has a secret: {form}");
        }
    }
    // The authorisation header in any form.
    assert!(!log.contains("SharedKey devstoreaccount1:"), "the log has a signature");
}

/// A secret as it is, decoded, and encoded for a URL in both cases of its digits.
fn forms(secret: &str) -> Vec<String> {
    let encoded: String = url::form_urlencoded::byte_serialize(secret.as_bytes()).collect();
    let decoded =
        url::form_urlencoded::parse(format!("x={secret}").as_bytes()).next().unwrap().1.into_owned();
    vec![secret.to_owned(), encoded.to_lowercase(), encoded, decoded]
}
