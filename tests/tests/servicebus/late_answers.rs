//! Answers that come late or never: what waits for them, and what does not.

use std::time::Duration;

use jobqueue::sharded::Sharded;
use jobqueue::storage::{GetMessages, Operation, PutMessage, UpdateMessage};
use jobqueue::{QueueName, Storage};
use jobqueue_test_support::servicebus::is_excluded;
use jobqueue_testing::faults::{Fault, Faulty};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::{advance, pause, resume, sleep, timeout};

use super::{Bench, MINUTE, options};

const SOON: Duration = Duration::from_secs(10);
/// A little more than the longest time for an answer of the service.
const LATE: Duration = Duration::from_secs(31);

impl Bench {
    fn putting(&self, queue: &QueueName, message: PutMessage) -> JoinHandle<bool> {
        let (storage, queue) = (self.storage.clone(), queue.clone());
        tokio::spawn(async move { storage.queues().put(&queue, message).await.is_ok() })
    }
}

pub(super) async fn until(condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(MINUTE, waiting).await.expect("it does not happen");
}

/// Lets time pass for this process only.
pub(super) async fn pass(time: Duration) {
    pause();
    advance(time).await;
    resume();
}

// The client ended the session of AMQP, with all links of the queue, when the answer came.
#[tokio::test]
async fn late_answer_to_an_attach_costs_no_other_link() {
    let bench = Bench::with(json!({}), &["--locks-end-with-links", "true"]);
    // By another process, so that this one has no link for it.
    bench.another().queues().put(&bench.queue, PutMessage::new("job")).await.unwrap();
    let leased = bench.get().await.unwrap();
    let fault = bench.emulator.plant_with("attach-sender", "hold", json!({ "entity": "work" }));
    let putting = bench.putting(&bench.queue, PutMessage::new("late"));
    until(|| fault.hits() == 1).await;
    pass(LATE).await;
    assert!(!putting.await.unwrap());
    fault.release();
    while let Err(error) = bench.put(PutMessage::new("next")).await {
        assert!(error.is_retryable(), "{error:?}");
    }
    bench.delete(&leased.message).await.unwrap();
}

// It waited for ever, and with it all who wanted its link.
#[tokio::test]
async fn attach_behind_one_without_an_answer_ends_with_it() {
    let bench = Bench::new();
    bench.another().queues().put(&bench.queue, PutMessage::new("job")).await.unwrap();
    let fault = bench.emulator.plant_with("attach-sender", "hold", json!({ "entity": "work" }));
    let putting = bench.putting(&bench.queue, PutMessage::new("late"));
    until(|| fault.hits() == 1).await;
    let (storage, queue) = (bench.storage.clone(), bench.queue.clone());
    let getting =
        tokio::spawn(async move { storage.queues().get(&queue, GetMessages::new(1, MINUTE)).await.is_ok() });
    sleep(Duration::from_millis(200)).await;
    pass(LATE).await;
    assert!(!putting.await.unwrap());
    assert!(!timeout(SOON, getting).await.expect("it waits for the attach before it").unwrap());
    assert!(bench.get().await.is_some());
}

// It was read when the other one had its credit, or none in half a minute.
#[tokio::test]
async fn outcome_of_a_send_is_told_while_another_waits_for_credit() {
    if is_excluded("late_answers::outcome_of_a_send_is_told_while_another_waits_for_credit") {
        return;
    }
    let bench = Bench::new();
    bench.emulator.plant_with("attach-sender", "starve", json!({ "entity": "work", "credits": 1 }));
    let fault = bench.emulator.plant("send", "hold");
    let first = bench.putting(&bench.queue, PutMessage::new("first"));
    until(|| fault.hits() == 1).await;
    let second = bench.putting(&bench.queue, PutMessage::new("second"));
    sleep(Duration::from_millis(200)).await;
    fault.release();
    assert!(timeout(SOON, first).await.expect("it waits for the other one").unwrap());
    second.abort();
}

// It was told as "no answer" when another request had none.
#[tokio::test]
async fn answer_to_a_request_comes_after_the_end_of_another_without_an_outcome() {
    if is_excluded("late_answers::request_without_an_outcome_holds_up_no_other") {
        return;
    }
    let bench = Bench::new();
    bench.put(PutMessage::new("job")).await.unwrap();
    bench.store().peek(&bench.queue, 1).await.unwrap();
    let fault = bench.emulator.plant_with("accept", "drop", json!({ "entity": "work" }));
    let delayed = PutMessage::new("late").with_visibility_delay(MINUTE);
    let putting = bench.putting(&bench.queue, delayed);
    until(|| fault.hits() == 1).await;
    pass(LATE - Duration::from_secs(3)).await;
    let peek = bench.emulator.plant("peek-message", "hold");
    let (storage, queue) = (bench.storage.clone(), bench.queue.clone());
    let peeking = tokio::spawn(async move { storage.queues().peek(&queue, 1).await });
    until(|| peek.hits() == 1).await;
    pass(Duration::from_secs(5)).await;
    sleep(Duration::from_millis(100)).await;
    peek.release();
    assert_eq!(timeout(SOON, peeking).await.unwrap().unwrap().unwrap().len(), 1);
    drop(putting.await);
    // Over another link.
    assert_eq!(bench.store().peek(&bench.queue, 1).await.unwrap().len(), 1);
}

