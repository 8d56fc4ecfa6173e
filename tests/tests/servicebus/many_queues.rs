//! Many queues over one connection: none waits for another, and the service's limit of links is never reached.

use std::time::Duration;

use futures_util::future::join_all;
use jobqueue::QueueName;
use jobqueue::storage::{Access, GetMessages, PutMessage, StoreErrorKind, UpdateMessage};
use jobqueue_test_support::servicebus::is_excluded;
use serde_json::json;
use tokio::time::timeout;

use super::{Bench, MINUTE};

const SOON: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_whose_links_are_not_attached_holds_up_no_other() {
    let bench = Bench::new();
    bench.emulator.create_queue("slow", json!({}));
    let slow = QueueName::new("slow").unwrap();
    let leased = bench.leased("job").await;
    let apart = bench.storage.detached();
    apart.queues().update(&bench.queue, &leased.message, UpdateMessage::new(MINUTE)).await.unwrap();
    let fault = bench.emulator.plant_with("attach", "hold", json!({ "entity": "slow", "times": null }));
    for storage in [&bench.storage, &apart] {
        let (storage, slow) = (storage.clone(), slow.clone());
        tokio::spawn(async move { storage.queues().get(&slow, GetMessages::new(1, MINUTE)).await });
    }
    tokio::task::block_in_place(|| assert_eq!(fault.wait(2), 2));
    let working = async {
        apart.queues().update(&bench.queue, &leased.message, UpdateMessage::new(MINUTE)).await.unwrap();
        bench.delete(&leased.message).await.unwrap();
        // Over links that are not attached yet.
        let next = bench.leased("next").await;
        let change = UpdateMessage::new(MINUTE).with_text("later".to_owned()).ending_lease();
        bench.update(&next.message, change).await.unwrap();
    };
    timeout(SOON, working).await.expect("waits for the other queue");
    assert_eq!(bench.count("scheduled"), 1);
}

// Each had an attempt of its own, one after the other: the last of many heard of an outage after half an hour.
#[tokio::test]
async fn all_who_wait_for_a_link_that_cannot_be_attached_share_the_refusal() {
    let bench = Bench::new();
    // The token is there, so that nothing but the link is missing.
    bench.put(PutMessage::new("job")).await.unwrap();
    let fault =
        bench.emulator.plant_with("attach-receiver", "busy", json!({ "entity": "work", "times": null }));
    let waiting = (0..8).map(|_| bench.store().check_access(&bench.queue, Access::Process));
    for refused in join_all(waiting).await {
        assert_eq!(refused.unwrap_err().kind(), StoreErrorKind::Throttled);
    }
    assert_eq!(fault.hits(), 2, "that of the first, and one for those who came meanwhile");
    fault.remove();
    bench.store().check_access(&bench.queue, Access::Process).await.unwrap();
}

#[tokio::test]
async fn more_queues_than_links_of_a_session_are_served() {
    // The service allows 255; then it ends the session of AMQP with all its links.
    let bench = Bench::with(json!({}), &["--handle-max", "12"]);
    for number in 0..12 {
        let name = format!("queue{number}");
        bench.emulator.create_queue(&name, json!({}));
        let queue = QueueName::new(name).unwrap();
        let queues = bench.store();
        queues.put(&queue, PutMessage::new("job")).await.unwrap();
        let got = queues.get(&queue, GetMessages::new(1, MINUTE)).await.unwrap();
        let change = UpdateMessage::new(MINUTE).with_text("later".to_owned()).ending_lease();
        queues.update(&queue, &got.messages[0].message, change).await.unwrap();
    }
    let links = bench.emulator.links();
    let mut connections: Vec<_> =
        links.as_array().unwrap().iter().map(|link| link["connection"].to_string()).collect();
    connections.sort();
    connections.dedup();
    assert_eq!(connections.len(), 1, "{links}");
    assert!(links.as_array().unwrap().len() > 40, "{links}");
}

// Sessions that wait for the end of a delay kept their channels, and nothing else could begin.
#[tokio::test]
async fn a_connection_that_has_all_its_channels_is_followed_by_another() {
    if is_excluded("many_queues::a_connection_that_has_all_its_channels_is_followed_by_another") {
        return;
    }
    let settings = json!({ "RequiresSession": true, "MaxDeliveryCount": 2000 });
    let bench = Bench::with(settings, &["--channel-max", "7"]);
    for session in 0..10 {
        bench.put_in(&session.to_string(), "job").await;
    }
    let mut delayed = 0;
    while delayed < 10 {
        if let Some(leased) = bench.get().await {
            let change = UpdateMessage::new(60 * MINUTE).ending_lease();
            bench.update(&leased.message, change).await.unwrap();
            delayed += 1;
        }
    }
    bench.emulator.create_queue("other", json!({}));
    let other = QueueName::new("other").unwrap();
    let putting = bench.store().put(&other, PutMessage::new("job"));
    timeout(MINUTE, putting).await.expect("nothing else can begin").unwrap();
    let held = bench.emulator.queue("work")["messages"].clone();
    let held = held.as_array().unwrap().iter().filter(|message| message["lockedUntil"].is_number()).count();
    assert_eq!(held, 10, "a session was lost");
}
