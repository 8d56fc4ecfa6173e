//! Messages of a Python program with the stock package, and messages for it.

use std::time::Duration;

use jobqueue::storage::PutMessage;
use serde_json::{Value, json};

use super::{ForPython, FromPython, Place, connection_string};
use crate::python;

/// The longest time for a message to come.
const WAIT: Duration = Duration::from_secs(30);

const SEND: &str = "
import sys
from azure.servicebus import ServiceBusClient, ServiceBusMessage
with ServiceBusClient.from_connection_string(sys.argv[1]) as client:
    with client.get_queue_sender(sys.argv[2]) as sender:
        message = ServiceBusMessage(sys.argv[3], message_id='py-1', application_properties={'tenant': 'a'})
        sender.send_messages(message)
";

const RECEIVE: &str = "
import json, sys
from azure.servicebus import ServiceBusClient
with ServiceBusClient.from_connection_string(sys.argv[1]) as client:
    with client.get_queue_receiver(sys.argv[2]) as receiver:
        for message in receiver.receive_messages(max_message_count=1, max_wait_time=20):
            print(json.dumps({'body': str(message), 'id': message.message_id, 'type': message.content_type}))
            receiver.complete_message(message)
";

/// Runs a Python program on the namespace; returns its output.
pub(super) fn run(program: &str, arguments: &[&str]) -> String {
    python::run(&connection_string(), program, arguments)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_python_producer_is_understood() {
    let place = Place::<FromPython>::open().await;
    let event = json!({
        "specversion": "1.0", "id": "1", "source": "urn:x", "type": "test", "data": { "name": "ü" }
    });
    run(SEND, &[place.name.as_str(), &event.to_string()]);
    let job = place.queue.receive(WAIT).await.unwrap().expect("the message comes");
    assert_eq!(job.message().name.as_str(), "ü");
    assert_eq!(job.info().attempt, 1);
    job.complete().await.unwrap();
    assert!(place.queue.receive(Duration::ZERO).await.unwrap().is_none());
    place.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_python_consumer_understands_us() {
    let place = Place::<ForPython>::open().await;
    let text = json!({ "text": "ü\r\n<&>" }).to_string();
    let message = PutMessage::new(text).with_job("/test", "job-7");
    place.storage.queues().put(&place.name, message).await.unwrap();
    let read: Value = serde_json::from_str(&run(RECEIVE, &[place.name.as_str()])).unwrap();
    assert_eq!(read["id"], "/test job-7");
    assert_eq!(read["type"], "application/cloudevents+json");
    let body: Value = serde_json::from_str(read["body"].as_str().unwrap()).unwrap();
    assert_eq!(body["text"], "ü\r\n<&>");
    assert!(place.queue.receive(Duration::ZERO).await.unwrap().is_none(), "it was not completed");
    place.close().await;
}