// It was read when the other request had its credit, or none in half a minute.
#[tokio::test]
async fn answer_to_a_request_is_told_while_another_waits_for_credit() {
    if is_excluded("late_answers::outcome_of_a_send_is_told_while_another_waits_for_credit") {
        return;
    }
    let bench = Bench::new();
    bench.another().queues().put(&bench.queue, PutMessage::new("job")).await.unwrap();
    bench.emulator.plant_with("attach-sender", "starve", json!({ "entity": "work", "credits": 1 }));
    let peek = bench.emulator.plant("peek-message", "hold");
    let peeking = |count| {
        let (storage, queue) = (bench.storage.clone(), bench.queue.clone());
        tokio::spawn(async move { storage.queues().peek(&queue, count).await })
    };
    let first = peeking(1);
    until(|| peek.hits() == 1).await;
    let second = peeking(2);
    sleep(Duration::from_millis(200)).await;
    peek.release();
    let answer = timeout(SOON, first).await.expect("it waits for the other one");
    assert_eq!(answer.unwrap().unwrap().len(), 1);
    second.abort();
}

// It was used until the other request had its credit, or none in half a minute: all that came were refused
// then.
#[tokio::test]
async fn node_that_is_given_up_takes_no_request_while_another_waits_for_credit() {
    let needed = [
        "outcome_of_a_send_is_told_while_another_waits_for_credit",
        "request_without_an_outcome_holds_up_no_other",
    ];
    if needed.iter().any(|name| is_excluded(&format!("late_answers::{name}"))) {
        return;
    }
    let bench = Bench::new();
    bench.another().queues().put(&bench.queue, PutMessage::new("job")).await.unwrap();
    bench.emulator.plant_with("attach-sender", "starve", json!({ "entity": "work", "credits": 1 }));
    let fault = bench.emulator.plant_with("accept", "drop", json!({ "entity": "work" }));
    bench.store().peek(&bench.queue, 1).await.unwrap();
    assert_eq!(fault.hits(), 1);
    pass(LATE - Duration::from_secs(3)).await;
    let (storage, queue) = (bench.storage.clone(), bench.queue.clone());
    let waiting = tokio::spawn(async move { storage.queues().peek(&queue, 2).await.is_ok() });
    sleep(Duration::from_millis(200)).await;
    pass(Duration::from_secs(5)).await;
    sleep(Duration::from_millis(100)).await;
    let peeked =
        timeout(SOON, bench.store().peek(&bench.queue, 1)).await.expect("it waits for the other one");
    assert_eq!(peeked.unwrap().len(), 1);
    waiting.abort();
}

// The connection was closed under its deliveries, although the token of their queue was good.
#[tokio::test]
async fn link_for_tokens_that_is_not_attached_costs_no_connection_while_a_token_is_good() {
    let bench = Bench::with(json!({}), &["--locks-end-with-links", "true"]);
    let leased = bench.leased("job").await;
    bench.detach("$cbs").await;
    bench.emulator.create_queue("other", json!({}));
    let other = QueueName::new("other").unwrap();
    let fault = bench.emulator.plant_with("attach", "hold", json!({ "entity": "$cbs", "times": null }));
    let putting = bench.putting(&other, PutMessage::new("late"));
    until(|| fault.hits() == 1).await;
    pass(LATE).await;
    assert!(!putting.await.unwrap());
    bench.put(PutMessage::new("next")).await.unwrap();
    fault.remove();
    while let Err(error) = bench.store().put(&other, PutMessage::new("at last")).await {
        assert!(error.is_retryable(), "{error:?}");
    }
    assert_eq!(bench.emulator.calls("open", "", 0), 1, "connections");
    bench.delete(&leased.message).await.unwrap();
}

// Each request waited for the outcome of the one before.
#[tokio::test]
async fn request_without_an_outcome_holds_up_no_other() {
    if is_excluded("late_answers::request_without_an_outcome_holds_up_no_other") {
        return;
    }
    let bench = Bench::new();
    bench.store().peek(&bench.queue, 1).await.unwrap();
    let fault = bench.emulator.plant_with("accept", "hold", json!({ "entity": "work" }));
    let delayed = || PutMessage::new("delayed").with_visibility_delay(MINUTE);
    let first = bench.putting(&bench.queue, delayed());
    until(|| fault.hits() == 1).await;
    timeout(SOON, bench.put(delayed())).await.expect("waits for the other request").unwrap();
    fault.release();
    assert!(first.await.unwrap());
    assert_eq!(bench.count("scheduled"), 2);
}

