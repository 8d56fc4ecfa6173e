//! The loop that an engineer writes by hand on the client for the promises that a worker gives:
//!
//! - as many handlers at the same time as there are slots, each in a task of its own whose panic costs only
//!   its own message;
//! - a message is read as a CloudEvent, its kind and version are checked, and its payload is decoded into the
//!   handler's type;
//! - a message that cannot be read, or that was delivered too often, becomes a dead letter with a reason; one
//!   whose handler fails is given back;
//! - the lock is renewed before it ends, and a handler whose lock is lost is cancelled;
//! - each message is settled by itself, and its task waits for the service's answer, so that a lost lock is
//!   seen;
//! - each job has a span.
//!
//! It lacks what a worker has beyond that: back-off, expiry, metrics, settings of queues, a clean stop,
//! reconnecting.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use fe2o3_amqp::Delivery;
use fe2o3_amqp::link::delivery::DeliveryInfo;
use fe2o3_amqp::types::definitions::{Error, ErrorCondition, Fields};
use fe2o3_amqp::types::messaging::annotations::AnnotationKey;
use fe2o3_amqp::types::messaging::{Body, DeliveryState, Message, Modified};
use fe2o3_amqp::types::primitives::{Symbol, Value};
use futures_util::FutureExt as _;
use serde::Deserialize;
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tracing::Instrument as _;
use uuid::Uuid;

use super::answers::{Answers, Listening};
use super::renewals::Renewals;
use super::{SLOTS, Thumbnail, bare};

/// The deliveries after which a message is a dead letter.
const MAX_DELIVERIES: u32 = 5;
const LIMIT: Duration = Duration::from_secs(30);

/// The decision about a message.
enum Decision {
    Complete,
    GiveBack,
    DeadLetter(String),
}

/// A decision on its way to the task that owns the link, which answers with what waits for the service's
/// answer.
struct Settle {
    delivery: DeliveryInfo,
    decision: Decision,
    sent: oneshot::Sender<oneshot::Receiver<DeliveryState>>,
}

/// The state that the tasks of all messages share.
struct Shared {
    slots: Arc<Semaphore>,
    decisions: mpsc::Sender<Settle>,
    renewals: Renewals,
    left: AtomicU64,
    all_done: Notify,
}

#[derive(Deserialize)]
struct CloudEvent {
    specversion: String,
    id: String,
    source: String,
    #[serde(rename = "type")]
    kind: String,
    data: Thumbnail,
}

/// Receives, handles and settles `jobs` messages.
pub(super) async fn run(port: u16, jobs: u64) -> Duration {
    let answers = Answers::default();
    let stream = Listening { stream: bare::tcp(port).await, answers: answers.clone(), partial: Vec::new() };
    let (mut connection, mut session) = bare::open(stream).await;
    let renewals = Renewals::attach(&mut session).await;
    let mut receiver = bare::receiver(&mut session).await;
    let (decisions, mut decided) = mpsc::channel(256);
    let shared = Arc::new(Shared {
        slots: Arc::new(Semaphore::new(SLOTS as usize)),
        decisions,
        renewals,
        left: AtomicU64::new(jobs),
        all_done: Notify::new(),
    });
    let began = Instant::now();
    loop {
        tokio::select! {
            biased;
            () = shared.all_done.notified() => break,
            Some(Settle { delivery, decision, sent }) = decided.recv() => {
                let _ = sent.send(answers.watch(delivery.delivery_id()));
                match decision {
                    Decision::Complete => receiver.accept(delivery).await.unwrap(),
                    Decision::GiveBack => receiver.modify(delivery, given_back()).await.unwrap(),
                    Decision::DeadLetter(reason) => {
                        receiver.reject(delivery, dead_letter(reason)).await.unwrap();
                    }
                }
            }
            delivery = receiver.recv::<Body<Value>>() => {
                drop(tokio::spawn(work(Arc::clone(&shared), delivery.unwrap())));
            }
        }
    }
    receiver.close().await.unwrap();
    let took = began.elapsed();
    session.end().await.unwrap();
    connection.close().await.unwrap();
    took
}

