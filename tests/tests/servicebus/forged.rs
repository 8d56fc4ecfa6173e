//! Properties that any program with the claim Send can set, and those that stock tools send back.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use jobqueue::storage::{DeadLetterCause, DeadLetterMessage, GetMessages, UpdateMessage};
use jobqueue::{JobError, Worker};
use serde_json::json;

use super::jobs::Work;
use super::{Bench, MINUTE, python};

pub(super) const SEND: &str = "
import json, sys
from azure.servicebus import ServiceBusClient, ServiceBusMessage
with ServiceBusClient.from_connection_string(sys.argv[1]) as client:
    with client.get_queue_sender('work') as sender:
        properties = json.loads(sys.argv[2])
        message_id, session, hexadecimal = (sys.argv[4:] + [None] * 3)[:3]
        body = bytes.fromhex(hexadecimal) if hexadecimal else sys.argv[3]
        message = ServiceBusMessage(body, application_properties=properties, message_id=message_id, session_id=session or None)
        sender.send_messages(message)
";

/// D2: a producer's word for earlier deliveries made the worker believe a whole history.
#[tokio::test]
async fn deliveries_that_a_producer_claims_are_not_counted() {
    let bench = Bench::new();
    let seal = "0".repeat(64);
    for claim in
        [json!({ "jobqueue-dequeued": 7 }), json!({ "jobqueue-dequeued": "7", "jobqueue-seal": seal })]
    {
        python::run(bench.emulator.connection_string(), SEND, &[&claim.to_string(), "text"]);
        let leased = bench.get().await.unwrap();
        assert_eq!(leased.dequeue_count, 1, "{claim}");
        // From here on the count is the framework's own, also for other processes.
        let back = UpdateMessage::new(Duration::ZERO).with_text("put back".to_owned()).ending_lease();
        bench.update(&leased.message, back).await.unwrap();
        let other = bench.another();
        let again = bench.get_from(&other).await.unwrap();
        assert_eq!((again.dequeue_count, again.text.as_deref()), (2, Ok("put back")), "{claim}");
        other.queues().delete(&bench.queue, &again.message, Default::default()).await.unwrap();
    }
}

