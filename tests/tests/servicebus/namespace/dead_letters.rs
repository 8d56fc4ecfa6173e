//! Dead letters between this storage and a Python program with the stock package, in the service's own
//! dead-letter queue.

use std::time::Duration;

use jobqueue::Reason;
use jobqueue::dead_letters::DeadLetterOptions;
use serde_json::{Value, json};

use super::interop::run;
use super::{Letter, Moved, Place};

/// The longest time for a message to come.
const WAIT: Duration = Duration::from_secs(30);

const READ_LETTER: &str = "
import json, sys
from azure.servicebus import ServiceBusClient, ServiceBusSubQueue
with ServiceBusClient.from_connection_string(sys.argv[1]) as client:
    with client.get_queue_receiver(sys.argv[2], sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        for message in receiver.receive_messages(max_message_count=1, max_wait_time=20):
            print(json.dumps([message.dead_letter_reason, message.dead_letter_error_description]))
            receiver.complete_message(message)
";

const DEAD_LETTER: &str = "
import sys
from azure.servicebus import ServiceBusClient
with ServiceBusClient.from_connection_string(sys.argv[1]) as client:
    with client.get_queue_receiver(sys.argv[2]) as receiver:
        for message in receiver.receive_messages(max_message_count=1, max_wait_time=20):
            receiver.dead_letter_message(message, reason='broken', error_description='the lens')
";

#[tokio::test(flavor = "multi_thread")]
async fn a_python_program_reads_why_we_dead_lettered() {
    let place = Place::<Letter>::open().await;
    place.queue.send(&place.message("bad")).await.unwrap();
    let job = place.queue.receive(WAIT).await.unwrap().expect("the job comes");
    job.dead_letter(Reason::REJECTED, "no such address").await.unwrap();
    let dead = place.queue.dead_letters().unwrap();
    let letters = dead.list().await.unwrap().letters;
    assert_eq!(letters.len(), 1, "{letters:?}");
    let letter = &letters[0];
    assert_eq!(&letter.reason, &Reason::REJECTED);
    assert_eq!(letter.error.as_deref(), Some("no such address"));
    assert_eq!(letter.attempts, 1);
    assert_eq!(letter.deliveries, 1);
    assert_eq!(dead.message(letter).await.unwrap().name, "bad");
    let read: Value = serde_json::from_str(&run(READ_LETTER, &[place.name.as_str()])).unwrap();
    assert_eq!(read, json!(["rejected", "no such address"]));
    assert!(dead.list().await.unwrap().letters.is_empty(), "it was not completed");
    place.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letter_of_a_python_program_is_listed_and_redriven() {
    let place = Place::<Moved>::open().await;
    place.queue.send(&place.message("moved")).await.unwrap();
    run(DEAD_LETTER, &[place.name.as_str()]);
    let dead = place.queue.dead_letters().unwrap();
    let letters = dead.list().await.unwrap().letters;
    assert_eq!(letters.len(), 1, "{letters:?}");
    assert_eq!(&*letters[0].reason.to_string(), "broken");
    assert_eq!(letters[0].error.as_deref(), Some("the lens"));
    assert_eq!(dead.redrive(DeadLetterOptions::new()).await.unwrap().moved.len(), 1);
    let job = place.queue.receive(WAIT).await.unwrap().expect("the dead letter is back");
    assert_eq!(job.message().name.as_str(), "moved");
    assert_eq!(job.info().attempt, 1);
    job.complete().await.unwrap();
    assert!(dead.list().await.unwrap().letters.is_empty());
    place.close().await;
}
