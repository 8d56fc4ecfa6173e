//! Relays: workers that forward the jobs of a queue to another storage.
//!
//! A relay is a handler for events of every kind that sends each event to another storage. The worker around
//! it does the rest: an outage costs no attempt, an event that cannot be forwarded becomes a dead letter, and
//! the jobs of a key are forwarded in order.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::OnceCell;

use crate::clock::WITHOUT_END;
use crate::codec::is_json;
use crate::delivery::{Context, LeasedJob};
use crate::envelope::headers::batch::is_of_batch;
use crate::envelope::{Envelope, JsonText, Payload};
use crate::error::{Error, ErrorKind};
use crate::group_log::is_in_order;
use crate::handler::{FromJob, Registration};
use crate::job::{BoxError, JobError, Reason};
use crate::send::SendOptions;
use crate::storage::Storage;
use crate::untyped_queue::UntypedQueue;
use crate::worker::WorkerBuilder;

impl WorkerBuilder {
    /// Forwards all jobs of a queue to the queue of the same name in `destination`, which must exist. A job
    /// that was sent in a transaction of your database can thus run on another storage: a transactional
    /// outbox. [The guide](crate::guide::outbox) has an example, and lists the properties that a relay keeps
    /// and the jobs that it cannot forward.
    ///
    /// The relay sends each job under its own id and source, and then deletes it from this storage: delivery
    /// is at least once. Any number of workers may have the same relay, and other handlers for other queues.
    ///
    /// [`build`](Self::build) fails if `destination` is the storage of this worker or has [the same
    /// blobs](crate::guide::outbox#blobs-of-its-own), or if the queue has another handler. It recognises the
    /// same handle, the same SQLite file, the same PostgreSQL database under the same host names, and the
    /// same address of Azure's blobs. It does not recognise the same storage under another name: the relay
    /// would send to itself without end, or lose jobs.
    pub fn relay(self, queue: impl Into<String>, destination: &Storage) -> Self {
        let queue = queue.into();
        if let Some(mistake) = shared_place(self.storage(), destination) {
            let text = format!("the relay of the queue `{queue}` {mistake}");
            return self.mistaken(Error::new(ErrorKind::Configuration, text));
        }
        let destination =
            Destination { storage: destination.clone(), queue: queue.clone(), opened: OnceCell::new() };
        let destination = Arc::new(destination);
        let relay = Registration::of_every_kind(move |job, payload| {
            let (destination, context) = (Arc::clone(&destination), Context::from_job(&job));
            Box::pin(async move { destination.forward(context?.leased_job(), payload).await })
        });
        self.register(queue, relay)
    }
}

/// Returns the consequence of a place that two storages share, as far as the storages reveal it; `None` if
/// they may be an outbox and its destination.
fn shared_place(outbox: &Storage, destination: &Storage) -> Option<&'static str> {
    let [from, to] = [outbox, destination].map(|storage| &storage.queues().powers().transaction_place);
    if Arc::ptr_eq(outbox.queues(), destination.queues()) || from.is_some() && from == to {
        return Some("would send its jobs to itself");
    }
    let [from, to] = [outbox, destination].map(Storage::blob_powers);
    let is_same = from.identity == to.identity
        || from.transaction_place.is_some() && from.transaction_place == to.transaction_place
        || from.address.is_some() && from.address == to.address;
    is_same.then_some(
        "would confuse its jobs with those of the destination, which has the same blobs: give each storage its own blobs",
    )
}

/// The queue that receives the jobs. The first job opens it.
struct Destination {
    storage: Storage,
    queue: String,
    opened: OnceCell<UntypedQueue>,
}

impl Destination {
    /// Sends a job whose payload was read. The worker then deletes the job and its blob.
    async fn forward(&self, leased_job: &LeasedJob, payload: Bytes) -> Result<(), JobError> {
        let Some(event) = leased_job.envelope() else {
            return Err(refused("the message is not an event"));
        };
        if is_of_batch(&event.extensions) {
            return Err(refused(
                "the job belongs to a batch of this storage and cannot be forwarded: process it here",
            ));
        }
        let mut event = with_payload(event.into_sent(), payload);
        // This queue's settings may give the version; the destination does not have them.
        event.version = leased_job.payload_form().0;
        // The delay is over by the clock of the storage that the job came from.
        event.not_before = None;
        // A sender sets no time to live for a job in order, but the storage may give every message one.
        let options = if is_in_order(&event) { SendOptions::new() } else { with_remaining_ttl(leased_job) };
        // Every payload that the relay may read may be sent.
        let max_payload_bytes = leased_job.core.claim_checks.max_bytes();
        match self.send(event, options, max_payload_bytes).await {
            Err(error) if matches!(error.kind(), ErrorKind::TooLarge | ErrorKind::Invalid) => {
                Err(refused(error))
            }
            // The error is passed on unchanged, so that the worker recognises an outage.
            sent => Ok(sent?),
        }
    }

    async fn send(&self, event: Envelope, options: SendOptions, max_payload_bytes: u64) -> Result<(), Error> {
        let relay: Arc<str> = Arc::from("relay");
        let open =
            async || UntypedQueue::open_with(&self.storage, &self.queue, &relay, max_payload_bytes).await;
        self.opened.get_or_try_init(open).await?.send(event, options).await.map(drop)
    }
}

fn refused(error: impl Into<BoxError>) -> JobError {
    JobError::dead_letter(error).with_reason(Reason::NOT_FORWARDED)
}

/// Returns options with the remaining time to live of the job. They have no delay: it is over.
fn with_remaining_ttl(leased_job: &LeasedJob) -> SendOptions {
    // Some storages store a time in the far future for messages that do not expire.
    let left = leased_job.lease.left_to_live().filter(|left| *left < WITHOUT_END);
    left.map_or_else(SendOptions::new, |left| SendOptions::new().ttl(left.max(Duration::from_secs(1))))
}

/// Returns the event with its payload inline. If the payload is too large for that, the send writes a blob.
fn with_payload(mut event: Envelope, payload: Bytes) -> Envelope {
    if let Payload::Stored(_) = event.payload {
        let is_json = event.media_type().is_some_and(|media_type| is_json(&media_type));
        let json = is_json.then(|| JsonText::check(payload.clone()).ok()).flatten();
        event.set_payload(json.map_or(Payload::Binary(payload), Payload::Json));
    }
    event
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envelope::{Parsed, parse};

    #[test]
    fn payload_that_moves_inside_is_the_only_one() {
        let (sha256, payload) = ("0".repeat(64), "{\"name\":\"a\"}");
        for member in [r#""data":{"name":"b"}"#, r#""data_base64":"e30=""#] {
            let text = format!(
                r#"{{"specversion":"1.0","id":"1","source":"/s","type":"t","datacontenttype":"application/json",
                "dataref":"20261126/tasks/0f8fad5b-d9cb-469f-a165-70867728950e","datasize":12,"datasha256":"{sha256}",{member}}}"#
            );
            let Ok(Parsed::Event(event)) = parse(&text) else { panic!("no event: {text}") };
            let inside = with_payload(*event, Bytes::from_static(payload.as_bytes())).to_json().unwrap();
            let Ok(Parsed::Event(read)) = parse(&inside) else { panic!("no event: {inside}") };
            assert_eq!(read.payload.inline().unwrap(), payload, "{inside}");
        }
    }
}
