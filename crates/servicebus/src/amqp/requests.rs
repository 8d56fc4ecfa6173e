//! Requests and their answers over a pair of links, as `$cbs` and `$management` take them.

use std::collections::HashMap;
use std::sync::Arc;

use fe2o3_amqp::types::messaging::{
    AmqpValue, ApplicationProperties, Body, Message, MessageId, Outcome, Properties,
};
use fe2o3_amqp::types::primitives::{SimpleValue, Value};
use fe2o3_amqp::types::transaction::TransactionId;
use fe2o3_amqp::{Receiver, Sender};
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::{mpsc, oneshot};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, sleep_until, timeout};

use super::super::error::Fault;
use super::cache::Perishable;
use super::channel::{Channel, of_receiver};
use super::sender::{self, begin, fault_of, fault_of_end};
use super::values::{self, CLOSE_TIMEOUT, Incoming, REQUEST_TIMEOUT, condition_of};
use jobqueue_storage::log;

#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) operation: &'static str,
    pub(crate) properties: Vec<(&'static str, String)>,
    pub(crate) body: Value,
}

/// The answer to a request: its body; `None` for "no content".
pub(crate) type Answer = Result<Option<Value>, Fault>;

#[derive(Debug)]
struct Asked {
    request: Request,
    transaction: Option<TransactionId>,
    answer: oneshot::Sender<Answer>,
}

/// A node that answers requests. Clones use the same links.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    requests: mpsc::Sender<Asked>,
}

impl Node {
    pub(super) async fn attach(channel: Arc<Channel>, address: &str) -> Result<Self, Fault> {
        let answers_to = format!("{}-answers", channel.link_name());
        let (source, target) = (address.to_owned(), answers_to.clone());
        let attaching = channel.attach(REQUEST_TIMEOUT, move |session, name| {
            let receiver = Receiver::builder().name(name).source(source.as_str()).target(target.clone());
            Box::pin(async move { receiver.attach(session).await.map_err(|error| of_receiver(&error)) })
        });
        let receiver = attaching.await?;
        let sender = channel.sender(address).await?;
        let (requests, commands) = mpsc::channel(64);
        let links = Links {
            sender,
            receiver,
            answers_to,
            waiting: HashMap::new(),
            sent: FuturesUnordered::new(),
            next: 0,
        };
        drop(channel.runtime.spawn(links.run(commands, Arc::clone(&channel))));
        Ok(Self { requests })
    }

    /// Sends a request and waits for its answer. If the future is dropped, the request may have been sent.
    pub(crate) async fn call(&self, request: Request) -> Answer {
        self.ask(request, None).await
    }

    /// Makes a request, within a transaction if one is given, which makes it final.
    pub(super) async fn ask(&self, request: Request, transaction: Option<TransactionId>) -> Answer {
        let (answer, answered) = oneshot::channel();
        let gone = |_| Fault::not_sent("the management link has ended");
        self.requests.send(Asked { request, transaction, answer }).await.map_err(gone)?;
        values::answer(answered).await
    }
}

impl Perishable for Node {
    fn is_gone(&self) -> bool {
        self.requests.is_closed()
    }
}

struct Links {
    sender: Sender,
    receiver: Receiver,
    answers_to: String,
    waiting: HashMap<u64, oneshot::Sender<Answer>>,
    /// The requests whose outcome has not come.
    sent: FuturesUnordered<Sent>,
    next: u64,
}

type Sent = BoxFuture<'static, (u64, Result<sender::Answer, Elapsed>)>;