// The renewal over the other connection named the link of the first, was refused, and ended the lease.
#[tokio::test]
async fn session_whose_holder_does_not_answer_is_renewed_over_another_connection() {
    for is_refused_there in [false, true] {
        let bench = Bench::of_sessions_with(json!({ "LockDuration": "PT5S" }));
        bench.put_in("a", "0").await;
        let leased = bench.next().await;
        let held = bench.emulator.plant("renew-session-lock", "hold");
        let lost = json!({ "condition": "com.microsoft:session-lock-lost", "status": 410 });
        let refused =
            is_refused_there.then(|| bench.emulator.plant_with("renew-session-lock", "error", lost));
        let (apart, queue, message) = (bench.storage.detached(), bench.queue.clone(), leased.message.clone());
        let change = UpdateMessage::new(MINUTE);
        let renewing = tokio::spawn(async move { apart.queues().update(&queue, &message, change).await });
        if let Some(refused) = refused {
            until(|| refused.hits() == 1).await;
            held.release();
        }
        let renewed = timeout(SOON, renewing).await.expect("waits for the holder").unwrap();
        renewed.unwrap_or_else(|error| panic!("refused: {is_refused_there}: {error:?}"));
        bench.delete(&leased.message).await.unwrap();
    }
}

// Messages waited for the blobs one after the other, without a limit, until their locks were over.
#[tokio::test]
async fn blobs_that_do_not_answer_cost_no_delivery() {
    for (sessions, operation) in [(false, Operation::BlobProperties), (true, Operation::PutBlob)] {
        let bench = Bench::with(json!({ "RequiresSession": sessions, "MaxDeliveryCount": 3 }), &[]);
        // Quiet: the emulator is asked in real time.
        let blobs = Faulty::quiet(&bench.blobs);
        let storage = Storage::from(options(&bench.emulator).with_blobs_of(blobs.storage()).unwrap());
        bench.put(PutMessage::new("job")).await.unwrap();
        blobs.plan_always(operation, Fault::Hang);
        let (asking, queue) = (storage.clone(), bench.queue.clone());
        let getting =
            tokio::spawn(async move { asking.queues().get(&queue, GetMessages::new(3, MINUTE)).await });
        until(|| blobs.calls_of(operation) > 0).await;
        // A third of the lock, and then the pause after which the message is released.
        pass(MINUTE / 3).await;
        let got = timeout(SOON, getting).await.expect("waits for the blobs").unwrap().unwrap();
        assert!(got.messages.is_empty(), "got without its blob");
        blobs.heal();
        pass(Duration::from_secs(5)).await;
        let again = timeout(SOON, async {
            loop {
                if let Some(again) = bench.get_from(&storage).await {
                    return again;
                }
            }
        });
        let again = again.await.expect("it is not released");
        assert_eq!(again.dequeue_count, 1, "sessions: {sessions}");
        assert_eq!(bench.emulator.queue("work")["messages"][0]["deliveries"], 0, "sessions: {sessions}");
        storage.queues().delete(&bench.queue, &again.message, Default::default()).await.unwrap();
    }
}

// What its link had handed out stayed locked, and the service counted a delivery: a get of a shard is given
// up after five seconds.
#[tokio::test]
async fn get_that_is_dropped_while_it_waits_for_the_blobs_costs_no_delivery() {
    for is_shard in [false, true] {
        let bench = Bench::with(json!({ "MaxDeliveryCount": 3 }), &[]);
        // Quiet: the emulator is asked in real time.
        let blobs = Faulty::quiet(&bench.blobs);
        let mut storage = Storage::from(options(&bench.emulator).with_blobs_of(blobs.storage()).unwrap());
        if is_shard {
            let sharded = Sharded::builder().account("one", storage).shards("work", 1).build().unwrap();
            storage = Storage::from(sharded.stores());
        }
        bench.put(PutMessage::new("job")).await.unwrap();
        blobs.plan_always(Operation::BlobProperties, Fault::Hang);
        let queue = bench.queue.clone();
        let getting =
            tokio::spawn(async move { storage.queues().get(&queue, GetMessages::new(3, MINUTE)).await });
        until(|| blobs.calls_of(Operation::BlobProperties) > 0).await;
        if is_shard {
            pass(Duration::from_secs(6)).await;
            timeout(SOON, getting).await.expect("the shard is awaited").unwrap().unwrap_err();
        } else {
            getting.abort();
        }
        let other = bench.another();
        let again = async {
            loop {
                if let Some(again) = bench.get_from(&other).await {
                    return again;
                }
            }
        };
        let again = timeout(SOON, again).await.expect("it is not released");
        assert_eq!(again.dequeue_count, 1, "shard: {is_shard}");
        assert_eq!(bench.emulator.queue("work")["messages"][0]["deliveries"], 0, "shard: {is_shard}");
    }
}
