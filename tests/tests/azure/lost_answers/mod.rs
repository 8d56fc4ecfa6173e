//! Answers that are lost, late, cut off, garbled, huge or hostile (FAULTS section 1), with Azurite behind a
//! proxy: the operation really happens, and the test checks what the adapter says about it.

mod wrong_answers;

use std::time::Duration;

use bytes::Bytes;
use jobqueue::QueueName;
use jobqueue::Runtime;
use jobqueue::azure::Options;
use jobqueue::settings::Metadata;
use jobqueue::storage::{BlobName, ContainerName};
use jobqueue::storage::{
    ExpiredReceipt, GetMessages, LeaseId, MessageRef, PutBlob, PutMessage, Storage, StoreError,
    StoreErrorKind, UpdateMessage,
};
use jobqueue_tests::azurite::{self, Azurite, LogOnFailure};
use jobqueue_tests::proxy::{Fault, Proxy};

const MINUTE: Duration = Duration::from_secs(60);

/// All faults by which an answer is lost after the operation was performed.
fn losses() -> [Fault; 4] {
    [
        Fault::DropAnswer,
        Fault::Truncate(9),
        Fault::Truncate(40),
        Fault::Replace("HTTP/1.1".into(), "NONSENSE".into()),
    ]
}

/// A queue and a container behind proxies, and the same storage without.
struct Bench {
    storage: Storage,
    direct: Storage,
    queue_proxy: Proxy,
    blob_proxy: Proxy,
    queue: QueueName,
    container: ContainerName,
    _log: LogOnFailure<'static>,
}

impl Bench {
    async fn new() -> Self {
        let azurite = Azurite::shared();
        let queue_proxy = Proxy::start(azurite.queue_endpoint()).await;
        let blob_proxy = Proxy::start(azurite.blob_endpoint()).await;
        let string = azurite::connection_string(
            &queue_proxy.endpoint(azurite.queue_endpoint()),
            &blob_proxy.endpoint(azurite.blob_endpoint()),
        );
        let storage = open(&string).await;
        let direct = open(&azurite.connection_string()).await;
        let name = format!("lost-{}", uuid::Uuid::new_v4().simple());
        let (queue, container) = (QueueName::new(&name).unwrap(), ContainerName::new(&name).unwrap());
        direct.queues().create_queue(&queue, &Metadata::new()).await.unwrap();
        direct.blobs().create_container(&container).await.unwrap();
        Self { storage, direct, queue_proxy, blob_proxy, queue, container, _log: azurite.log_on_failure() }
    }

    async fn put(&self, text: &str) -> Result<(), StoreError> {
        self.storage.queues().put(&self.queue, PutMessage::new(text)).await.map(drop)
    }

    async fn get(&self, storage: &Storage) -> Result<Vec<jobqueue::storage::LeasedMessage>, StoreError> {
        let options = GetMessages::new(32, Duration::from_secs(1));
        storage.queues().get(&self.queue, options).await.map(|received| received.messages)
    }

    async fn count(&self) -> u64 {
        self.direct.queues().queue_properties(&self.queue).await.unwrap().approximate_count
    }

    async fn leased(&self) -> MessageRef {
        self.direct.queues().put(&self.queue, PutMessage::new("job")).await.unwrap();
        let options = GetMessages::new(1, MINUTE);
        self.direct.queues().get(&self.queue, options).await.unwrap().messages.remove(0).message
    }

    fn blob(&self, name: &str) -> BlobName {
        BlobName::new(self.container.clone(), name).unwrap()
    }
}

async fn open(string: &str) -> Storage {
    Storage::open(Options::from_connection_string(string).unwrap()).await.unwrap()
}

fn change(text: Option<&str>) -> UpdateMessage {
    UpdateMessage::new(MINUTE).with_text(text.map(str::to_owned))
}

/// F1: the message is stored, and the send reports an unknown outcome. The adapter does not send again by
/// itself.
#[tokio::test]
async fn put_without_answer_is_ambiguous_and_not_repeated() {
    let bench = Bench::new().await;
    for (sent, loss) in losses().into_iter().enumerate() {
        bench.queue_proxy.plan("POST", loss.clone());
        let error = bench.put("x").await.unwrap_err();
        assert!(error.is_ambiguous(), "{loss:?}: {error}");
        assert_eq!(bench.count().await, sent as u64 + 1, "{loss:?}");
    }
    bench.queue_proxy.plan("POST", Fault::Garble);
    let error = bench.put("x").await.unwrap_err();
    assert!(error.is_ambiguous() && error.kind() == StoreErrorKind::Protocol, "{error}");
    assert_eq!(bench.queue_proxy.count("POST"), 5);
}

