//! Connections that end, a server that becomes read-only, and locks of others: what is certain of a failed
//! operation, and that the next one works.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use jobqueue::postgres::Options;
use jobqueue::storage::{PutMessage, StoreError, StoreErrorKind};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::{connect, get, options, own_schema, put, texts, with_queue};
use jobqueue_test_support::postgres::Postgres;

/// Each session is ended while a statement waits for a lock: the answer is lost, and the statement may have
/// been committed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_of_a_session_that_was_ended_is_uncertain() {
    let (_, schema) = own_schema();
    let text = format!("{}&application_name={schema}", Postgres::shared().connection_string());
    let options = Options::from_connection_string(&text).unwrap().schema(&schema);
    let (storage, queue) = with_queue(options).await;
    let (mut locking, client) = (connect(Postgres::shared()).await, connect(Postgres::shared()).await);
    let lock = locking.transaction().await.unwrap();
    lock.batch_execute(&format!("LOCK TABLE {schema}.message")).await.unwrap();
    let waits = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = $1";
    for operation in ["put", "get", "peek"] {
        let running = tokio::spawn({
            let (storage, queue) = (storage.clone(), queue.clone());
            async move {
                let queues = storage.queues();
                match operation {
                    "put" => queues.put(&queue, PutMessage::new("text")).await.map(drop),
                    "get" => queues
                        .get(&queue, jobqueue::storage::GetMessages::new(1, crate::LONG))
                        .await
                        .map(drop),
                    _ => queues.peek(&queue, 1).await.map(drop),
                }
            }
        });
        // A get starts to remove rows, which waits for the lock too.
        while !running.is_finished() {
            client.query(waits, &[&schema]).await.unwrap();
        }
        let error: StoreError = running.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{operation}: {error}");
        assert_eq!(error.is_ambiguous(), operation != "peek", "{operation}: {error}");
        assert!(std::error::Error::source(&error).is_some(), "{operation} keeps its cause");
    }
    lock.rollback().await.unwrap();
    put(&storage, &queue, "after").await;
    assert!(texts(&get(&storage, &queue, 32).await).contains(&"after"), "new connections are opened");
}

/// A standby, or a primary that was made one, refuses to write. Nothing was changed, and the next connection
/// may find the primary.
#[tokio::test]
async fn read_only_server_refuses_certainly() {
    let (_, schema) = own_schema();
    drop(with_queue(options(Postgres::shared()).schema(&schema)).await);
    let text =
        format!("{}&options=-c%20default_transaction_read_only%3Don", Postgres::shared().connection_string());
    let options = Options::from_connection_string(&text).unwrap();
    let storage = jobqueue::Storage::open(options.schema(&schema)).await.unwrap();
    let error = storage.queues().put(&"jobs".parse().unwrap(), PutMessage::new("text")).await.unwrap_err();
    assert_eq!((error.kind(), error.is_ambiguous()), (StoreErrorKind::Unavailable, false), "{error}");
    assert!(error.is_retryable() && error.to_string().contains("read-only"), "{error}");
}

/// An operation that gets no answer in time fails, and no other waits for it.
#[tokio::test]
async fn operation_without_an_answer_ends_in_time() {
    let (options, schema) = own_schema();
    let (_, queue) = with_queue(options.clone()).await;
    let hasty = options.timeout(Duration::from_secs(2)).max_connections(1);
    let storage = jobqueue::Storage::open(hasty).await.unwrap();
    let mut locking = connect(Postgres::shared()).await;
    let lock = locking.transaction().await.unwrap();
    lock.batch_execute(&format!("LOCK TABLE {schema}.message")).await.unwrap();
    let error = storage.queues().put(&queue, PutMessage::new("text")).await.unwrap_err();
    // The server has cancelled it.
    assert_eq!((error.kind(), error.is_ambiguous()), (StoreErrorKind::Timeout, false), "{error}");
    storage.queues().set_queue_metadata(&queue, &Default::default()).await.unwrap();
    lock.rollback().await.unwrap();
    assert_eq!(storage.queues().queue_properties(&queue).await.unwrap().approximate_count, 0);
}

/// The message by which a client asks the server to cancel a statement: its length, and a code.
const CANCEL_REQUEST: [u8; 8] = [0, 0, 0, 16, 4, 210, 22, 46];

/// Passes bytes on, and counts the requests to cancel a statement. Once it is silent, connections that are
/// open get no more answers.
#[derive(Default)]
struct SilentProxy {
    is_silent: AtomicBool,
    cancellations: AtomicUsize,
}

