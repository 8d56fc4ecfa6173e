//! Dead letters that another tool sends again as they are.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::{JobError, Worker};

use super::jobs::{Work, work};
use super::{Bench, python};

/// Sends a dead letter again as tools do: its body and its properties, into its session.
const RESUBMIT: &str = "
import json, sys
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue
with ServiceBusClient.from_connection_string(sys.argv[1]) as client:
    dead = client.get_queue_receiver('work', sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    with dead as receiver, client.get_queue_sender('work') as sender:
        message = receiver.receive_messages(max_message_count=1, max_wait_time=20)[0]
        properties = message.application_properties
        assert 'dataref' in json.loads(properties[b'jobqueue-text']), properties
        again = ServiceBusMessage(b''.join(message.body), application_properties=properties, session_id=message.session_id)
        sender.send_messages(again)
        receiver.complete_message(message)
";

/// D4: the payload of a dead letter has a blob of its own, of which the body of the message knows nothing. A
/// letter of a message that was sent again named the digest of another body, and was lost when it was sent
/// again.
#[tokio::test]
async fn a_dead_letter_that_a_stock_tool_resends_has_its_payload() {
    for bench in [Bench::new(), Bench::of_sessions()] {
        let large = "x".repeat(100_000);
        bench.storage.queue::<Work>().await.unwrap().send(&work(&large)).await.unwrap();
        let run = async |end: Result<(), JobError>| {
            let end = Arc::new(Mutex::new(Some(end)));
            let large = large.clone();
            let handler = move |job: Work| {
                let end = end.lock().unwrap().take().unwrap_or(Ok(()));
                assert_eq!(job.name, large);
                async { end }
            };
            let worker = Worker::builder(bench.storage.clone()).max_idle_delay(Duration::from_millis(200));
            worker.handle(handler).build().unwrap().run_until_idle().await.unwrap()
        };
        for time in 0..3 {
            let report = run(Err(JobError::dead_letter("no"))).await;
            assert_eq!(report.dead_lettered, 1, "{time}: {report:?}");
            python::run(bench.emulator.connection_string(), RESUBMIT, &[]);
        }
        let report = run(Ok(())).await;
        assert_eq!(report.completed, 1, "{report:?}");
        assert_eq!(bench.letters().len(), 0);
    }
}
