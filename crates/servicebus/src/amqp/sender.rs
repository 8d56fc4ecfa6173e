//! A link that sends messages, and the task that owns it.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;

use fe2o3_amqp::Sender;
use fe2o3_amqp::link::{DetachError, LinkStateError as State, SendError};
use fe2o3_amqp::transaction::{PostError, TransactionBase, TransactionPosting};
use fe2o3_amqp::types::definitions::Error as AmqpError;
use fe2o3_amqp::types::messaging::{Message, Outcome, SerializableBody};
use fe2o3_amqp::types::transaction::TransactionId;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::super::error::Fault;
use super::cache::Perishable;
use super::channel::Channel;
use super::values::{self, Outbound, REQUEST_TIMEOUT, condition_of};

pub(super) type Answer = Result<Outcome, SendError>;
/// The outcome of a message, and its caller.
type Done = (Answer, oneshot::Sender<Result<(), Fault>>);
type Pending = BoxFuture<'static, Done>;

#[derive(Debug)]
struct Posted {
    message: Outbound,
    transaction: Option<TransactionId>,
    answer: oneshot::Sender<Result<(), Fault>>,
}

/// A link to a queue. Clones use the same link.
#[derive(Debug, Clone)]
pub(crate) struct SendLink {
    messages: mpsc::Sender<Posted>,
}

impl SendLink {
    pub(super) async fn attach(channel: Arc<Channel>, address: &str) -> Result<Self, Fault> {
        let sender = channel.sender(address).await?;
        let (messages, commands) = mpsc::channel(256);
        drop(channel.runtime.spawn(run(sender, commands, Arc::clone(&channel))));
        Ok(Self { messages })
    }

    /// Sends a message and waits for the service's answer. If the future is dropped, the message may have been sent.
    pub(crate) async fn send(&self, message: Outbound) -> Result<(), Fault> {
        self.post(message, None).await
    }

    /// Sends a message, within a transaction if one is given, which makes it final.
    pub(super) async fn post(
        &self,
        message: Outbound,
        transaction: Option<TransactionId>,
    ) -> Result<(), Fault> {
        let (answer, answered) = oneshot::channel();
        let gone = |_| Fault::not_sent("the link has ended");
        self.messages.send(Posted { message, transaction, answer }).await.map_err(gone)?;
        values::answer(answered).await
    }
}

impl Perishable for SendLink {
    fn is_gone(&self) -> bool {
        self.messages.is_closed()
    }
}

/// Owns the link, and keeps its channel as long as it lasts.
async fn run(mut sender: Sender, mut messages: mpsc::Receiver<Posted>, channel: Arc<Channel>) {
    let mut pending = FuturesUnordered::<Pending>::new();
    'link: loop {
        tokio::select! {
            biased;
            () = channel.dead.cancelled() => break,
            Some(done) = pending.next(), if !pending.is_empty() => if !tell(done) { break },
            // The service detaches an idle link, and those of a queue that is deleted. The next message needs another one.
            _ = sender.on_detach(), if pending.is_empty() => break,
            message = messages.recv() => {
                let Some(Posted { message, transaction, answer }) = message else { break };
                let mut sending = pin!(timeout(REQUEST_TIMEOUT, begin(&mut sender, message, transaction)));
                // It may wait for credit, while the outcomes of others come.
                let sent = loop {
                    tokio::select! {
                        biased;
                        () = channel.dead.cancelled() => break 'link,
                        Some(done) = pending.next(), if !pending.is_empty() => if !tell(done) { break 'link },
                        sent = &mut sending => break sent,
                    }
                };
                match sent {
                    Ok(Ok(outcome)) => pending.push(Box::pin(async move { (outcome.await, answer) })),
                    Ok(Err(error)) => {
                        let _ = answer.send(Err(fault_before(&error)));
                        if !error.recovery().link_is_usable() {
                            break;
                        }
                    }
                    // Without credit for so long; the link does not report whether it has sent the message.
                    Err(_) => {
                        let _ = answer.send(Err(Fault::Late));
                        break;
                    }
                }
            }
        }
    }
    messages.close();
    while let Ok(Posted { answer, .. }) = messages.try_recv() {
        let _ = answer.send(Err(Fault::not_sent("the link has ended")));
    }
    // Who still waits learns that the link has ended: without the link their futures would never end.
}

