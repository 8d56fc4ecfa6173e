//! The time to live of a message that is put back: the service counts it anew from the copy on, by what the
//! copy says.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jobqueue::clock::ManualClock;
use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::maintenance::{SweepOptions, sweep};
use jobqueue::storage::{PutMessage, UpdateMessage};
use jobqueue::{Runtime, memory};
use serde_json::json;

use super::jobs::{Work, work};
use super::{Bench, MINUTE, python};

const DAY: Duration = Duration::from_secs(86_400);

/// Sends a message that lives for an hour. Stock clients write its life into the header, and into two
/// properties.
const SEND: &str = "
import datetime, sys
from azure.servicebus import ServiceBusClient, ServiceBusMessage
with ServiceBusClient.from_connection_string(sys.argv[1]) as client:
    with client.get_queue_sender('work') as sender:
        sender.send_messages(ServiceBusMessage('text', time_to_live=datetime.timedelta(hours=1)))
";

impl Bench {
    /// Puts the message back after a part of its life, and lets the rest pass.
    async fn put_back_after(&self, used: Duration, rest: Duration) {
        self.emulator.advance(used);
        self.hide_time();
        let storage = self.at(SystemTime::now() + used);
        let leased = self.get_from(&storage).await.unwrap();
        let back = UpdateMessage::new(Duration::ZERO).with_text("put back".to_owned()).ending_lease();
        storage.queues().update(&self.queue, &leased.message, back).await.unwrap();
        assert_eq!(self.count("active"), 1);
        self.emulator.advance(rest - MINUTE);
        assert_eq!(self.count("active"), 1, "it ends too early");
        self.emulator.advance(2 * MINUTE);
        assert_eq!(self.count("active"), 0, "it outlives its time");
    }
}

// The copy had the rest of the life in its header, and the whole life in two properties, which the service
// reads.
#[tokio::test]
async fn message_of_a_stock_client_that_is_put_back_ends_when_its_sender_said() {
    let bench = Bench::new();
    python::run(bench.emulator.connection_string(), SEND, &[]);
    bench.put_back_after(50 * MINUTE, 10 * MINUTE).await;
}

#[tokio::test]
async fn long_lived_message_that_is_put_back_ends_when_its_sender_said() {
    let bench = Bench::new();
    bench.put(PutMessage::new("text").with_ttl(60 * DAY)).await.unwrap();
    bench.put_back_after(20 * DAY, 40 * DAY).await;
}

// A sweep removed it, a day after the end of the job.
#[tokio::test]
async fn payload_of_a_job_that_the_service_dead_letters_outlives_the_job() {
    for is_dead_lettered in [true, false] {
        let clock = Arc::new(ManualClock::at(SystemTime::now()));
        let blobs = memory::open_on(Runtime::new().with_clock(Arc::clone(&clock) as _));
        let settings = json!({ "DeadLetteringOnMessageExpiration": is_dead_lettered });
        let bench = Bench::of(settings, &[], blobs);
        let queue = bench.storage.queue::<Work>().await.unwrap();
        queue.send(&work(&"x".repeat(200_000))).ttl(MINUTE).await.unwrap();
        bench.emulator.advance(2 * MINUTE);
        assert_eq!(bench.count("active"), 0);
        clock.advance(3 * DAY);
        let swept = sweep(&bench.storage, SweepOptions::new()).await.unwrap();
        assert_eq!(swept.removed, u64::from(!is_dead_lettered), "{swept:?}");
        let redriven = queue.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap();
        assert_eq!(redriven.moved.len(), usize::from(is_dead_lettered), "{redriven:?}");
    }
}