impl SilentProxy {
    async fn start(self: Arc<Self>, server: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let was_silent = self.is_silent.load(Ordering::Acquire);
                tokio::spawn(Arc::clone(&self).pass(client, server, was_silent));
            }
        });
        address
    }

    async fn pass(self: Arc<Self>, client: TcpStream, server: SocketAddr, was_silent: bool) {
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = TcpStream::connect(server).await.unwrap().into_split();
        let requests = async {
            let mut request = [0; 4096];
            while let Ok(length @ 1..) = from_client.read(&mut request).await {
                if request.starts_with(&CANCEL_REQUEST) {
                    self.cancellations.fetch_add(1, Ordering::AcqRel);
                }
                to_server.write_all(&request[..length]).await.unwrap();
            }
        };
        let answers = async {
            let mut answer = [0; 4096];
            while let Ok(length @ 1..) = from_server.read(&mut answer).await {
                if was_silent || !self.is_silent.load(Ordering::Acquire) {
                    to_client.write_all(&answer[..length]).await.unwrap();
                }
            }
        };
        tokio::select! { () = requests => {} () = answers => {} }
    }
}

#[tokio::test]
async fn statement_without_an_answer_is_cancelled_once() {
    let (options, schema) = own_schema();
    let (_, queue) = with_queue(options).await;
    let (proxy, server) = (Arc::<SilentProxy>::default(), Postgres::shared().address());
    let address = Arc::clone(&proxy).start(server).await;
    let text = Postgres::shared().connection_string().replace(&server.to_string(), &address.to_string());
    let options = Options::from_connection_string(&text).unwrap().schema(&schema);
    let hasty = options.timeout(Duration::from_secs(1)).max_connections(1);
    let storage = jobqueue::Storage::open(hasty).await.unwrap();
    proxy.is_silent.store(true, Ordering::Release);
    let error = storage.queues().put(&queue, PutMessage::new("text")).await.unwrap_err();
    assert_eq!((error.kind(), error.is_ambiguous()), (StoreErrorKind::Timeout, true), "{error}");
    // A task that would ask again connects before the next statement does.
    tokio::task::yield_now().await;
    storage.queues().queue_properties(&queue).await.unwrap();
    assert_eq!(proxy.cancellations.load(Ordering::Acquire), 1);
}

/// A future that is dropped leaves a statement without its answer. The next one does not wait behind it.
#[tokio::test]
async fn dropped_operation_does_not_hold_up_the_next() {
    let (options, schema) = own_schema();
    let (storage, queue) = with_queue(options.timeout(Duration::from_secs(10)).max_connections(1)).await;
    let mut locking = connect(Postgres::shared()).await;
    let lock = locking.transaction().await.unwrap();
    lock.batch_execute(&format!("LOCK TABLE {schema}.message")).await.unwrap();
    let peek = tokio::time::timeout(Duration::from_millis(50), storage.queues().peek(&queue, 1));
    assert!(peek.await.is_err(), "the peek waits for the lock");
    storage.queues().set_queue_metadata(&queue, &Default::default()).await.unwrap();
    lock.rollback().await.unwrap();
}

/// A session that waits for a lock does not notice that its client is gone: others would pile up behind it.
#[tokio::test]
async fn abandoned_statements_end_at_the_server() {
    let (_, schema) = own_schema();
    let text = format!("{}&application_name={schema}", Postgres::shared().connection_string());
    let options = Options::from_connection_string(&text).unwrap().schema(&schema);
    let (storage, queue) = with_queue(options.clone()).await;
    let hasty = jobqueue::Storage::open(options.timeout(Duration::from_secs(2))).await.unwrap();
    let (mut locking, client) = (connect(Postgres::shared()).await, connect(Postgres::shared()).await);
    let lock = locking.transaction().await.unwrap();
    lock.batch_execute(&format!("LOCK TABLE {schema}.message")).await.unwrap();
    hasty.queues().put(&queue, PutMessage::new("text")).await.unwrap_err();
    let peek = tokio::time::timeout(Duration::from_millis(50), storage.queues().peek(&queue, 1));
    assert!(peek.await.is_err(), "the peek waits for the lock");
    let waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = $1";
    tokio::time::timeout(Duration::from_secs(20), async {
        while !client.query(waiting, &[&schema]).await.unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("no statement waits for the lock");
    lock.rollback().await.unwrap();
    assert!(get(&storage, &queue, 1).await.is_empty(), "the put was cancelled");
}

/// Also with a number of connections that means that there is no limit.
#[tokio::test]
async fn server_that_is_not_there_is_unavailable() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let options = Options::from_connection_string(&format!("postgres://u@127.0.0.1:{port}/d")).unwrap();
    let error = jobqueue::Storage::open(options.max_connections(usize::MAX)).await.unwrap_err();
    let error = StoreError::in_chain(&error).unwrap();
    assert_eq!((error.kind(), error.is_ambiguous()), (StoreErrorKind::Unavailable, false), "{error}");
}
