//! Tokens of Entra ID, from a credential of the application.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use azure_core::credentials::{AccessToken, TokenCredential, TokenRequestOptions};
use azure_core::error::ErrorKind as AzureErrorKind;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jobqueue::servicebus::Options;
use jobqueue::storage::{GetMessages, PutMessage, StoreErrorKind};
use jobqueue::{QueueName, Storage};
use jobqueue_test_support::servicebus::ServiceBus;
use serde_json::json;

use super::MINUTE;

/// A credential whose tokens are valid for so long, or that has none.
#[derive(Debug)]
struct Fake {
    validity: Option<Duration>,
    asked: AtomicU32,
}

impl Fake {
    fn new(validity: Option<Duration>) -> Arc<Self> {
        Arc::new(Self { validity, asked: AtomicU32::new(0) })
    }
}

#[async_trait]
impl TokenCredential for Fake {
    async fn get_token(
        &self,
        scopes: &[&str],
        _: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        assert_eq!(scopes, ["https://servicebus.azure.net/.default"]);
        self.asked.fetch_add(1, Ordering::Relaxed);
        let Some(validity) = self.validity else {
            return Err(azure_core::Error::with_message(AzureErrorKind::Credential, "no identity here"));
        };
        let until = SystemTime::now() + validity;
        let expiry = until.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
        let payload = URL_SAFE_NO_PAD.encode(json!({ "exp": expiry }).to_string());
        Ok(AccessToken::new(format!("e30.{payload}.secret-signature"), until.into()))
    }
}

fn open(emulator: &ServiceBus, credential: Arc<Fake>) -> Storage {
    let endpoint = format!("Endpoint=sb://localhost:{}", emulator.tls_port());
    let pem = std::fs::read(emulator.certificate_path()).unwrap();
    let options = Options::from_connection_string(&endpoint).unwrap().credential(credential);
    assert!(!format!("{options:?}").contains("secret"));
    Storage::from(options.root_certificate(&pem).with_blobs_of(Storage::memory()).unwrap())
}

#[tokio::test]
async fn queues_are_used_and_managed_by_tokens_of_entra_id() {
    let emulator = ServiceBus::start();
    let credential = Fake::new(Some(MINUTE));
    let storage = open(&emulator, Arc::clone(&credential));
    let queue = QueueName::new("work").unwrap();
    storage.queues().create_queue(&queue, &Default::default()).await.unwrap();
    storage.queues().put(&queue, PutMessage::new("text")).await.unwrap();
    assert_eq!(storage.queues().queue_properties(&queue).await.unwrap().approximate_count, 1);
    let leased = storage.queues().get(&queue, GetMessages::new(1, MINUTE)).await.unwrap().messages.remove(0);
    storage.queues().delete(&queue, &leased.message, Default::default()).await.unwrap();
    assert!(credential.asked.load(Ordering::Relaxed) > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_entra_id_are_renewed_before_they_run_out() {
    let emulator = ServiceBus::start();
    emulator.create_queue("work", json!({}));
    let storage = open(&emulator, Fake::new(Some(Duration::from_secs(6))));
    let queue = QueueName::new("work").unwrap();
    storage.queues().put(&queue, PutMessage::new("a")).await.unwrap();
    let connections = || {
        emulator.links().as_array().unwrap().iter().map(|link| link["connection"].clone()).collect::<Vec<_>>()
    };
    let before = connections();
    // The third token is sent when the first has run out.
    let calls = tokio::task::block_in_place(|| emulator.calls("put-token", "$cbs", 3));
    assert!(calls >= 3, "{calls} tokens");
    assert_eq!(connections(), before, "a link was detached");
    storage.queues().put(&queue, PutMessage::new("b")).await.unwrap();
}

#[tokio::test]
async fn a_credential_without_tokens_is_an_error_that_says_why() {
    let emulator = ServiceBus::start();
    emulator.create_queue("work", json!({}));
    let storage = open(&emulator, Fake::new(None));
    let queue = QueueName::new("work").unwrap();
    for error in [
        storage.queues().put(&queue, PutMessage::new("text")).await.unwrap_err(),
        storage.queues().list_queues("").await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
        assert!(!error.is_ambiguous(), "{error:?}");
        assert!(format!("{error:?}").contains("no identity here"), "{error:?}");
    }
}
