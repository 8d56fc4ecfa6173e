//! A link that sends messages, and the task that owns it.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;

use fe2o3_amqp::Sender;
use fe2o3_amqp::link::{DetachError, LinkStateError as State, SendError};
use fe2o3_amqp::transaction::{PostError, TransactionBase, TransactionPosting};
use fe2o3_amqp::types::definitions::Error as AmqpError;
use fe2o3_amqp::types::messaging::Outcome;
use fe2o3_amqp::types::transaction::TransactionId;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::{mpsc, oneshot};
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use super::super::cache::Perishable;
use super::super::error::{Fault, condition};
use super::channel::Channel;
use super::values::{self, Outbound, REQUEST_TIMEOUT, condition_of};

type Answer = Result<Outcome, SendError>;
/// The outcome of a message, if it has come in time, and its caller.
type Done = (Result<Answer, Elapsed>, oneshot::Sender<Result<(), Fault>>);
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
    // True once a message got no outcome in time: the link takes no more, and ends with the outcomes of the others.
    let mut is_late = false;
    'link: while !(is_late && pending.is_empty()) {
        tokio::select! {
            biased;
            () = channel.dead.cancelled() => break,
            Some(done) = pending.next(), if !pending.is_empty() => {
                if !settle_send(done, &mut is_late, &mut messages) { break }
            }
            // The service detaches an idle link, and those of a queue that is deleted. The next message needs another one.
            _ = sender.on_detach(), if pending.is_empty() => break,
            message = messages.recv(), if !is_late => {
                let Some(Posted { message, transaction, answer }) = message else { break };
                if answer.is_closed() {
                    continue;
                }
                let mut sending = pin!(timeout(REQUEST_TIMEOUT, begin(&mut sender, message, transaction)));
                // It may wait for credit, while the outcomes of others come.
                let sent = loop {
                    tokio::select! {
                        biased;
                        () = channel.dead.cancelled() => break 'link,
                        Some(done) = pending.next(), if !pending.is_empty() => {
                            if !settle_send(done, &mut is_late, &mut messages) { break 'link }
                        }
                        sent = &mut sending => break sent,
                    }
                };
                match sent {
                    Ok(Ok(outcome)) => {
                        let outcome = timeout(REQUEST_TIMEOUT, outcome);
                        pending.push(Box::pin(async move { (outcome.await, answer) }));
                    }
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
    refuse_all(&mut messages);
    // The callers that still wait get an error: without the link their futures would never end.
}

/// Takes no more messages: those that wait were not sent.
fn refuse_all(messages: &mut mpsc::Receiver<Posted>) {
    messages.close();
    while let Ok(Posted { answer, .. }) = messages.try_recv() {
        let _ = answer.send(Err(Fault::not_sent("the link has ended")));
    }
}

/// Returns an outcome to the caller of its message; false if the link is of no more use.
fn settle_send((outcome, answer): Done, is_late: &mut bool, messages: &mut mpsc::Receiver<Posted>) -> bool {
    let Ok(outcome) = outcome else {
        *is_late = true;
        refuse_all(messages);
        let _ = answer.send(Err(Fault::Late));
        return true;
    };
    let is_usable = outcome.as_ref().map_or_else(|error| error.recovery().link_is_usable(), |_| true);
    let _ = answer.send(read(outcome));
    is_usable
}

/// Sends a message; returns a future of its outcome.
async fn begin(
    sender: &mut Sender,
    message: Outbound,
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
fn fault_of(error: &SendError) -> Fault {
    match error {
        SendError::MessageSizeExceeded(_) => {
            Fault::Refused { condition: condition::TOO_LARGE.to_owned(), description: error.to_string() }
        }
        SendError::MessageEncodeError => Fault::not_sent(error),
        // The client reads an outcome only if it names the transaction.
        SendError::IllegalDeliveryState => Fault::Refused {
            condition: condition::REFUSED_IN_TRANSACTION.to_owned(),
            description: error.to_string(),
        },
        SendError::Detached(
            end @ (DetachError::RemoteClosedWithError(reason) | DetachError::RemoteDetachedWithError(reason)),
        ) => with_reason(reason, end),
        SendError::LinkStateError(
            State::RemoteClosedWithError(reason) | State::RemoteDetachedWithError(reason),
        ) => with_reason(reason, error),
        _ => Fault::lost(error),
    }
}

/// Returns the fault of a message on a link that was detached with a reason. The reason says nothing about messages without an outcome: a service
/// that is too busy for a message rejects it in the outcome of that message.
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
