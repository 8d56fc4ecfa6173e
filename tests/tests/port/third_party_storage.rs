//! An adapter outside of jobqueue that writes the eleven methods for queues and the seven for blobs and has
//! no powers. It passes the conformance suite, and workers run on it.

mod blobs;
mod queues;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use blobs::PlainBlobs;
use bytes::Bytes;
use jobqueue::clock::ManualClock;
use jobqueue::leader::Leader;
use jobqueue::settings::Metadata;
use jobqueue::storage::{
    Blob, BlobListing, BlobProperties, ETag, LeasedMessage, MessageId, MessageRef, PeekedMessage, PopReceipt,
    PutOutcome, QueueProperties, Received, Storage, StoreError, StoreErrorKind, Updated,
};
use jobqueue::{JobError, QueueMessage, Runtime, Worker, memory};
use jobqueue_conformance::{Subject, exercise};
use queues::PlainQueues;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "parcels", kind = "parcel")]
struct Parcel {
    weight: u32,
    /// Makes the payload too large for a message.
    contents: String,
}

fn open(clock: Arc<dyn jobqueue::clock::Clock>) -> Storage {
    let (queues, blobs) = (PlainQueues::new(Arc::clone(&clock)), PlainBlobs::new(clock));
    Storage::new(Arc::new(queues), Arc::new(blobs), "plain")
}

#[tokio::test]
async fn adapter_without_powers_keeps_every_promise_of_the_port() {
    let clock = Arc::new(ManualClock::new());
    let report = exercise(&Subject::virtual_time(open(clock.clone()), clock)).await;
    report.assert_kept();
    let of_powers = [
        "subscriptions",
        "announcements",
        "acquire",
        "hold",
        "write",
        "expiry",
        "index",
        "log",
        "journal",
        "groups",
        "counts",
        "dead_letters",
    ];
    for name in report.skipped() {
        assert!(of_powers.iter().any(|group| name.starts_with(group)), "{name} concerns every storage");
    }
}

#[tokio::test(start_paused = true)]
async fn worker_runs_jobs_on_an_adapter_without_powers() {
    let storage = open(Arc::new(memory::TokioClock::new())).with_runtime(Runtime::paused());
    let parcels = storage.queue::<Parcel>().await.unwrap();
    for weight in 0..5 {
        parcels.send(&Parcel { weight, contents: "x".repeat(100_000) }).await.unwrap();
    }
    async fn deliver(parcel: Parcel) -> Result<(), JobError> {
        match parcel.weight {
            4 => Err(JobError::dead_letter("too heavy")),
            _ => Ok(()),
        }
    }
    let worker = Worker::builder(storage.clone()).handle(deliver);
    let worker = worker.build().unwrap();
    let report = worker.run_until(tokio::time::sleep(Duration::from_secs(60))).await.unwrap();
    assert_eq!(report.completed, 4);
    assert_eq!(report.dead_lettered, 1);
    assert_eq!(parcels.counts_by_state().await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn worker_becomes_idle_although_its_storage_returns_more_than_it_asked_for() {
    let clock: Arc<dyn jobqueue::clock::Clock> = Arc::new(memory::TokioClock::new());
    let queues = PlainQueues::returning_more(Arc::clone(&clock), 1);
    let storage = Storage::new(Arc::new(queues), Arc::new(PlainBlobs::new(clock)), "generous");
    let storage = storage.with_runtime(Runtime::paused());
    let parcels = storage.queue::<Parcel>().await.unwrap();
    for weight in 0..3 {
        parcels.send(&Parcel { weight, contents: String::new() }).await.unwrap();
    }
    let worker = Worker::builder(storage).concurrency(1).handle(async |_: Parcel| Ok::<_, JobError>(()));
    let until_idle = worker.build().unwrap().run_until_idle();
    let ended = tokio::time::timeout(Duration::from_secs(3_600), until_idle).await;
    assert!(ended.expect("it becomes idle").unwrap().completed > 0);
}

#[tokio::test]
async fn leader_without_leases_says_what_is_missing() {
    let leader = Leader::new(&open(Arc::new(ManualClock::new())), "cop").unwrap();
    let error = leader.try_lead().await.unwrap_err();
    assert!(format!("{error:?}").contains("no leases of blobs"), "{error:?}");
}

#[test]
fn values_of_the_port_can_be_made_outside_the_crate() {
    let now = SystemTime::UNIX_EPOCH;
    let later = now + Duration::from_secs(60);
    let message = MessageRef { id: MessageId::new("1"), receipt: PopReceipt::new("r") };
    let put = PutOutcome::new(message.clone(), now, now).with_expires(later);
    assert_eq!(put.expires, Some(later));
    assert_eq!(put.next_visible, now);
    let leased = LeasedMessage::new(message.clone(), Ok("text".into()), 1, now, later).with_expires(None);
    assert_eq!(leased.expires, None);
    assert_eq!(leased.next_visible, later);
    let received = Received::new(vec![leased]).with_next_visible_in(Duration::from_secs(1));
    assert_eq!(received.messages.len(), 1);
    let peeked = PeekedMessage::new(message.id, Err("no text".into()), 0, now).with_expires(later);
    assert_eq!(peeked.expires, Some(later));
    assert_eq!(Updated::new(message.receipt, later).next_visible, later);
    assert_eq!(QueueProperties::new(Metadata::new(), 3).approximate_count, 3);

    let properties = BlobProperties::new(4, ETag::new("e"), now).with_active_lease(true);
    let properties = properties.with_metadata(Metadata::new().with("a", "b"));
    let blob = Blob::new(Bytes::from_static(b"text"), properties.clone());
    assert_eq!(blob.properties.length, 4);
    assert!(blob.properties.is_leased);
    let page =
        BlobListing::new(vec![("name".into(), properties)]).with_next("marker".to_owned()).with_now(later);
    assert_eq!(page.next.as_deref(), Some("marker"));
    assert_eq!(page.now, Some(later));

    let error = StoreError::new(StoreErrorKind::Throttled, "put", "queue");
    let error = error.with_ambiguous(false).with_retry_after(Duration::from_secs(1)).with_detail("slow down");
    assert!(error.is_retryable() && error.retry_after() == Some(Duration::from_secs(1)));
}