/// Handles one message and settles it.
async fn work(shared: Arc<Shared>, delivery: Delivery<Body<Value>>) {
    let (delivery, message) = delivery.into_parts();
    let lock = Uuid::from_bytes_le(delivery.delivery_tag().as_ref().try_into().unwrap());
    let slot = shared.slots.acquire().await.unwrap();
    let decision = decide(&shared, lock, &message).await;
    drop(slot);
    let Some(decision) = decision else { return tracing::warn!(%lock, "the lock was lost") };
    let (sent, waiting) = oneshot::channel();
    shared.decisions.send(Settle { delivery, decision, sent }).await.unwrap();
    let waiting = waiting.await.unwrap();
    match timeout(LIMIT, waiting).await {
        Ok(Ok(DeliveryState::Rejected(rejected))) if rejected.error.is_some() => {
            tracing::warn!(%lock, error = ?rejected.error, "the message was not settled");
        }
        Ok(Ok(_)) => {
            if shared.left.fetch_sub(1, Ordering::AcqRel) == 1 {
                shared.all_done.notify_one();
            }
        }
        _ => tracing::warn!(%lock, "no answer to a settlement"),
    }
}

/// Runs the handler; returns nothing if the lock was lost meanwhile.
async fn decide(shared: &Shared, lock: Uuid, message: &Message<Body<Value>>) -> Option<Decision> {
    let earlier = message.header.as_ref().map_or(0, |header| header.delivery_count);
    if earlier >= MAX_DELIVERIES {
        return Some(Decision::DeadLetter("TooManyDeliveries".to_owned()));
    }
    let event = match event(message) {
        Ok(event) => event,
        Err(reason) => return Some(Decision::DeadLetter(reason)),
    };
    let span = tracing::info_span!("job", kind = event.kind, id = event.id, attempt = earlier + 1);
    let handler = std::panic::AssertUnwindSafe(super::thumbnail(event.data)).catch_unwind();
    tokio::select! {
        biased;
        result = handler.instrument(span) => Some(match result {
            Ok(Ok(())) => Decision::Complete,
            Ok(Err(_)) | Err(_) => Decision::GiveBack,
        }),
        () = keep(shared, lock, locked_until(message)) => None,
    }
}

/// Reads the event, and checks it.
fn event(message: &Message<Body<Value>>) -> Result<CloudEvent, String> {
    let Body::Data(parts) = &message.body else { return Err("the body is not data".to_owned()) };
    let [part] = parts.as_slice() else { return Err("the body has several parts".to_owned()) };
    let event: CloudEvent = serde_json::from_slice(&part.0).map_err(|error| error.to_string())?;
    match (event.specversion.as_str(), event.kind.as_str()) {
        _ if event.id.is_empty() || event.source.is_empty() => Err("the event has no identity".to_owned()),
        ("1.0", "bench.thumbnail") => Ok(event),
        ("1.0", other) => Err(format!("the kind {other} is unknown")),
        (other, _) => Err(format!("the version {other} is unknown")),
    }
}

fn locked_until(message: &Message<Body<Value>>) -> SystemTime {
    let annotations = message.message_annotations.as_ref().unwrap();
    match annotations.get(&"x-opt-locked-until" as &dyn AnnotationKey) {
        Some(Value::Timestamp(at)) => {
            SystemTime::UNIX_EPOCH + Duration::from_millis(at.milliseconds().unsigned_abs())
        }
        _ => SystemTime::now(),
    }
}

/// Renews a lock at seven tenths of its time; returns when it is lost.
async fn keep(shared: &Shared, lock: Uuid, mut until: SystemTime) {
    loop {
        let left = until.duration_since(SystemTime::now()).unwrap_or_default();
        sleep(left * 7 / 10).await;
        match timeout(left * 3 / 10, shared.renewals.renew(lock)).await {
            Ok(Some(renewed)) => until = renewed,
            _ => return,
        }
    }
}

fn given_back() -> Modified {
    Modified { delivery_failed: None, undeliverable_here: Some(false), message_annotations: None }
}

fn dead_letter(reason: String) -> Error {
    let mut info = Fields::new();
    info.insert(Symbol::from("DeadLetterReason"), Value::String(reason));
    let condition = ErrorCondition::Custom(Symbol::from("com.microsoft:dead-letter"));
    Error { condition, description: None, info: Some(Box::new(info)) }
}
