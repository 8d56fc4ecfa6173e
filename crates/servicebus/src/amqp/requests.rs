//! Requests and their answers over a pair of links, as `$cbs` and `$management` take them.

use std::collections::HashMap;

use fe2o3_amqp::types::messaging::{
    AmqpValue, ApplicationProperties, Body, Message, MessageId, Outcome, Properties,
};
use fe2o3_amqp::types::primitives::{SimpleValue, Value};
use fe2o3_amqp::{Receiver, Sender};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::super::error::Fault;
use super::connection::{Connection, REQUEST_TIMEOUT};
use super::sender::{fault_of, fault_of_end};
use super::values::{Incoming, condition_of};

/// A request: its operation, further properties, and its body.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) operation: &'static str,
    pub(crate) properties: Vec<(&'static str, String)>,
    pub(crate) body: Value,
}

/// The answer to a request: its body; `None` for "no content".
pub(crate) type Answer = Result<Option<Value>, Fault>;

type Sent = (Request, oneshot::Sender<Answer>);

/// A node that answers requests. Clones use the same links.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    requests: mpsc::Sender<Sent>,
}

impl Node {
    pub(super) async fn attach(connection: &Connection, address: &str) -> Result<Self, Fault> {
        let answers_to = format!("{}-answers", connection.link_name());
        let receiver = connection.receiver(address, Some(answers_to.clone())).await?;
        let sender = connection.sender(address).await?;
        let (requests, commands) = mpsc::channel(64);
        let links = Links { sender, receiver, answers_to, waiting: HashMap::new(), next: 0 };
        drop(connection.runtime.spawn(links.run(commands, connection.dead.clone())));
        Ok(Self { requests })
    }

    /// Returns whether the links have ended.
    pub(super) fn is_gone(&self) -> bool {
        self.requests.is_closed()
    }

    /// Sends a request and waits for its answer. If the future is dropped, the request may have been sent.
    pub(crate) async fn call(&self, request: Request) -> Answer {
        let (answer, answered) = oneshot::channel();
        let gone = || Fault::NotSent("the management link has ended".to_owned());
        self.requests.send((request, answer)).await.map_err(|_| gone())?;
        match timeout(REQUEST_TIMEOUT, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(Fault::Lost("the management link has ended".to_owned())),
            Err(_) => Err(Fault::Late),
        }
    }
}

struct Links {
    sender: Sender,
    receiver: Receiver,
    answers_to: String,
    waiting: HashMap<u64, oneshot::Sender<Answer>>,
    next: u64,
}

impl Links {
    async fn run(mut self, mut requests: mpsc::Receiver<Sent>, dead: CancellationToken) {
        let gone = || Fault::Lost("the connection has ended".to_owned());
        let end = loop {
            tokio::select! {
                biased;
                () = dead.cancelled() => break gone(),
                answer = self.receiver.recv::<Body<Value>>() => match answer {
                    Ok(delivery) => {
                        // Settled by the service; otherwise there is no caller.
                        let _ = self.receiver.accept(&delivery).await;
                        self.answered(delivery.into_message());
                    }
                    Err(error) if error.recovery().link_is_usable() => {
                        tracing::debug!(%error, "an answer of Service Bus could not be read");
                    }
                    Err(error) => break Fault::Lost(error.to_string()),
                },
                // The service detaches idle links, and those of a queue that is deleted.
                end = self.sender.on_detach() => break fault_of_end(&end),
                request = requests.recv() => match request {
                    Some(sent) => tokio::select! {
                        biased;
                        () = dead.cancelled() => break gone(),
                        sent = self.send(sent) => if let Err(end) = sent { break end },
                    },
                    None => return,
                },
            }
        };
        requests.close();
        for (_, waiting) in self.waiting.drain() {
            let _ = waiting.send(Err(end.clone()));
        }
        while let Ok((_, answer)) = requests.try_recv() {
            let _ = answer.send(Err(Fault::NotSent("the management link has ended".to_owned())));
        }
    }

    /// Sends a request; fails when the link is of no more use.
    async fn send(&mut self, (request, answer): Sent) -> Result<(), Fault> {
        // Callers that have given up need no answer.
        self.waiting.retain(|_, waiting| !waiting.is_closed());
        let number = self.next;
        self.next += 1;
        let message = self.message(number, request);
        self.waiting.insert(number, answer);
        let fault = match timeout(REQUEST_TIMEOUT, self.sender.send(message)).await {
            Ok(Ok(Outcome::Accepted(_))) => return Ok(()),
            Ok(Ok(Outcome::Rejected(rejected))) => match rejected.error {
                Some(error) => condition_of(&error),
                None => Fault::NotSent("the request was rejected".to_owned()),
            },
            Ok(Ok(_)) => Fault::NotSent("the request was not accepted".to_owned()),
            Ok(Err(error)) if error.recovery().link_is_usable() => Fault::NotSent(error.to_string()),
            Ok(Err(error)) => return Err(fault_of(&error)),
            Err(_) => return Err(Fault::Late),
        };
        if let Some(waiting) = self.waiting.remove(&number) {
            let _ = waiting.send(Err(fault));
        }
        Ok(())
    }

    fn message(&self, number: u64, request: Request) -> Message<AmqpValue<Value>> {
        let properties = Properties::builder().message_id(number).reply_to(self.answers_to.clone()).build();
        let mut fields = ApplicationProperties::builder().insert("operation", request.operation.to_owned());
        for (name, value) in request.properties {
            fields = fields.insert(name, value);
        }
        Message::builder()
            .properties(properties)
            .application_properties(fields.build())
            .body(AmqpValue(request.body))
            .build()
    }

    fn answered(&mut self, message: Incoming) {
        let correlation =
            message.properties.as_ref().and_then(|properties| properties.correlation_id.as_ref());
        let Some(MessageId::Ulong(number)) = correlation else { return };
        if let Some(waiting) = self.waiting.remove(number) {
            let _ = waiting.send(read(message));
        }
    }
}

fn read(message: Incoming) -> Answer {
    let properties = message.application_properties.unwrap_or_default();
    let value = |names: [&str; 2]| names.iter().find_map(|name| properties.get(*name)).cloned();
    let status = match value(["statusCode", "status-code"]) {
        Some(SimpleValue::Int(status)) => status,
        _ => return Err(Fault::Unreadable("the answer has no status".to_owned())),
    };
    match status {
        204 => Ok(None),
        200..=299 => match message.body {
            Body::Value(AmqpValue(body)) => Ok(Some(body)),
            _ => Ok(None),
        },
        _ => {
            let condition = match value(["errorCondition", "error-condition"]) {
                Some(SimpleValue::Symbol(condition)) => Some(condition.0),
                Some(SimpleValue::String(condition)) => Some(condition),
                _ => None,
            };
            let description = match value(["statusDescription", "status-description"]) {
                Some(SimpleValue::String(text)) => text,
                _ => String::new(),
            };
            Err(Fault::of_answer(status, condition, description))
        }
    }
}
