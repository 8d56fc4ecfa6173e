//! The identity of jobs: source and id identify a job, and only proven copies are deleted without running.

use std::sync::{Arc, Mutex};

use jobqueue::storage::PutMessage;
use jobqueue::{Context, JobError, QueueMessage, SendOptions, Storage};
use jobqueue_tests::jobs::{Log, Task, after, in_memory, task, worker};
use serde::{Deserialize, Serialize};

const LARGE: usize = 100_000;

/// A task whose payload is in a blob, so that its completion is remembered.
fn large(name: &str) -> Task {
    Task { name: name.into(), data: "x".repeat(LARGE) }
}

/// Puts an event on the queue like another program.
async fn put(storage: &Storage, source: &str, id: &str, name: &str) {
    let event = serde_json::json!({
        "specversion": "1.0", "id": id, "source": source, "type": "task",
        "datacontenttype": "application/json", "data": { "name": name },
    });
    let put = PutMessage::new(event.to_string());
    let _ = storage.queues().put(&"tasks".parse().unwrap(), put).await.unwrap();
}

/// Returns the names of the tasks that run while a worker runs and `other` happens.
async fn names(storage: &Storage, other: impl Future<Output = ()> + Send + 'static) -> Vec<String> {
    let log = Log::default();
    let sink = Arc::clone(&log);
    let handler = move |task: Task| {
        sink.lock().unwrap().push(task.name);
        async { Ok::<_, JobError>(()) }
    };
    let _ = worker(storage).handle(handler).build().unwrap().run_until(other).await.unwrap();
    std::mem::take(&mut *log.lock().unwrap())
}

// B19
#[tokio::test(start_paused = true)]
async fn a_job_of_another_source_with_an_equal_id_is_run() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    // Equal but for the source.
    let equal = large("equal");
    let _ = queue.send(&equal).id("1").await.unwrap();
    let other = storage.clone();
    let ran = names(&storage, async move {
        after(10).await;
        let _ = queue.send(&equal).id("1").source("/shop").await.unwrap();
        put(&other, "/stock", "1", "theirs").await;
        after(60).await;
    });
    assert_eq!(ran.await, ["equal", "equal", "theirs"]);
}

// W1
#[tokio::test(start_paused = true)]
async fn a_job_with_another_payload_under_the_same_identity_is_run() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    // Equal but for the payload: the name is the key.
    let _ = queue.send(&large("equal")).id("1").await.unwrap();
    let ran = names(&storage, async move {
        after(10).await;
        let _ = queue.send(&task("equal")).id("1").await.unwrap();
        after(60).await;
    });
    assert_eq!(ran.await, ["equal", "equal"]);
}

#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "others", kind = "other")]
struct Other {}

// W-line
#[tokio::test(start_paused = true)]
async fn an_effect_is_recorded_for_the_jobs_of_one_queue_and_source() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    let others = storage.queue::<Other>().await.unwrap();
    let _ = queue.send(&task("a")).id("1").await.unwrap();
    let _ = others.send(&Other {}).id("1").await.unwrap();
    put(&storage, "/shop", "1", "b").await;
    let effects: Arc<Mutex<u32>> = Arc::default();
    let counted = Arc::clone(&effects);
    let effect = move |ctx: Context| {
        let counted = Arc::clone(&counted);
        async move {
            let work = || async move {
                *counted.lock().unwrap() += 1;
                Ok::<_, JobError>(())
            };
            ctx.once("charge", work).await
        }
    };
    let other = effect.clone();
    let ran = worker(&storage)
        .handle(move |_: Task, ctx: Context| effect(ctx))
        .handle(move |_: Other, ctx: Context| other(ctx));
    let report = ran.build().unwrap().run_until(after(30)).await.unwrap();
    assert_eq!(report.completed, 3);
    assert_eq!(*effects.lock().unwrap(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_two_workers_send_under_one_id_is_one_job() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    let others = storage.queue::<Other>().await.unwrap();
    for host in ["/hosts/1", "/hosts/2"] {
        let _ = others.send(&Other {}).await.unwrap();
        let send = async |_: Other, ctx: Context| {
            let options = SendOptions::new().id("1");
            let _ = ctx.queue::<Task>().await?.send(&large("a")).with(options).await?;
            Ok::<_, JobError>(())
        };
        let sender = worker(&storage).name(host).handle(send).build().unwrap();
        let _ = sender.run_until(after(5)).await.unwrap();
    }
    let _ = queue.send(&large("a")).id("1").source("/another").await.unwrap();
    assert_eq!(queue.approximate_len().await.unwrap(), 3);
    assert_eq!(names(&storage, after(60)).await, ["a", "a"], "the copy is known, the other's job is run");
}
