//! Renewals of locks over the queue's management node, by hand.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use fe2o3_amqp::session::SessionHandle;
use fe2o3_amqp::types::messaging::{AmqpValue, ApplicationProperties, Body, Message, MessageId, Properties};
use fe2o3_amqp::types::primitives::{Array, OrderedMap, Uuid as AmqpUuid, Value};
use fe2o3_amqp::{Receiver, Sender};
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use super::QUEUE;

type Asked = (Uuid, oneshot::Sender<SystemTime>);

/// The way to the task that owns the links.
pub(super) struct Renewals(mpsc::Sender<Asked>);

impl Renewals {
    pub(super) async fn attach(session: &mut SessionHandle<()>) -> Self {
        let address = format!("{QUEUE}/$management");
        let receiver = Receiver::builder().name("answers").source(address.as_str()).target("answers");
        let receiver = receiver.attach(session).await.unwrap();
        let sender = Sender::attach(session, "requests", address.as_str()).await.unwrap();
        let (asked, requests) = mpsc::channel(64);
        drop(tokio::spawn(serve(sender, receiver, requests)));
        Self(asked)
    }

    /// Renews a lock; returns its new end, or nothing if it is lost.
    pub(super) async fn renew(&self, lock: Uuid) -> Option<SystemTime> {
        let (answer, answered) = oneshot::channel();
        self.0.send((lock, answer)).await.ok()?;
        answered.await.ok()
    }
}

async fn serve(mut sender: Sender, mut receiver: Receiver, mut requests: mpsc::Receiver<Asked>) {
    let (mut waiting, mut number) = (HashMap::new(), 0_u64);
    loop {
        tokio::select! {
            biased;
            answer = receiver.recv::<Body<Value>>() => {
                let Ok(answer) = answer else { return };
                let _ = receiver.accept(&answer).await;
                let Some((number, until)) = read(answer.message()) else { continue };
                let waiting: Option<oneshot::Sender<SystemTime>> = waiting.remove(&number);
                if let (Some(waiting), Some(until)) = (waiting, until) {
                    let _ = waiting.send(until);
                }
            }
            request = requests.recv() => {
                let Some((lock, answer)) = request else { return };
                waiting.insert(number, answer);
                if sender.send(renewal(number, lock)).await.is_err() {
                    return;
                }
                number += 1;
            }
        }
    }
}

fn renewal(number: u64, lock: Uuid) -> Message<AmqpValue<Value>> {
    let locks = Value::Array(Array(vec![Value::Uuid(AmqpUuid::from(*lock.as_bytes()))]));
    let mut body = OrderedMap::new();
    body.insert(Value::String("lock-tokens".to_owned()), locks);
    let operation = "com.microsoft:renew-lock".to_owned();
    Message::builder()
        .properties(Properties::builder().message_id(number).reply_to("answers").build())
        .application_properties(ApplicationProperties::builder().insert("operation", operation).build())
        .body(AmqpValue(Value::Map(body)))
        .build()
}

/// Returns the number of the request, and the new end of the lock unless it is lost.
fn read(answer: &Message<Body<Value>>) -> Option<(u64, Option<SystemTime>)> {
    let correlation = answer.properties.as_ref()?.correlation_id.as_ref()?;
    let MessageId::Ulong(number) = correlation else { return None };
    let until = match &answer.body {
        Body::Value(AmqpValue(Value::Map(fields))) => {
            match fields.get(&Value::String("expirations".to_owned())) {
                Some(Value::Array(ends)) => match ends.0.first() {
                    Some(Value::Timestamp(end)) => Some(end.milliseconds().unsigned_abs()),
                    _ => None,
                },
                _ => None,
            }
        }
        _ => None,
    };
    Some((*number, until.map(|until| SystemTime::UNIX_EPOCH + Duration::from_millis(until))))
}
