//! Messages of a Python program with the stock package, and messages for it.

use std::path::PathBuf;
use std::process::Command;

use jobqueue::storage::PutMessage;
use jobqueue_test_support::{python, servicebus};
use serde_json::{Value, json};

use super::Bench;

const SEND: &str = "
import sys
from azure.servicebus import ServiceBusClient, ServiceBusMessage
with ServiceBusClient.from_connection_string(sys.argv[1]) as client:
    with client.get_queue_sender('work') as sender:
        message = ServiceBusMessage(sys.argv[2], message_id='py-1', application_properties={'tenant': 'a'})
        sender.send_messages(message)
";

const RECEIVE: &str = "
import json, sys
from azure.servicebus import ServiceBusClient
with ServiceBusClient.from_connection_string(sys.argv[1]) as client:
    with client.get_queue_receiver('work') as receiver:
        for message in receiver.receive_messages(max_message_count=1, max_wait_time=20):
            print(json.dumps({'body': str(message), 'id': message.message_id, 'type': message.content_type}))
            receiver.complete_message(message)
";

fn interpreter() -> PathBuf {
    let list = servicebus::source().join("clients/python/requirements.txt");
    python::environment("servicebus-python", &list).unwrap_or_else(|error| panic!("{error}"))
}

pub(super) fn run(bench: &Bench, program: &str, argument: &str) -> String {
    let connection = bench.emulator.connection_string();
    let output = Command::new(interpreter()).args(["-c", program, connection, argument]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn a_python_producer_is_understood() {
    let bench = Bench::new();
    let event =
        json!({ "specversion": "1.0", "id": "1", "source": "urn:x", "type": "a/b", "data": { "text": "ü" } });
    run(&bench, SEND, &event.to_string());
    let leased = bench.get().await.unwrap();
    assert_eq!(serde_json::from_str::<Value>(leased.text.as_ref().unwrap()).unwrap(), event);
    assert!(leased.message.id.as_str().ends_with("py-1"), "{leased:?}");
    bench.delete(&leased.message).await.unwrap();
    assert_eq!(bench.count("active"), 0);
}

#[tokio::test]
async fn a_python_consumer_understands_us() {
    let bench = Bench::new();
    let message = PutMessage::new(json!({ "text": "ü\r\n<&>" }).to_string()).with_job("job-7".to_owned());
    bench.put(message).await.unwrap();
    let read: Value = serde_json::from_str(&run(&bench, RECEIVE, "")).unwrap();
    assert_eq!(read["id"], "job-7");
    assert_eq!(read["type"], "application/cloudevents+json");
    let body: Value = serde_json::from_str(read["body"].as_str().unwrap()).unwrap();
    assert_eq!(body["text"], "ü\r\n<&>");
    assert_eq!(bench.count("active"), 0);
}
