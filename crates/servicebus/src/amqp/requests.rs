//! Requests and their answers over a pair of links, for the nodes `$cbs` and `$management`.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use fe2o3_amqp::Receiver;
use fe2o3_amqp::types::messaging::{AmqpValue, ApplicationProperties, Body, Message, MessageId, Properties};
use fe2o3_amqp::types::primitives::{SimpleValue, Value};
use fe2o3_amqp::types::transaction::TransactionId;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::super::cache::Expiring;
use super::super::error::Fault;
use super::channel::{Channel, of_receiver};
use super::receive_task::of_recv;
use super::sender::SendLink;
use super::values::{self, CLOSE_TIMEOUT, Incoming, Outbound, REQUEST_TIMEOUT};
use jobqueue_storage::log;
use jobqueue_storage::sync::lock;

#[derive(Debug)]
pub(crate) struct NodeRequest {
    pub(crate) operation: &'static str,
    pub(crate) properties: Vec<(&'static str, String)>,
    pub(crate) body: Value,
}

/// The body of the answer to a request; `None` for "no content".
pub(crate) type RequestResult = Result<Option<Value>, Fault>;

/// A node that answers requests. Clones use the same links.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    sender: SendLink,
    answers: Arc<PendingRequests>,
    answers_to: Arc<str>,
    /// The number at which walks through the queue begin. It is valid as long as the links, which end with
    /// their queue.
    pub(crate) walk_start: Arc<AtomicI64>,
    /// The number at which a walk stopped at its limit; valid equally long.
    pub(crate) reached: Arc<AtomicI64>,
    _unused: Arc<DropGuard>,
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
        let sender = SendLink::attach(Arc::clone(&channel), address).await?;
        let (answers, unused) = (Arc::new(PendingRequests::default()), CancellationToken::new());
        let reading = read_answers(receiver, Arc::clone(&answers), Arc::clone(&channel), unused.clone());
        drop(channel.runtime.spawn(reading));
        Ok(Self {
            sender,
            answers,
            answers_to: answers_to.into(),
            walk_start: Arc::default(),
            reached: Arc::default(),
            _unused: Arc::new(unused.drop_guard()),
        })
    }

    /// Sends a request and waits for its answer. If the future is dropped, the request may have been sent.
    pub(crate) async fn call(&self, request: NodeRequest) -> RequestResult {
        self.ask(request, None).await
    }

    /// Makes a request, as part of a transaction if there is one. Then it becomes final with the commit.
    pub(super) async fn ask(
        &self,
        request: NodeRequest,
        transaction: Option<TransactionId>,
    ) -> RequestResult {
        let (number, answered) = self.answers.expect()?;
        let mut answered = pin!(values::answer(answered));
        let posted = self.sender.post(message(number, request, &self.answers_to), transaction);
        tokio::select! {
            biased;
            answer = &mut answered => return answer,
            posted = posted => posted?,
        }
        answered.await
    }
}

impl Expiring for Node {
    fn is_gone(&self) -> bool {
        self.sender.is_gone() || lock(&self.answers.waiting).is_none()
    }
}

fn message(number: u64, request: NodeRequest, answers_to: &str) -> Outbound {
    let properties = Properties::builder().message_id(number).reply_to(answers_to.to_owned()).build();
    let mut fields = ApplicationProperties::builder().insert("operation", request.operation.to_owned());
    for (name, value) in request.properties {
        fields = fields.insert(name, value);
    }
    Message::builder()
        .properties(properties)
        .application_properties(fields.build())
        .body(Body::Value(AmqpValue(request.body)))
        .build()
}

/// The requests that wait for their answers.
#[derive(Debug)]
struct PendingRequests {
    next: AtomicU64,
    /// `None` once no more answers can arrive.
    waiting: Mutex<Option<BTreeMap<u64, oneshot::Sender<RequestResult>>>>,
}

impl Default for PendingRequests {
    fn default() -> Self {
        Self { next: AtomicU64::default(), waiting: Mutex::new(Some(BTreeMap::new())) }
    }
}

impl PendingRequests {
    /// Registers a request; returns its number, and the receiver of its answer.
    fn expect(&self) -> Result<(u64, oneshot::Receiver<RequestResult>), Fault> {
        let (answer, answered) = oneshot::channel();
        let mut waiting = lock(&self.waiting);
        let waiting = waiting.as_mut().ok_or_else(|| Fault::not_sent("the management link has ended"))?;
        // Forgets callers that have stopped waiting.
        waiting.retain(|_, waiting| !waiting.is_closed());
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        waiting.insert(number, answer);
        Ok((number, answered))
    }

    fn take(&self, message: Incoming) {
        let correlation =
            message.properties.as_ref().and_then(|properties| properties.correlation_id.as_ref());
        let Some(MessageId::Ulong(number)) = correlation else { return };
        let waiting = lock(&self.waiting).as_mut().and_then(|waiting| waiting.remove(number));
        if let Some(waiting) = waiting {
            let _ = waiting.send(read(message));
        }
    }

    fn end(&self, end: &Fault) {
        for (_, waiting) in lock(&self.waiting).take().into_iter().flatten() {
            let _ = waiting.send(Err(end.clone()));
        }
    }
}

/// Owns the link for answers, and keeps its channel open as long as the link.
async fn read_answers(
    mut receiver: Receiver,
    answers: Arc<PendingRequests>,
    channel: Arc<Channel>,
    unused: CancellationToken,
) {
    let end = loop {
        let answer = tokio::select! {
            biased;
            () = channel.dead.cancelled() => break Fault::lost("the connection has ended"),
            answer = receiver.recv::<Body<Value>>() => answer,
            () = unused.cancelled() => break Fault::lost("the management link has ended"),
        };
        match answer {
            Ok(delivery) => {
                // The service sends answers settled. If it does not, nothing depends on this outcome.
                let _ = receiver.accept(&delivery).await;
                answers.take(delivery.into_message());
            }
            Err(error) if error.recovery().link_is_usable() => {
                log::debug!(%error, "an answer of Service Bus could not be read");
            }
            Err(error) => break of_recv(error),
        }
    };
    log::debug!(error = %end, "a link for Service Bus answers has ended");
    answers.end(&end);
    if unused.is_cancelled() {
        // A link that is dropped ends the AMQP session when an answer arrives for it.
        let _ = timeout(CLOSE_TIMEOUT, receiver.close()).await;
    }
}

fn read(message: Incoming) -> RequestResult {
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