/// F2: no process listens: the request was certainly not applied. F21 is the same for a name that cannot be
/// resolved.
#[tokio::test]
async fn failed_connection_is_certainly_not_applied() {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = taken.local_addr().unwrap().port();
    drop(taken);
    let nobody = azurite::connection_string(
        &format!("http://127.0.0.1:{port}/devstoreaccount1"),
        &format!("http://127.0.0.1:{port}/devstoreaccount1"),
    );
    let key = azurite::KEY;
    let nowhere = format!("AccountName=acme;AccountKey={key};EndpointSuffix=nowhere.invalid");
    for string in [nobody, nowhere] {
        let storage = open(&string).await;
        let queue = QueueName::new("orders").unwrap();
        let error = storage.queues().put(&queue, PutMessage::new("x")).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
        assert!(!error.is_ambiguous() && error.is_retryable(), "{error}");
    }
}

/// F3: the requested pause is passed on; the operation may or may not be applied.
#[tokio::test]
async fn throttling_and_timeouts_keep_the_requested_pause() {
    let bench = Bench::new().await;
    let answer = |status: &str, code: &str| {
        let head = format!(
            "HTTP/1.1 {status}\r\nx-ms-request-id: 1\r\nx-ms-error-code: {code}\r\nRetry-After: 3\r\nContent-Length: 0\r\n\r\n"
        );
        Fault::Answer(head.into_bytes())
    };
    for (status, code, kind) in [
        ("503 Busy", "ServerBusy", StoreErrorKind::Throttled),
        ("500 Late", "OperationTimedOut", StoreErrorKind::Timeout),
        ("500 Broken", "InternalError", StoreErrorKind::Unavailable),
    ] {
        bench.queue_proxy.plan("POST", answer(status, code));
        let error = bench.put("x").await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.is_ambiguous() && error.is_retryable(), "{error}");
        assert_eq!(error.retry_after(), Some(Duration::from_secs(3)), "{error}");
    }
    assert_eq!(bench.queue_proxy.count("POST"), 3, "nothing is sent twice");
}

