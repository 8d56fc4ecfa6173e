//! Explanations of jobs that wait for a slot, for a limit, or for another job of their key.

use std::sync::Arc;
use std::time::Duration;

use jobqueue::storage::{Interceptor, QueuePowers};
use jobqueue::worker::HandlerLimits;
use jobqueue::{JobError, QueueMessage, SendOptions, Storage, WorkerBuilder};
use jobqueue_admin::{JobPlace, JobReference, RawSend};
use jobqueue_testing::faults::Faulty;
use jobqueue_tests::jobs::{Task, after, in_memory, task};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use crate::admin::presence::{operator, present};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "letters", kind = "letter", alias = "post")]
struct Letter {}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "letters", kind = "parcel", version = 2, upgrade_from = Letter)]
struct Parcel {}

impl From<Letter> for Parcel {
    fn from(_: Letter) -> Self {
        Self {}
    }
}

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

fn in_order() -> SendOptions {
    SendOptions::new().in_order().key("k")
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
    // Four letters run before the reports come, and the others wait behind these.
    let jobs =
        [("letters", "letter", 0..4, 0), ("reports", "report", 0..10, 5), ("letters", "letter", 4..10, 10)];
    for (queue, kind, numbers, seconds) in jobs {
        for number in numbers {
            let options = SendOptions::new().delay(Duration::from_secs(seconds));
            let job = RawSend::json(kind, "{}").unwrap().id(&number.to_string()).with(options);
            let _ = admin.send(queue, job).await.unwrap();
        }
    }
    let worker = present(&storage).concurrency(8).handle(for_an_hour::<Task>);
    let worker = worker.handle(for_an_hour::<Letter>).handle(for_an_hour::<Report>);
    beside(worker, async || {
        let [worker] = &operator(&storage).workers().await.unwrap()[..] else { panic!("one worker") };
        assert_eq!(worker.record.running_total, 7);
        assert!(worker.record.has_slot_for("tasks"));
        for (queue, running) in [("letters", 4), ("reports", 3)] {
            assert_eq!((worker.record.running_of(queue), worker.record.slots_for(queue)), (running, 6));
            assert!(!worker.record.has_slot_for(queue));
            assert_eq!(reasons(&storage, queue, "9").await, ["no_free_slot"]);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn job_in_order_waits_for_one_that_runs() {
    let storage = in_memory();
    for id in ["first", "second", "third"] {
        send(&storage, id, in_order()).await;
    }
    beside(present(&storage).concurrency(8).handle(for_an_hour::<Task>), async || {
        assert_eq!(reasons(&storage, "tasks", "second").await, ["waits_for_turn"]);
        let [group] = &operator(&storage).groups("tasks").await.unwrap().groups[..] else {
            panic!("one group")
        };
        let ids: Vec<_> = group.entries.iter().filter_map(|entry| entry.id.as_deref()).collect();
        assert_eq!(ids, ["first", "second", "third"]);
        assert!(group.is_first_known);
    })
    .await;
}

/// Job `1` of one key is the first, that of another key waits. Where a log keeps the order, and where the
/// storage does.
// audit 23, coordination C3
#[tokio::test(start_paused = true)]
async fn turn_is_that_of_the_key_and_sender_of_the_job() {
    for storage in [in_memory(), Faulty::new(&in_memory()).storage()] {
        let of = |key: &str, source: &str| SendOptions::new().in_order().key(key).source(source);
        for (key, source) in [("a", "/ada"), ("k", "/bob"), ("k", "/zoe")] {
            send(&storage, "1", of(key, source)).await;
        }
        let turn = async |source: &str| {
            let job = JobReference::new("tasks", "1").with_source(source);
            let found = operator(&storage).explain(&job).await.unwrap();
            found.reasons.into_iter().find(|reason| reason.code == "waits_for_turn")
        };
        assert_eq!(turn("/ada").await, None);
        assert_eq!(turn("/bob").await, None);
        let turn = turn("/zoe").await.unwrap().text;
        assert_eq!(turn, "it is number 2 of 2 of its key, and waits for 1");
    }
}

#[tokio::test(start_paused = true)]
async fn job_in_order_waits_for_one_that_is_delayed_or_tried_again() {
    for fails in [false, true] {
        let storage = in_memory();
        let delay = Duration::from_secs(if fails { 0 } else { 3600 });
        send(&storage, "first", in_order().delay(delay)).await;
        send(&storage, "second", in_order().delay(Duration::from_secs(7200))).await;
        send(&storage, "third", in_order()).await;
        let handler =
            async |_: Task| Err::<(), _>(JobError::retry_after(Duration::from_secs(600), "not now"));
        beside(present(&storage).handle(handler), async || {
            assert_eq!(reasons(&storage, "tasks", "third").await, ["waits_for_turn"]);
            let [group] = &operator(&storage).groups("tasks").await.unwrap().groups[..] else {
                panic!("one group")
            };
            let ids: Vec<_> = group.entries.iter().filter_map(|entry| entry.id.as_deref()).collect();
            assert_eq!(ids, ["first", "second", "third"]);
        })
        .await;
    }
}

// audit 24, OP24-B1
#[tokio::test(start_paused = true)]
async fn delay_of_a_job_that_waits_for_its_turn_is_named_and_can_be_ended() {
    let (storage, hour) = (in_memory(), Duration::from_secs(3600));
    send(&storage, "first", in_order()).await;
    send(&storage, "second", in_order().delay(hour)).await;
    send(&storage, "third", in_order()).await;
    let admin = operator(&storage);
    assert_eq!(reasons(&storage, "tasks", "second").await, ["no_worker", "waits_for_turn", "delayed_until"]);
    assert_eq!(reasons(&storage, "tasks", "third").await, ["no_worker", "waits_for_turn"]);
    assert_eq!(admin.run_now(&JobReference::new("tasks", "third")).await.unwrap(), None);
    let second = JobReference::new("tasks", "second");
    assert!(admin.run_now(&second).await.unwrap().is_some());
    assert_eq!(reasons(&storage, "tasks", "second").await, ["no_worker", "waits_for_turn"]);
    let handler = async |_: Task| Ok::<_, JobError>(());
    let report = present(&storage).handle(handler).build().unwrap().run_until(after(60)).await.unwrap();
    assert_eq!(report.completed, 3, "the key does not stand still");
}

// audit 24, OP24-B3
#[tokio::test(start_paused = true)]
async fn groups_behind_too_many_jobs_are_not_said_to_be_none() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    for _ in 0..10 {
        let _ = queue.send_all(&vec![task("other"); 1_000]).await.unwrap();
    }
    for id in ["first", "second"] {
        send(&storage, id, in_order()).await;
    }
    let admin = operator(&storage);
    let found = admin.groups("tasks").await.unwrap();
    assert!(!found.complete && found.groups.is_empty(), "{found:?}");
    let found = admin.explain(&JobReference::new("tasks", "second")).await.unwrap();
    assert_eq!(found.place, JobPlace::Unseen, "it is behind as many");
}

// audit 24, OP24-B3
#[tokio::test(start_paused = true)]
async fn number_of_a_key_is_at_least_that_of_the_jobs_that_were_looked_at() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    send(&storage, "first", in_order()).await;
    send(&storage, "second", in_order()).await;
    for _ in 0..10 {
        let _ = queue.send_all(&vec![task("other"); 1_000]).with(in_order()).await.unwrap();
    }
    let found = operator(&storage).explain(&JobReference::new("tasks", "second")).await.unwrap();
    let turn = found.reasons.iter().find(|reason| reason.code == "waits_for_turn").unwrap();
    assert!(turn.text.starts_with("it is number 2 of at least 10000 of its key"), "{}", turn.text);
}

#[tokio::test(start_paused = true)]
async fn first_of_a_key_is_not_known_among_too_many_jobs() {
    let storage = in_memory();
    let delayed = SendOptions::new().delay(Duration::from_secs(60));
    let queue = storage.queue::<Task>().await.unwrap();
    for _ in 0..10 {
        let _ = queue.send_all(&vec![task("other"); 1_000]).with(delayed.clone()).await.unwrap();
    }
    send(&storage, "first", in_order().delay(Duration::from_secs(3600))).await;
    send(&storage, "second", in_order()).await;
    let admin = operator(&storage);
    let [group] = &admin.groups("tasks").await.unwrap().groups[..] else { panic!("one group") };
    assert!(!group.is_first_known);
    let found = admin.explain(&JobReference::new("tasks", "second")).await.unwrap();
    assert!(found.reasons.iter().any(|reason| reason.code == "waits_for_turn"), "{}", found.summary);
}

/// Shows the first messages only, as Service Bus does.
#[derive(Debug)]
pub(super) struct WithoutIndex;

impl Interceptor for WithoutIndex {
    fn queue_powers(&self, powers: QueuePowers) -> QueuePowers {
        QueuePowers { index: None, ..powers }
    }
}

#[tokio::test(start_paused = true)]
async fn first_of_a_key_is_not_known_where_a_peek_hides_it() {
    let storage = in_memory();
    send(&storage, "first", in_order()).await;
    send(&storage, "second", in_order()).await;
    let shows_few = Storage::from(storage.stores().intercepted(&Arc::new(WithoutIndex)));
    beside(present(&storage).concurrency(8).handle(for_an_hour::<Task>), async || {
        assert_eq!(reasons(&shows_few, "tasks", "second").await, ["waits_for_turn"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn limit_of_a_kind_holds_for_its_alias() {
    for kind in ["letter", "post"] {
        assert_eq!(third_behind_two::<Letter>("letter", kind).await, ["kind_limit"], "{kind}");
    }
}

// audit 24, core B2
#[tokio::test(start_paused = true)]
async fn kinds_of_a_former_version_are_known_and_limited_as_its_own() {
    for kind in ["parcel", "letter", "post"] {
        assert_eq!(third_behind_two::<Parcel>("letter", kind).await, ["kind_limit"], "{kind}");
    }
}

/// Returns why a job of `kind` waits behind two of `running`, of which a worker runs no more at once.
async fn third_behind_two<M: QueueMessage>(running: &str, kind: &str) -> Vec<&'static str> {
    let storage = in_memory();
    let admin = operator(&storage);
    admin.create_queue("letters").await.unwrap();
    for (id, kind) in [("1", running), ("2", running), ("3", kind)] {
        let _ = admin.send("letters", RawSend::json(kind, "{}").unwrap().id(id)).await.unwrap();
    }
    let worker = present(&storage).concurrency(8).handle(for_an_hour::<M>);
    let mut found = Vec::new();
    let look = async || found = reasons(&storage, "letters", "3").await;
    beside(worker.limit::<M>(HandlerLimits::new().concurrency(2)), look).await;
    found
}