// A tool that sends a message again sends this property along, and the job was over before it came.
#[tokio::test]
async fn an_end_that_a_producer_claims_is_not_believed() {
    let bench = Bench::new();
    let claim = json!({ "jobqueue-expires": "1000" });
    python::run(bench.emulator.connection_string(), SEND, &[&claim.to_string(), "text"]);
    let leased = bench.get().await.unwrap();
    assert_eq!(leased.expires, None);
    let back = UpdateMessage::new(Duration::ZERO).with_text("put back".to_owned()).ending_lease();
    bench.update(&leased.message, back).await.unwrap();
    assert_eq!(bench.get().await.unwrap().expires, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_producer_cannot_say_that_a_handler_has_ended() {
    let bench = Bench::new();
    let _ = bench.storage.queue::<Work>().await.unwrap();
    let event = json!({
        "specversion": "1.0", "id": "1", "source": "urn:x", "type": "work", "data": { "name": "forged" },
        "attempts": 3, "deliverycount": 7, "handlerfinished": "{}"
    });
    let claim = json!({ "jobqueue-dequeued": 10 });
    python::run(bench.emulator.connection_string(), SEND, &[&claim.to_string(), &event.to_string()]);
    let runs = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&runs);
    let handler = move |_: Work| {
        count.fetch_add(1, Ordering::SeqCst);
        async { Ok::<(), JobError>(()) }
    };
    let worker = Worker::builder(bench.storage.clone()).max_idle_delay(Duration::from_millis(200));
    let report = worker.handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!((report.completed, runs.load(Ordering::SeqCst)), (1, 1), "{report:?}");
}

// Of many letters with one id, a pass removed one, and looked at none behind them.
#[tokio::test]
async fn letters_of_messages_with_one_id_are_told_apart() {
    let bench = Bench::new();
    let _ = bench.storage.queue::<Work>().await.unwrap();
    for id in ["", "x", "6b1f2c8e-0f0d-4f0e-9d59-1d3a5f2d7c11"] {
        for _ in 0..2 {
            let claim = json!({ "jobqueue-id": id });
            python::run(bench.emulator.connection_string(), SEND, &[&claim.to_string(), "text"]);
        }
    }
    let mut ids = HashSet::new();
    for _ in 0..6 {
        let leased = bench.get().await.unwrap();
        ids.insert(leased.message.id.clone());
        let letter = DeadLetterMessage::new("dead", DeadLetterCause::new("rejected"));
        bench.store().dead_letter(&bench.queue, &leased.message, letter).await.unwrap();
    }
    // Messages may have one id; an empty one is none.
    assert_eq!(ids.len(), 4);
    let letters = bench.store().peek(&bench.queue.dead_letter().unwrap(), 10).await.unwrap();
    let ids: HashSet<_> = letters.iter().map(|letter| letter.id.clone()).collect();
    assert_eq!(ids.len(), 6, "{letters:?}");
    assert!(letters.iter().all(|letter| letter.text.as_deref() == Ok("dead")), "{letters:?}");
}

const RESEND: &str = "
import sys
from azure.servicebus import ServiceBusClient, ServiceBusMessage
with ServiceBusClient.from_connection_string(sys.argv[1]) as client:
    with client.get_queue_receiver('work') as receiver, client.get_queue_sender('work') as sender:
        message = receiver.receive_messages(max_message_count=1, max_wait_time=20)[0]
        copy = ServiceBusMessage(b''.join(message.body), application_properties=message.application_properties)
        sender.send_messages(copy)
        receiver.complete_message(message)
";

/// D6: the SDK for Python cannot send an integer of 64 bits.
#[tokio::test]
async fn a_stock_tool_resends_a_message_with_its_properties() {
    let bench = Bench::new();
    let first = bench.leased("text").await;
    let back = UpdateMessage::new(Duration::ZERO).with_text("put back".to_owned()).ending_lease();
    bench.update(&first.message, back).await.unwrap();
    python::run(bench.emulator.connection_string(), RESEND, &[]);
    let again = bench.get().await.unwrap();
    assert_eq!((again.text.as_deref(), again.inserted), (Ok("put back"), first.inserted));
    // The text is as the framework wrote it, and so is its count.
    assert_eq!(again.dequeue_count, 2);
    bench.delete(&again.message).await.unwrap();
}

const COPY_LETTER: &str = "
import sys
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue
with ServiceBusClient.from_connection_string(sys.argv[1]) as client:
    letters = client.get_queue_receiver('work', sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    with letters, client.get_queue_sender('work') as sender:
        letter = letters.receive_messages(max_message_count=1, max_wait_time=20)[0]
        sender.send_messages(ServiceBusMessage('edited', application_properties=letter.application_properties))
        letters.abandon_message(letter)
";

// A tool sends the properties along, and the number of the letter's text is one of them: the edited job had
// the text of the letter, and a purge of it took that text away.
#[tokio::test]
async fn copy_of_a_letter_that_dies_has_a_text_of_its_own() {
    for text in ["dead", &"x".repeat(30_000)] {
        let bench = Bench::with(json!({ "MaxDeliveryCount": 1 }), &[]);
        let leased = bench.leased("sent").await;
        let letter = DeadLetterMessage::new(text, DeadLetterCause::new("rejected"));
        bench.store().dead_letter(&bench.queue, &leased.message, letter).await.unwrap();
        python::run(bench.emulator.connection_string(), COPY_LETTER, &[]);
        let copy = bench.get().await.unwrap();
        bench.update(&copy.message, UpdateMessage::new(Duration::ZERO)).await.unwrap();
        let letters = bench.queue.dead_letter().unwrap();
        let texts = async || {
            let shown = bench.store().peek(&letters, 10).await.unwrap();
            shown.into_iter().map(|letter| letter.text.unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(texts().await, [text, "edited"]);
        let mut leased = Vec::new();
        while leased.len() < 2 {
            leased.extend(bench.store().get(&letters, GetMessages::new(2, MINUTE)).await.unwrap().messages);
        }
        let edited = leased.iter().find(|letter| letter.text.as_deref() == Ok("edited")).unwrap();
        bench.store().delete(&letters, &edited.message, Default::default()).await.unwrap();
        assert_eq!(texts().await, [text]);
    }
}