/// Returns an outcome to the caller of its message; false if the link is of no more use.
fn tell((outcome, answer): Done) -> bool {
    let is_usable = outcome.as_ref().map_or_else(|error| error.recovery().link_is_usable(), |_| true);
    let _ = answer.send(read(outcome));
    is_usable
}

/// Sends a message; returns a future of its outcome.
pub(super) async fn begin<B: SerializableBody + Send>(
    sender: &mut Sender,
    message: Message<B>,
    transaction: Option<TransactionId>,
) -> Result<BoxFuture<'static, Answer>, SendError> {
    match transaction {
        None => Ok(sender.send_batchable(message).await?.boxed()),
        Some(id) => {
            let posted = Within(id).post_batchable(sender, message).await.map_err(of_post)?;
            Ok(posted.map(|outcome| outcome.map_err(of_post)).boxed())
        }
    }
}

fn read(outcome: Answer) -> Result<(), Fault> {
    match outcome {
        Ok(Outcome::Accepted(_)) => Ok(()),
        Ok(Outcome::Rejected(rejected)) => Err(match rejected.error {
            Some(error) => condition_of(&error),
            None => Fault::not_sent("the message was rejected"),
        }),
        Ok(_) => Err(Fault::not_sent("the message was released")),
        Err(error) => Err(fault_of(&error)),
    }
}

/// Returns the fault of a message whose last frame was not sent, so that there is no message.
fn fault_before(error: &SendError) -> Fault {
    match fault_of(error) {
        Fault::Lost(reason) => Fault::NotSent(reason),
        other => other,
    }
}

/// Returns the fault of a transfer without an answer. The link may have ended before or after the service performed it.
pub(super) fn fault_of(error: &SendError) -> Fault {
    match error {
        SendError::MessageSizeExceeded(_) => Fault::Refused {
            condition: "amqp:link:message-size-exceeded".to_owned(),
            description: error.to_string(),
        },
        SendError::MessageEncodeError => Fault::not_sent(error),
        SendError::Detached(error) => fault_of_end(error),
        SendError::LinkStateError(
            State::RemoteClosedWithError(reason) | State::RemoteDetachedWithError(reason),
        ) => with_reason(reason, error),
        _ => Fault::lost(error),
    }
}

pub(super) fn fault_of_end(error: &DetachError) -> Fault {
    match error {
        DetachError::RemoteClosedWithError(reason) | DetachError::RemoteDetachedWithError(reason) => {
            with_reason(reason, error)
        }
        _ => Fault::lost(error),
    }
}

fn with_reason(reason: &AmqpError, error: &dyn fmt::Display) -> Fault {
    let fault = condition_of(reason);
    // A queue that is gone has no message.
    if fault.is_missing_entity() { fault } else { Fault::lost(error) }
}

/// Sends messages within a transaction that another task has declared.
struct Within(TransactionId);

impl TransactionBase for Within {
    fn txn_id(&self) -> &TransactionId {
        &self.0
    }
}

impl TransactionPosting for Within {}

/// Returns the error of a message in a transaction as that of a message outside of one.
fn of_post(error: PostError) -> SendError {
    match error {
        PostError::LinkStateError(error) => SendError::LinkStateError(error),
        PostError::Detached(error) => SendError::Detached(error),
        PostError::NonTerminalDeliveryState => SendError::NonTerminalDeliveryState,
        PostError::IllegalDeliveryState => SendError::IllegalDeliveryState,
        PostError::MessageSizeExceeded(error) => SendError::MessageSizeExceeded(error),
        PostError::MessageEncodeError => SendError::MessageEncodeError,
    }
}
