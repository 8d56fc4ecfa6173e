//! F20: a storage that asks to slow down is spared by those who can wait, and asked by those who cannot.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use jobqueue::storage::{
    Access, Arrivals, Created, GetMessages, Late, MessageRef, PeekedMessage, PutMessage, PutOutcome,
    QueueProperties, QueueStore, Received, Storage, StoreError, StoreErrorKind, UpdateMessage, Updated,
};
use jobqueue::{Context, JobError, Metadata, QueueMessage, QueueName, Worker};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "busy", kind = "busy", timeout = "30s")]
struct Busy {}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "other", kind = "other", timeout = "30s")]
struct Other {}

/// How long the storage asks to wait.
const PAUSE: Duration = Duration::from_secs(120);

/// Queues whose next get in the queue `busy` is answered 503, once that is asked for. Counts what comes meanwhile.
#[derive(Debug)]
struct Throttled {
    inner: Arc<dyn QueueStore>,
    now: AtomicBool,
    asked: AtomicU32,
    renewed: AtomicU32,
}

#[async_trait]
impl QueueStore for Throttled {
    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created, StoreError> {
        self.inner.create_queue(queue, metadata).await
    }
    async fn delete_queue(&self, queue: &QueueName) -> Result<(), StoreError> {
        self.inner.delete_queue(queue).await
    }
    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>, StoreError> {
        self.inner.list_queues(prefix).await
    }
    async fn queue_properties(&self, queue: &QueueName) -> Result<QueueProperties, StoreError> {
        self.inner.queue_properties(queue).await
    }
    async fn set_queue_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<(), StoreError> {
        self.inner.set_queue_metadata(queue, metadata).await
    }
    async fn put(&self, queue: &QueueName, message: PutMessage) -> Result<PutOutcome, StoreError> {
        self.inner.put(queue, message).await
    }
    async fn put_all(
        &self,
        queue: &QueueName,
        messages: Vec<PutMessage>,
    ) -> Vec<Result<PutOutcome, StoreError>> {
        self.inner.put_all(queue, messages).await
    }
    async fn get(&self, queue: &QueueName, options: GetMessages) -> Result<Received, StoreError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        if queue.as_str() == "busy" && self.now.swap(false, Ordering::SeqCst) {
            self.asked.store(0, Ordering::SeqCst);
            self.renewed.store(0, Ordering::SeqCst);
            let error = StoreError::new(StoreErrorKind::Throttled, "get messages", queue);
            return Err(error.with_retry_after(Some(PAUSE)));
        }
        self.inner.get(queue, options).await
    }
    async fn peek(&self, queue: &QueueName, count: u32) -> Result<Vec<PeekedMessage>, StoreError> {
        self.inner.peek(queue, count).await
    }
    async fn update(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        change: UpdateMessage,
    ) -> Result<Updated, StoreError> {
        self.renewed.fetch_add(1, Ordering::SeqCst);
        self.inner.update(queue, message, change).await
    }
    async fn delete(&self, queue: &QueueName, message: &MessageRef, late: Late) -> Result<(), StoreError> {
        self.inner.delete(queue, message, late).await
    }
    async fn delete_all(
        &self,
        queue: &QueueName,
        messages: Vec<MessageRef>,
        late: Late,
    ) -> Vec<Result<(), StoreError>> {
        self.inner.delete_all(queue, messages, late).await
    }
    async fn clear(&self, queue: &QueueName) -> Result<(), StoreError> {
        self.inner.clear(queue).await
    }
    async fn check_access(&self, queue: &QueueName, access: Access) -> Result<(), StoreError> {
        self.inner.check_access(queue, access).await
    }
    fn arrivals(&self, _queue: &QueueName) -> Option<Arrivals> {
        None
    }
    fn checks_expiry(&self) -> bool {
        self.inner.checks_expiry()
    }
    fn detached(self: Arc<Self>) -> Arc<dyn QueueStore> {
        self
    }
}

/// While one queue is throttled no queue of the storage is polled and a send waits, but the lease of a running job is
/// renewed; afterwards all goes on.
#[tokio::test(start_paused = true)]
async fn f20_renewals_go_before_polling_and_sending() {
    let memory = Storage::memory();
    let store = Arc::new(Throttled {
        inner: memory.queues().clone(),
        now: AtomicBool::new(false),
        asked: AtomicU32::new(0),
        renewed: AtomicU32::new(0),
    });
    let storage = Storage::new(store.clone(), memory.blobs().clone(), "throttled memory");
    storage.queue::<Busy>().await.unwrap().send(&Busy {}).await.unwrap();
    let others = storage.queue::<Other>().await.unwrap();

    let (throttled, sender) = (store.clone(), others.clone());
    let long = move |_: Busy, ctx: Context| {
        let (store, others) = (throttled.clone(), sender.clone());
        async move {
            store.now.store(true, Ordering::SeqCst);
            while store.now.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let begun = Instant::now();
            others.send(&Other {}).await.map_err(JobError::retry)?;
            // A send waits half of what it may take in all, and is tried then: a caller is not held up for long.
            assert!(begun.elapsed() >= Duration::from_secs(10), "{:?}", begun.elapsed());
            tokio::time::sleep(PAUSE - begun.elapsed()).await;
            // What was under way when the storage asked to slow down, one request at most.
            assert!(store.asked.load(Ordering::SeqCst) <= 1, "{store:?}");
            assert!(store.renewed.load(Ordering::SeqCst) >= 3, "{store:?}");
            assert!(!ctx.is_cancelled());
            Ok::<(), JobError>(())
        }
    };
    let other = async |_: Other| Ok::<(), JobError>(());
    let worker = Worker::builder(storage)
        .virtual_time(Arc::new(jobqueue::memory::TokioClock::new()))
        .handle(long)
        .handle(other);
    let report = worker.build().unwrap().run_until_idle().await.unwrap();
    assert_eq!((report.completed, report.lease_lost), (2, 0));
}
