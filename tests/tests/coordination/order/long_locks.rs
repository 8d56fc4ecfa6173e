//! Order by a log on a storage that hides messages for longer than it is asked to, as Service Bus does.

use std::sync::Arc;

use async_trait::async_trait;
use jobqueue::storage::{
    Created, ExpiredReceipt, GetMessages, MessageRef, Metadata, Operation, PeekedMessage, PutMessage,
    PutOutcome, QueueProperties, QueueStore, Received, StoreError, UpdateMessage, Updated,
};
use jobqueue::{JobError, QueueName, Storage};
use jobqueue_admin::Admin;
use jobqueue_testing::faults::Faulty;
use jobqueue_tests::jobs::{after, in_memory, runtime, worker};
use tokio::time::sleep;

use super::disturbed::{REFUSED, SECOND, Step, Trail, step, steps};

/// The length of each lock, in seconds.
const LOCK: u32 = 300;

/// Queues in memory whose locks are all of one length.
#[derive(Debug)]
struct LongLocks(Arc<dyn QueueStore>);

#[async_trait]
impl QueueStore for LongLocks {
    async fn get(&self, queue: &QueueName, options: GetMessages) -> Result<Received, StoreError> {
        let mut received = self.0.get(queue, GetMessages::new(options.count, SECOND * LOCK)).await?;
        for message in &mut received.messages {
            message.granted = Some(SECOND * LOCK);
        }
        Ok(received)
    }

    async fn update(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        mut change: UpdateMessage,
    ) -> Result<Updated, StoreError> {
        if !change.ends_lease && !change.visibility.is_zero() {
            change.visibility = SECOND * LOCK;
        }
        Ok(self.0.update(queue, message, change).await?.with_granted(Some(SECOND * LOCK)))
    }

    async fn put(&self, queue: &QueueName, message: PutMessage) -> Result<PutOutcome, StoreError> {
        self.0.put(queue, message).await
    }

    async fn delete(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        expired: ExpiredReceipt,
    ) -> Result<(), StoreError> {
        self.0.delete(queue, message, expired).await
    }

    async fn peek(&self, queue: &QueueName, count: u32) -> Result<Vec<PeekedMessage>, StoreError> {
        self.0.peek(queue, count).await
    }

    async fn clear(&self, queue: &QueueName) -> Result<(), StoreError> {
        self.0.clear(queue).await
    }

    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created, StoreError> {
        self.0.create_queue(queue, metadata).await
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<(), StoreError> {
        self.0.delete_queue(queue).await
    }

    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>, StoreError> {
        self.0.list_queues(prefix).await
    }

    async fn queue_properties(&self, queue: &QueueName) -> Result<QueueProperties, StoreError> {
        self.0.queue_properties(queue).await
    }

    async fn set_queue_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<(), StoreError> {
        self.0.set_queue_metadata(queue, metadata).await
    }
}

fn with_long_locks() -> Storage {
    let below = in_memory();
    let queues = LongLocks(Arc::clone(below.queues().store()));
    Storage::new(Arc::new(queues), Arc::clone(below.blobs()), "long locks").with_runtime(runtime())
}

// Its message was hidden for longer than the jobs behind it waited: they ran before it.
#[tokio::test(start_paused = true)]
async fn job_whose_lock_outlasts_its_lease_keeps_its_position() {
    let storage = with_long_locks();
    let faulty = Faulty::new(&storage);
    let queue = steps(&storage).await;
    let trail = Trail::new();
    let handler = |worker: &'static str, seconds: u32| {
        let log = trail.clone();
        move |step: Step| {
            let log = log.clone();
            async move {
                log.note(format!("begin {} on {worker}", step.number));
                sleep(SECOND * seconds).await;
                Ok::<_, JobError>(())
            }
        }
    };
    // Its worker loses its blobs, and with them the turn of the job. It releases nothing, and ends.
    let first = worker(&faulty.storage()).concurrency(1).handle(handler("the first", 3_000)).build().unwrap();
    let first = tokio::spawn(first.run_until(after(380)));
    queue.send(&step("a", 0)).in_order().await.unwrap();
    sleep(SECOND * 5).await;
    faulty.plan_always(Operation::PutBlob, REFUSED);
    faulty.plan_always(Operation::GetBlob, REFUSED);
    queue.send(&step("a", 1)).in_order().await.unwrap();
    let second = worker(&storage).handle(handler("the second", 1)).build().unwrap();
    let second = second.run_until(after(2_000)).await.unwrap();
    let _ = first.await.unwrap().unwrap();
    assert_eq!(second.completed, 2, "{second:?}");
    assert!(trail.at("begin 0 on the second") < trail.at("begin 1 on the second"));
}

// The record said 30 seconds.
#[tokio::test(start_paused = true)]
async fn worker_shows_for_how_long_a_message_is_hidden() {
    let storage = with_long_locks();
    let queue = steps(&storage).await;
    queue.send(&step("a", 0)).await.unwrap();
    let handler = async |_: Step| std::future::pending::<Result<(), JobError>>().await;
    let built = worker(&storage).presence(SECOND * 5).handle(handler).build().unwrap();
    let running = tokio::spawn(built.run_until(after(60)));
    sleep(SECOND * 30).await;
    let workers = Admin::builder(storage.clone()).build().workers().await.unwrap();
    let shown: Vec<_> = workers.iter().flat_map(|worker| &worker.record.running).collect();
    assert_eq!(shown[0].lease_seconds, Some(f64::from(LOCK)));
    let _ = running.await.unwrap().unwrap();
}
