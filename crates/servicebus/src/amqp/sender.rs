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

use super::super::cache::Expiring;
use super::super::error::{Fault, condition};
use super::channel::Channel;
use super::values::{self, Outbound, REQUEST_TIMEOUT, condition_of};

type SendOutcome = Result<Outcome, SendError>;
/// The outcome of a message, or the timeout, and the channel to its caller.
type FinishedSend = (Result<SendOutcome, Elapsed>, oneshot::Sender<Result<(), Fault>>);
type Pending = BoxFuture<'static, FinishedSend>;

#[derive(Debug)]
struct QueuedSend {
    message: Outbound,
    transaction: Option<TransactionId>,
    answer: oneshot::Sender<Result<(), Fault>>,
}

/// A link to a queue. Clones use the same link.
#[derive(Debug, Clone)]
pub(crate) struct SendLink {
    messages: mpsc::Sender<QueuedSend>,
}

impl SendLink {
    pub(super) async fn attach(channel: Arc<Channel>, address: &str) -> Result<Self, Fault> {
        let sender = channel.sender(address).await?;
        let (messages, commands) = mpsc::channel(256);
        drop(channel.runtime.spawn(run(sender, commands, Arc::clone(&channel))));
        Ok(Self { messages })
    }

    /// Sends a message and waits for the service's answer. If the future is dropped, the message may have
    /// been sent.
    pub(crate) async fn send(&self, message: Outbound) -> Result<(), Fault> {
        self.post(message, None).await
    }

    /// Sends a message, as part of a transaction if there is one. A transactional message becomes final with
    /// the commit.
    pub(super) async fn post(
        &self,
        message: Outbound,
        transaction: Option<TransactionId>,
    ) -> Result<(), Fault> {
        let (answer, answered) = oneshot::channel();
        let gone = |_| Fault::not_sent("the link has ended");
        self.messages.send(QueuedSend { message, transaction, answer }).await.map_err(gone)?;
        values::answer(answered).await
    }
}

impl Expiring for SendLink {
    fn is_gone(&self) -> bool {
        self.messages.is_closed()
    }
}

/// Owns the link, and keeps its channel open as long as the link.
async fn run(mut sender: Sender, mut messages: mpsc::Receiver<QueuedSend>, channel: Arc<Channel>) {
    let mut pending = FuturesUnordered::<Pending>::new();
    // True once an outcome has timed out: the link accepts no more messages, and ends after the pending
    // outcomes.
    let mut is_late = false;
    'link: while !(is_late && pending.is_empty()) {
        tokio::select! {
            biased;
            () = channel.dead.cancelled() => break,
            Some(done) = pending.next(), if !pending.is_empty() => {
                if !settle_send(done, &mut is_late, &mut messages) { break }
            }
            // The service detaches idle links, and the links of a deleted queue. The next message needs a new
            // link.
            _ = sender.on_detach(), if pending.is_empty() => break,
            message = messages.recv(), if !is_late => {
                let Some(QueuedSend { message, transaction, answer }) = message else { break };
                if answer.is_closed() {
                    continue;
                }
                let mut sending = pin!(timeout(REQUEST_TIMEOUT, begin(&mut sender, message, transaction)));
                // The send may wait for credit; outcomes of other messages are delivered during that time.
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
                    // No credit came in time; the link does not report whether it has sent the message.
                    Err(_) => {
                        let _ = answer.send(Err(Fault::Late));
                        break;
                    }
                }
            }
        }
    }
    refuse_all(&mut messages);
    // Dropping `pending` fails the callers that still wait: without the link their futures would never
    // resolve.
}

/// Closes the channel; the messages in it were not sent.
fn refuse_all(messages: &mut mpsc::Receiver<QueuedSend>) {
    messages.close();
    while let Ok(QueuedSend { answer, .. }) = messages.try_recv() {
        let _ = answer.send(Err(Fault::not_sent("the link has ended")));
    }
}

/// Passes an outcome to the caller of its message. Returns `false` if the link is no longer usable.
fn settle_send(
    (outcome, answer): FinishedSend,
    is_late: &mut bool,
    messages: &mut mpsc::Receiver<QueuedSend>,
) -> bool {
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

/// Sends a message; returns a future that resolves to its outcome.
async fn begin(
    sender: &mut Sender,
    message: Outbound,
    transaction: Option<TransactionId>,
) -> Result<BoxFuture<'static, SendOutcome>, SendError> {
    match transaction {
        None => Ok(sender.send_batchable(message).await?.boxed()),
        Some(id) => {
            let posted = DeclaredTransaction(id).post_batchable(sender, message).await.map_err(of_post)?;
            Ok(posted.map(|outcome| outcome.map_err(of_post)).boxed())
        }
    }
}

fn read(outcome: SendOutcome) -> Result<(), Fault> {
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

/// Returns the fault of a message whose last frame was not sent, so the service has no message.
fn fault_before(error: &SendError) -> Fault {
    match fault_of(error) {
        Fault::Lost(reason) => Fault::NotSent(reason),
        other => other,
    }
}

/// Returns the fault of a transfer without an outcome. The link may have ended before or after the service
/// applied it.
fn fault_of(error: &SendError) -> Fault {
    match error {
        SendError::MessageSizeExceeded(_) => {
            Fault::Refused { condition: condition::TOO_LARGE.to_owned(), description: error.to_string() }
        }
        SendError::MessageEncodeError => Fault::not_sent(error),
        // The client accepts an outcome only if it names the transaction.
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

/// Returns the fault of a message on a link that was detached with a reason. The reason does not apply to
/// messages without an outcome: a service that is too busy for a message rejects that message in its outcome.
fn with_reason(reason: &AmqpError, error: &dyn fmt::Display) -> Fault {
    let fault = condition_of(reason);
    // A deleted queue cannot have the message.
    if fault.is_missing_entity() { fault } else { Fault::lost(error) }
}

/// Sends messages as part of a transaction that another task has declared.
struct DeclaredTransaction(TransactionId);

impl TransactionBase for DeclaredTransaction {
    fn txn_id(&self) -> &TransactionId {
        &self.0
    }
}

impl TransactionPosting for DeclaredTransaction {}

/// Converts the error of a transactional send to the error of a plain send.
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
