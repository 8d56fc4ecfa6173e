//! Puts messages.

use uuid::Uuid;

use super::super::amqp::{instant, millis};
use super::super::error::Fault;
use super::super::place::Place;
use super::body::MessageBody;
use super::message::Outgoing;
use super::receipt::Receipt;
use super::{ServiceBusQueues, in_session, manage};
use jobqueue_storage::rules::limits;
use jobqueue_storage::{
    MessageId, MessageRef, Operation, PutMessage, PutOutcome, QueueName, StoreError, StoreErrorKind as Kind,
};

pub(super) async fn put(
    queues: &ServiceBusQueues,
    queue: &QueueName,
    message: &PutMessage,
) -> Result<PutOutcome, StoreError> {
    limits::check_put(queue, message)?;
    if Place::of(queue).is_dead_letters {
        let error = StoreError::new(Kind::Unsupported, Operation::Put.as_str(), queue);
        return Err(error.with_detail(
            "cannot send to a Service Bus dead-letter queue; only the service moves messages there",
        ));
    }
    let (nonce, is_delayed) = (queues.links.runtime().uuid_v4(), !message.visibility_delay.is_zero());
    let id = nonce.to_string();
    let message_id = message.job.as_ref().map_or_else(|| id.clone(), |(source, job)| id_of_job(source, job));
    let group = session_for(queues, queue, message, &message_id).await?;
    // The service counts in milliseconds, and a value must survive the round trip.
    let inserted = instant(millis(queues.now(queue).await));
    let after = |time| inserted.checked_add(time).map(|at| instant(millis(at)));
    let (expires, visible) =
        (message.ttl.and_then(after), after(message.visibility_delay).unwrap_or(inserted));
    let outgoing = Outgoing {
        content: MessageBody::Text(&message.text),
        id: &id,
        message_id,
        group,
        inserted: is_delayed.then_some(inserted),
        expires,
        visible: is_delayed.then_some(visible),
        dequeued: 0,
        seal: None,
        now: inserted,
    };
    let receipt = send(queues, queue, &outgoing, nonce).await?;
    queues.notify(queue);
    let message = MessageRef { id: MessageId::new(&id), receipt: receipt.write(nonce) };
    Ok(PutOutcome::new(message, inserted, visible).with_expires(expires))
}

/// Returns the message id for a job. The encoded source contains no space, so two jobs never share an id.
fn id_of_job(source: &str, job: &str) -> String {
    let source = source.replace('%', "%25").replace(' ', "%20");
    in_session::id_for(&format!("{source} {job}"))
}

/// Prepares what a batch of concurrent puts needs: the service's time, links and nodes. If each put waited
/// for its own, the messages of a group would lose their order. Errors are dropped: the put that needs the
/// link reports them.
pub(super) async fn prepare(queues: &ServiceBusQueues, queue: &QueueName, messages: &[PutMessage]) {
    queues.read_clock(queue).await;
    let place = Place::of(queue);
    for is_delayed in [false, true] {
        let is_wanted = messages.iter().any(|message| message.visibility_delay.is_zero() != is_delayed);
        if !is_wanted || place.is_dead_letters || queues.links.can_put(&place.address(), is_delayed) {
            continue;
        }
        queues.forget_sessions(queue);
        drop(queues.requires_session(queue, Operation::Put).await);
        if is_delayed {
            drop(queues.node(queue).await);
        } else {
            drop(queues.sender(queue).await);
        }
    }
}

/// Sends a message. A delayed message is sent by a management request, which returns the number needed to
/// cancel it.
async fn send(
    queues: &ServiceBusQueues,
    queue: &QueueName,
    outgoing: &Outgoing<'_>,
    nonce: Uuid,
) -> Result<Receipt, StoreError> {
    let failed = |fault: Fault| fault.of_change(Operation::Put.as_str(), queue);
    let sent = outgoing.message(None, None);
    if outgoing.visible.is_some() {
        let node = queues.node(queue).await.map_err(before_request(failed))?;
        let number = manage::schedule(&node, &outgoing.message_id, &sent).await.map_err(failed)?;
        return Ok(Receipt::Scheduled(number));
    }
    let link = queues.sender(queue).await.map_err(before_request(failed))?;
    link.send(sent).await.map_err(|fault| {
        if fault.is_not_allowed() {
            queues.forget_sessions(queue);
        }
        failed(fault)
    })?;
    Ok(Receipt::Sent(nonce))
}

/// Returns the session of a message; `None` in a queue without sessions.
///
/// # Errors
/// `Unsupported` for a message with a group if the queue no longer has sessions, and the errors of reading
/// its settings.
async fn session_for(
    queues: &ServiceBusQueues,
    queue: &QueueName,
    message: &PutMessage,
    message_id: &str,
) -> Result<Option<String>, StoreError> {
    let is_delayed = !message.visibility_delay.is_zero();
    if !queues.links.can_put(&Place::of(queue).address(), is_delayed) {
        // The queue may have been recreated.
        queues.forget_sessions(queue);
    }
    match (queues.requires_session(queue, Operation::Put).await?, &message.group) {
        (true, group) => Ok(Some(in_session::id_for(group.as_deref().unwrap_or(message_id)))),
        (false, None) => Ok(None),
        (false, Some(_)) => {
            let error = StoreError::new(Kind::Unsupported, Operation::Put.as_str(), queue);
            Err(error.with_detail(
                "the queue was recreated without sessions, which kept the order; restart the program",
            ))
        }
    }
}

/// Marks the errors of a step before the request as unambiguous: nothing was changed.
pub(super) fn before_request(failed: impl Fn(Fault) -> StoreError) -> impl Fn(Fault) -> StoreError {
    move |fault| failed(fault).with_ambiguous(false)
}