/// F4: a lost get is not repeated, because it would lease more. The message is visible again later, with a
/// higher count.
#[tokio::test]
async fn get_without_answer_is_not_repeated() {
    let bench = Bench::new().await;
    bench.put("job").await.unwrap();
    bench.queue_proxy.plan("GET", Fault::DropAnswer);
    let error = bench.get(&bench.storage).await.unwrap_err();
    assert!(error.is_ambiguous(), "{error}");
    assert_eq!(bench.queue_proxy.count("GET"), 1);
    let back = loop {
        // It is invisible for the second that was asked for.
        let got = bench.get(&bench.storage).await.unwrap();
        if let Some(message) = got.into_iter().next() {
            break message;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert_eq!(back.dequeue_count, 2);
}

/// F7: after a lost update the old receipt is worthless, and the second answer says so.
#[tokio::test]
async fn update_without_answer_is_ambiguous() {
    let bench = Bench::new().await;
    for loss in losses() {
        let message = bench.leased().await;
        bench.queue_proxy.plan("PUT", loss.clone());
        let error =
            bench.storage.queues().update(&bench.queue, &message, change(Some("new"))).await.unwrap_err();
        assert!(error.is_ambiguous(), "{loss:?}: {error}");
        let again = bench.storage.queues().update(&bench.queue, &message, change(None)).await.unwrap_err();
        assert!(again.is_lease_lost() && !again.is_ambiguous(), "{loss:?}: {again}");
    }
    let message = bench.leased().await;
    bench.queue_proxy.plan("PUT", Fault::Replace("x-ms-popreceipt".into(), "x-ms-nothing".into()));
    let error = bench.storage.queues().update(&bench.queue, &message, change(None)).await.unwrap_err();
    assert!(error.is_ambiguous(), "an update without its receipt: {error}");
}

/// F8: the caller's deadline ends a call that hangs; the connection is closed, and other calls continue.
#[tokio::test]
async fn hanging_call_ends_at_its_deadline() {
    let bench = Bench::new().await;
    let message = bench.leased().await;
    bench.queue_proxy.plan("PUT", Fault::Hang);
    let queues = bench.storage.queues();
    let hanging = queues.update(&bench.queue, &message, change(None));
    assert!(tokio::time::timeout(Duration::from_millis(300), hanging).await.is_err());
    bench.put("next").await.unwrap();
}

/// F9: a second delete after a lost answer finds nothing; the caller may count it as success.
// F10, F11
#[tokio::test]
async fn delete_tells_not_found_from_stale_receipt() {
    let bench = Bench::new().await;
    let queues = bench.storage.queues();
    for loss in losses() {
        let message = bench.leased().await;
        bench.queue_proxy.plan("DELETE", loss.clone());
        let error = queues.delete(&bench.queue, &message, ExpiredReceipt::Refuse).await.unwrap_err();
        assert!(error.is_ambiguous(), "{loss:?}: {error}");
        let again = queues.delete(&bench.queue, &message, ExpiredReceipt::Refuse).await.unwrap_err();
        assert_eq!(again.kind(), StoreErrorKind::MessageNotFound, "{loss:?}");
        assert!(!again.is_ambiguous());
    }
    let mut message = bench.leased().await;
    message.receipt =
        queues.update(&bench.queue, &message, change(None)).await.map(|_| message.receipt.clone()).unwrap();
    let stale = queues.delete(&bench.queue, &message, ExpiredReceipt::Refuse).await.unwrap_err();
    assert!(stale.is_lease_lost() && !stale.is_ambiguous(), "{stale}");
}

/// A blob whose answer was lost exists, and a second creation is refused.
#[tokio::test]
async fn a_lost_blob_write_is_ambiguous() {
    let bench = Bench::new().await;
    let blobs = bench.storage.blobs();
    for (at, loss) in losses().into_iter().enumerate() {
        let blob = bench.blob(&format!("b{at}"));
        bench.blob_proxy.plan("PUT", loss.clone());
        let error = blobs.put_blob(&blob, Bytes::from_static(b"x"), PutBlob::if_absent()).await.unwrap_err();
        assert!(error.is_ambiguous(), "{loss:?}: {error}");
        let again = blobs.put_blob(&blob, Bytes::from_static(b"x"), PutBlob::if_absent()).await.unwrap_err();
        assert_eq!(again.kind(), StoreErrorKind::BlobAlreadyExists, "{loss:?}");
        assert_eq!(blobs.get_blob(&blob, 10).await.unwrap().data, "x");
    }
}

/// F77, F78: with an id of the caller's own, acquiring and renewing may be repeated, and the adapter does so.
#[tokio::test]
async fn lost_lease_answers_are_retried_under_one_id() {
    let bench = Bench::new().await;
    let (blobs, leases) = (bench.storage.blobs(), bench.storage.leases().unwrap());
    let finite = Duration::from_secs(15);
    for (at, loss) in losses().into_iter().enumerate() {
        let (blob, mine) = (bench.blob(&format!("lease{at}")), LeaseId::random(&Runtime::new()));
        blobs.put_blob(&blob, Bytes::new(), PutBlob::new()).await.unwrap();
        bench.blob_proxy.plan("comp=lease", loss.clone());
        assert_eq!(leases.acquire_lease(&blob, finite, &mine).await.unwrap(), mine, "{loss:?}");
        bench.blob_proxy.plan("comp=lease", loss.clone());
        assert_eq!(leases.renew_lease(&blob, &mine).await.unwrap(), mine, "{loss:?}");
        // The second request meets no lease: the first has released it.
        bench.blob_proxy.plan("comp=lease", loss.clone());
        leases.release_lease(&blob, &mine).await.unwrap();
        let other = LeaseId::random(&Runtime::new());
        assert_eq!(leases.acquire_lease(&blob, finite, &other).await.unwrap(), other, "{loss:?}");
        let not_ours = leases.release_lease(&blob, &mine).await.unwrap_err();
        assert_eq!(not_ours.kind(), StoreErrorKind::LeaseIdMismatch, "{loss:?}: {not_ours}");
    }
}
