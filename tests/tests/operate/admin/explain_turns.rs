//! Explanations of jobs that wait for a slot or for a limit.

use std::time::Duration;

use jobqueue::worker::HandlerLimits;
use jobqueue::{JobError, QueueMessage, SendOptions, Storage, WorkerBuilder};
use jobqueue_admin::{JobPlace, JobReference, RawSend};
use jobqueue_tests::jobs::{Task, after, in_memory, task};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use crate::admin::presence::{operator, present};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "letters", kind = "letter", alias = "post")]
struct Letter {}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "reports", kind = "report")]
struct Report {}

async fn for_an_hour<M>(_: M) -> Result<(), JobError> {
    sleep(Duration::from_secs(3600)).await;
    Ok(())
}

async fn send(storage: &Storage, id: &str, options: SendOptions) {
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task(id)).with(options.id(id)).await.unwrap();
}

/// Returns the codes of the reasons why a job does not run, which waits.
async fn reasons(storage: &Storage, queue: &str, id: &str) -> Vec<&'static str> {
    let found = operator(storage).explain(&JobReference::new(queue, id)).await.unwrap();
    assert_eq!(found.place, JobPlace::Waiting, "{}", found.summary);
    found.reasons.iter().map(|reason| reason.code).collect()
}

/// Looks while a worker is present whose jobs take an hour each.
async fn beside(worker: WorkerBuilder, look: impl AsyncFnOnce()) {
    let looking = async {
        sleep(Duration::from_secs(40)).await;
        look().await;
    };
    let (report, ()) = tokio::join!(worker.build().unwrap().run_until(after(60)), looking);
    let _ = report.unwrap();
}

#[tokio::test(start_paused = true)]
async fn queue_is_full_without_the_slots_that_are_reserved_for_others() {
    let storage = in_memory();
    for id in ["1", "2", "3", "4"] {
        send(&storage, id, SendOptions::new()).await;
    }
    let worker = present(&storage).concurrency(4).handle(for_an_hour::<Task>).handle(for_an_hour::<Letter>);
    beside(worker, async || {
        let [worker] = &operator(&storage).workers().await.unwrap()[..] else { panic!("one worker") };
        assert_eq!(worker.record.running_total, 3);
        assert_eq!(worker.record.slots_for("tasks"), 3);
        assert_eq!(worker.record.slots_for("letters"), 3);
        assert_eq!(reasons(&storage, "tasks", "4").await, ["queue_limit"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn queue_is_full_while_another_has_the_common_slots() {
    let storage = in_memory();
    let admin = operator(&storage);
    for queue in ["letters", "reports"] {
        admin.create_queue(queue).await.unwrap();
    }
    for number in 0..10 {
        for (queue, kind) in [("letters", "letter"), ("reports", "report")] {
            let job = RawSend::json(kind, "{}").unwrap().id(&number.to_string());
            let _ = admin.send(queue, job).await.unwrap();
        }
    }
    let worker = present(&storage).concurrency(8).handle(for_an_hour::<Task>);
    let worker = worker.handle(for_an_hour::<Letter>).handle(for_an_hour::<Report>);
    beside(worker, async || {
        let [worker] = &operator(&storage).workers().await.unwrap()[..] else { panic!("one worker") };
        assert_eq!(worker.record.running_total, 7);
        assert!(worker.record.has_slot_for("tasks"));
        for queue in ["letters", "reports"] {
            assert!(worker.record.running_of(queue) < worker.record.slots_for(queue));
            assert_eq!(reasons(&storage, queue, "9").await, ["no_free_slot"]);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn limit_of_a_kind_holds_for_its_alias() {
    let storage = in_memory();
    let admin = operator(&storage);
    admin.create_queue("letters").await.unwrap();
    for (id, kind) in [("1", "letter"), ("2", "post"), ("3", "post")] {
        let _ = admin.send("letters", RawSend::json(kind, "{}").unwrap().id(id)).await.unwrap();
    }
    let limits = HandlerLimits::new().concurrency(2);
    let worker = present(&storage).concurrency(8).handle(for_an_hour::<Letter>).limit::<Letter>(limits);
    beside(worker, async || assert_eq!(reasons(&storage, "letters", "3").await, ["kind_limit"])).await;
}