impl Links {
    /// Owns the links, and keeps their channel as long as they last.
    async fn run(mut self, mut requests: mpsc::Receiver<Asked>, channel: Arc<Channel>) {
        let gone = || Fault::lost("the connection has ended");
        // The time at which the link is given up because a request got no outcome; others have their answers before.
        let mut leaving: Option<Instant> = None;
        let end = loop {
            if leaving.is_some() && self.waiting.is_empty() {
                break Fault::Late;
            }
            tokio::select! {
                biased;
                () = channel.dead.cancelled() => break gone(),
                answer = self.receiver.recv::<Body<Value>>() => match answer {
                    Ok(delivery) => {
                        // Settled by the service; otherwise there is no caller.
                        let _ = self.receiver.accept(&delivery).await;
                        self.answered(delivery.into_message());
                    }
                    Err(error) if error.recovery().link_is_usable() => {
                        log::debug!(%error, "an answer of Service Bus could not be read");
                    }
                    Err(error) => break Fault::lost(error),
                },
                Some((number, outcome)) = self.sent.next(), if !self.sent.is_empty() => {
                    match outcome.map(|outcome| self.accepted(number, outcome)) {
                        Ok(Ok(())) => {}
                        Ok(Err(end)) => break end,
                        Err(_) => {
                            self.answer(number, Err(Fault::Late));
                            requests.close();
                            leaving.get_or_insert_with(|| Instant::now() + REQUEST_TIMEOUT);
                        }
                    }
                }
                () = sleep_until(leaving.unwrap_or_else(Instant::now)), if leaving.is_some() => break Fault::Late,
                // The service detaches idle links, and those of a queue that is deleted.
                end = self.sender.on_detach() => break fault_of_end(&end),
                request = requests.recv(), if leaving.is_none() => match request {
                    Some(asked) => tokio::select! {
                        biased;
                        () = channel.dead.cancelled() => break gone(),
                        sent = self.send(asked) => if let Err(end) = sent { break end },
                    },
                    None => return,
                },
            }
        };
        self.end(&end, requests, leaving.is_some()).await;
    }

    /// Answers all who wait when the links are of no more use, and detaches them if the service has not.
    async fn end(mut self, end: &Fault, mut requests: mpsc::Receiver<Asked>, is_attached: bool) {
        log::debug!(error = %end, "a link for requests to Service Bus has ended");
        requests.close();
        for (_, waiting) in self.waiting.drain() {
            let _ = waiting.send(Err(end.clone()));
        }
        while let Ok(Asked { answer, .. }) = requests.try_recv() {
            let _ = answer.send(Err(Fault::not_sent("the management link has ended")));
        }
        if is_attached {
            // A link that is dropped ends the session of AMQP when an answer comes for it.
            let _ = timeout(CLOSE_TIMEOUT, self.receiver.close()).await;
        }
    }

    /// Sends a request; fails when the link is of no more use.
    async fn send(&mut self, Asked { request, transaction, answer }: Asked) -> Result<(), Fault> {
        // Callers that have given up need no answer.
        self.waiting.retain(|_, waiting| !waiting.is_closed());
        if answer.is_closed() {
            return Ok(());
        }
        let number = self.next;
        self.next += 1;
        let message = self.message(number, request);
        self.waiting.insert(number, answer);
        match timeout(REQUEST_TIMEOUT, begin(&mut self.sender, message, transaction)).await {
            Ok(Ok(outcome)) => {
                self.sent
                    .push(timeout(REQUEST_TIMEOUT, outcome).map(move |outcome| (number, outcome)).boxed());
                Ok(())
            }
            Ok(Err(error)) => self.accepted(number, Err(error)),
            Err(_) => Err(Fault::Late),
        }
    }

    /// Takes the outcome of a request in; fails when the link is of no more use.
    fn accepted(&mut self, number: u64, outcome: sender::Answer) -> Result<(), Fault> {
        let fault = match outcome {
            Ok(Outcome::Accepted(_)) => return Ok(()),
            Ok(Outcome::Rejected(rejected)) => match rejected.error {
                Some(error) => condition_of(&error),
                None => Fault::not_sent("the request was rejected"),
            },
            Ok(_) => Fault::not_sent("the request was not accepted"),
            Err(error) if error.recovery().link_is_usable() => Fault::not_sent(error),
            Err(error) => return Err(fault_of(&error)),
        };
        self.answer(number, Err(fault));
        Ok(())
    }

    fn answer(&mut self, number: u64, answer: Answer) {
        if let Some(waiting) = self.waiting.remove(&number) {
            let _ = waiting.send(answer);
        }
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
        self.answer(*number, read(message));
    }
}

fn read(message: Incoming) -> Answer {
    let properties = message.application_properties.unwrap_or_default();
    let value = |names: [&str; 2]| names.iter().find_map(|name| properties.get(*name)).cloned();
    let status = match value(["statusCode", "status-code"]) {
        Some(SimpleValue::Int(status)) => status,
        _ => return Err(Fault::unreadable("the answer has no status")),
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
