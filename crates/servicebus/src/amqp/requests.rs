//! Requests and their answers over a pair of links, as `$cbs` and `$management` take them.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use fe2o3_amqp::link::{RecvError, SendError};
use fe2o3_amqp::types::messaging::{
    AmqpValue, ApplicationProperties, Body, Message, MessageId, Outcome, Properties,
};
use fe2o3_amqp::types::primitives::{SimpleValue, Value};
use fe2o3_amqp::types::transaction::TransactionId;
use fe2o3_amqp::{Delivery, Receiver, Sender};
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::{mpsc, oneshot};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

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
    /// A number that is good as long as the links, which end with their queue.
    pub(crate) bookmark: Arc<AtomicI64>,
    /// Such a number, too: where a walk through the queue ended that found too few.
    pub(crate) reached: Arc<AtomicI64>,
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
        let answers =
            Answers { receiver, waiting: HashMap::new(), sent: FuturesUnordered::new(), leaving: None };
        drop(channel.runtime.spawn(run(sender, answers, answers_to, commands, Arc::clone(&channel))));
        Ok(Self { requests, bookmark: Arc::default(), reached: Arc::default() })
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

/// The answers that the requests that were sent wait for.
struct Answers {
    receiver: Receiver,
    waiting: HashMap<u64, oneshot::Sender<Answer>>,
    /// The requests whose outcome has not come.
    sent: FuturesUnordered<Sent>,
    /// The time at which the links are given up because a request got no credit or no outcome; others have their answers before.
    leaving: Option<Instant>,
}

type Sent = BoxFuture<'static, (u64, Result<sender::Answer, Elapsed>)>;

enum Event {
    Answer(Result<Box<Delivery<Body<Value>>>, RecvError>),
    Outcome(u64, Result<sender::Answer, Elapsed>),
    Late,
}

/// Owns the links, and keeps their channel as long as they last.
async fn run(
    mut sender: Sender,
    mut answers: Answers,
    answers_to: String,
    mut requests: mpsc::Receiver<Asked>,
    channel: Arc<Channel>,
) {
    let mut next = 0;
    let end = loop {
        if answers.leaving.is_some() {
            if answers.waiting.is_empty() {
                break Fault::Late;
            }
            refuse_all(&mut requests);
        }
        let Asked { request, transaction, answer } = tokio::select! {
            biased;
            () = channel.dead.cancelled() => break gone(),
            event = answers.event() => match answers.take(event).await {
                Ok(()) => continue,
                Err(end) => break end,
            },
            // The service detaches idle links, and those of a queue that is deleted.
            end = sender.on_detach() => break fault_of_end(&end),
            request = requests.recv(), if answers.leaving.is_none() => match request {
                Some(asked) => asked,
                None => return,
            },
        };
        // Callers that have given up need no answer.
        answers.waiting.retain(|_, waiting| !waiting.is_closed());
        if answer.is_closed() {
            continue;
        }
        answers.waiting.insert(next, answer);
        let sending = begin(&mut sender, message(next, request, &answers_to), transaction);
        if let Err(end) = answers.send(next, sending, &channel.dead, &mut requests).await {
            break end;
        }
        next += 1;
    };
    refuse_all(&mut requests);
    answers.end(&end).await;
}

fn gone() -> Fault {
    Fault::lost("the connection has ended")
}

/// Takes no more requests: those that wait were not sent.
fn refuse_all(requests: &mut mpsc::Receiver<Asked>) {
    requests.close();
    while let Ok(Asked { answer, .. }) = requests.try_recv() {
        let _ = answer.send(Err(Fault::not_sent("the management link has ended")));
    }
}

fn message(number: u64, request: Request, answers_to: &str) -> Message<AmqpValue<Value>> {
    let properties = Properties::builder().message_id(number).reply_to(answers_to.to_owned()).build();
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

impl Answers {
    /// Waits for the next answer or outcome.
    ///
    /// # Cancel safety
    /// If the future is dropped, the event comes again.
    async fn event(&mut self) -> Event {
        tokio::select! {
            biased;
            answer = self.receiver.recv::<Body<Value>>() => Event::Answer(answer.map(Box::new)),
            Some((number, outcome)) = self.sent.next(), if !self.sent.is_empty() => Event::Outcome(number, outcome),
            () = sleep_until(self.leaving.unwrap_or_else(Instant::now)), if self.leaving.is_some() => Event::Late,
        }
    }

    /// Takes an event in; fails when the links are of no more use.
    async fn take(&mut self, event: Event) -> Result<(), Fault> {
        match event {
            Event::Answer(Ok(delivery)) => {
                // Settled by the service; otherwise there is no caller.
                let _ = self.receiver.accept(&*delivery).await;
                self.answered((*delivery).into_message());
            }
            Event::Answer(Err(error)) if error.recovery().link_is_usable() => {
                log::debug!(%error, "an answer of Service Bus could not be read");
            }
            Event::Answer(Err(error)) => return Err(Fault::lost(error)),
            Event::Outcome(number, Ok(outcome)) => return self.accepted(number, outcome),
            Event::Outcome(number, Err(_)) => self.late(number),
            Event::Late => return Err(Fault::Late),
        }
        Ok(())
    }

    /// Sends a request. It may wait for credit: answers to others are taken in meanwhile, and no more requests once the links are given up.
    /// Fails when they are of no more use.
    async fn send(
        &mut self,
        number: u64,
        sending: impl Future<Output = Result<BoxFuture<'static, sender::Answer>, SendError>>,
        dead: &CancellationToken,
        requests: &mut mpsc::Receiver<Asked>,
    ) -> Result<(), Fault> {
        let mut sending = pin!(timeout(REQUEST_TIMEOUT, sending));
        let sent = loop {
            tokio::select! {
                biased;
                () = dead.cancelled() => return Err(gone()),
                event = self.event() => {
                    self.take(event).await?;
                    if self.leaving.is_some() {
                        refuse_all(requests);
                    }
                }
                sent = &mut sending => break sent,
            }
        };
        match sent {
            Ok(Ok(outcome)) => {
                let outcome = timeout(REQUEST_TIMEOUT, outcome).map(move |outcome| (number, outcome));
                self.sent.push(outcome.boxed());
            }
            Ok(Err(error)) => return self.accepted(number, Err(error)),
            // Without credit for so long; the link does not report whether it has sent the request.
            Err(_) => self.late(number),
        }
        Ok(())
    }

    /// Notes that the service gave a request no credit, or no outcome, in time.
    fn late(&mut self, number: u64) {
        self.answer(number, Err(Fault::Late));
        self.leaving.get_or_insert_with(|| Instant::now() + REQUEST_TIMEOUT);
    }

    /// Answers all waiting requests when the links are of no more use, and detaches them if the service has not.
    async fn end(mut self, end: &Fault) {
        log::debug!(error = %end, "a link for requests to Service Bus has ended");
        for (_, waiting) in self.waiting.drain() {
            let _ = waiting.send(Err(end.clone()));
        }
        if self.leaving.is_some() {
            // A link that is dropped ends the session of AMQP when an answer comes for it.
            let _ = timeout(CLOSE_TIMEOUT, self.receiver.close()).await;
        }
    }

    /// Takes the outcome of a request in; fails when the links are of no more use.
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
