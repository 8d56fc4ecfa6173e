//! Messages whose values are nested deeply, as any program with the claim Send can send them.

use std::time::Duration;

use jobqueue::{JobError, Worker};
use serde_json::json;
use tokio::time::timeout;

use super::jobs::Work;
use super::{Bench, MINUTE, python};

/// Sends a message with lists in lists, and then a job.
const SEND: &str = "
import sys
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties
sys.setrecursionlimit(100000)
deep = None
for _ in range(2000):
    deep = [deep]
session = sys.argv[3] or None
with ServiceBusClient.from_connection_string(sys.argv[1]) as client:
    with client.get_queue_sender('work') as sender:
        properties = AmqpMessageProperties(group_id=session) if session else None
        sender.send_messages(AmqpAnnotatedMessage(value_body=deep, properties=properties))
        sender.send_messages(ServiceBusMessage(sys.argv[2], session_id=session))
";

// The stack of a thread of the worker overflowed, which ended the process, and the next one that received the
// message.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_with_deeply_nested_values_is_a_dead_letter_and_the_next_one_is_handled() {
    for (bench, session) in [(Bench::new(), ""), (Bench::of_sessions(), "s")] {
        let _ = bench.storage.queue::<Work>().await.unwrap();
        let event = json!({
            "specversion": "1.0", "id": "1", "source": "urn:x", "type": "work", "data": { "name": "good" }
        });
        python::run(bench.emulator.connection_string(), SEND, &[&event.to_string(), session]);
        let peeked = bench.store().peek(&bench.queue, 10).await.unwrap();
        assert_eq!(peeked.iter().filter(|message| message.text.is_ok()).count(), 1, "{session}");
        let handler = |_: Work| async { Ok::<(), JobError>(()) };
        let worker = Worker::builder(bench.storage.clone()).max_idle_delay(Duration::from_millis(200));
        let worker = worker.handle(handler).build().unwrap();
        let report = timeout(MINUTE, worker.run_until_idle()).await.unwrap().unwrap();
        assert_eq!(report.completed, 1, "{session}: {report:?}");
        assert_eq!((bench.count("active"), bench.count("deadLetters")), (0, 1), "{session}");
        let letters = bench.store().peek(&bench.queue.dead_letter().unwrap(), 10).await.unwrap();
        let cause = letters[0].dead.as_ref().unwrap();
        assert_eq!(cause.reason.as_str(), "undecodable", "{session}");
        assert_eq!(cause.description.as_deref(), Some("its values are nested too deeply"), "{session}");
    }
}
