//! Order by a log on a storage that hides messages for longer than it is asked to, as Service Bus does.

use std::sync::Arc;

use jobqueue::storage::{
    GetMessages, Intercepted, Interceptor, MessageRef, Operation, QueuePowers, Received, StoreError,
    UpdateMessage, Updated,
};
use jobqueue::{JobError, QueueName, Storage};
use jobqueue_admin::Admin;
use jobqueue_testing::faults::Faulty;
use jobqueue_tests::jobs::{after, in_memory, runtime, worker};
use tokio::time::sleep;

use super::disturbed::{REFUSED, SECOND, Step, Trail, step, steps};

/// The length of each lock, in seconds.
const LOCK: u32 = 300;

/// Makes all locks of one length.
#[derive(Debug)]
struct LongLocks;

impl Interceptor for LongLocks {
    async fn get<F: Future<Output = Result<Received, StoreError>> + Send>(
        &self,
        _: &QueueName,
        options: GetMessages,
        perform: impl FnOnce(GetMessages) -> F + Send,
    ) -> Result<Received, StoreError> {
        let mut received = perform(GetMessages::new(options.count, SECOND * LOCK)).await?;
        for message in &mut received.messages {
            message.granted = Some(SECOND * LOCK);
        }
        Ok(received)
    }

    async fn update<F: Future<Output = Result<Updated, StoreError>> + Send>(
        &self,
        _: &QueueName,
        _: &MessageRef,
        mut change: UpdateMessage,
        perform: impl FnOnce(UpdateMessage) -> F + Send,
    ) -> Result<Updated, StoreError> {
        if !change.ends_lease && !change.visibility.is_zero() {
            change.visibility = SECOND * LOCK;
        }
        Ok(perform(change).await?.with_granted(Some(SECOND * LOCK)))
    }

    /// The storage has no powers.
    fn queue_powers(&self, _: QueuePowers) -> QueuePowers {
        QueuePowers::default()
    }
}

fn with_long_locks() -> Storage {
    let below = in_memory();
    let queues = Intercepted::queues(Arc::clone(below.queues().store()), &Arc::new(LongLocks));
    Storage::new(queues, Arc::clone(below.blobs()), "long locks").with_runtime(runtime())
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
