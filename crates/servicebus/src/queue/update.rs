//! Changes and deletes messages by their receipts.

use std::sync::Arc;
use std::time::SystemTime;

use futures_util::FutureExt as _;
use uuid::Uuid;

use super::super::amqp::settlement::Settlement;
use super::super::amqp::{Outbound, instant, millis};
use super::super::error::Fault;
use super::super::held::HeldMessage;
use super::super::place::Place;
use super::body::MessageBody;
use super::message::{Outgoing, is_of_partition};
use super::put::before_request;
use super::receipt::Receipt;
use super::{ServiceBusQueues, manage, replaced};
use jobqueue_storage::rules::limits;
use jobqueue_storage::{
    MessageRef, Operation, QueueName, StoreError, StoreErrorKind as Kind, UpdateMessage, Updated, log,
};

pub(super) const UPDATE: &str = Operation::Update.as_str();
const DELETE: &str = Operation::Delete.as_str();
/// The copies of a message that are sent without a transaction and get no answer, before its lock is left to
/// end.
const MAX_COPIES_IN_DOUBT: u32 = 2;

pub(super) async fn update(
    queues: &ServiceBusQueues,
    queue: &QueueName,
    message: &MessageRef,
    change: &UpdateMessage,
) -> Result<Updated, StoreError> {
    limits::check_update(queue, change)?;
    let (token, held) = find_held(queues, queue, message, UPDATE).await?;
    let is_renewal = !change.visibility.is_zero() && !change.ends_lease;
    let now = if is_renewal {
        // Begins to read the service's time, and does not wait for it.
        let _ = queues.read_clock(queue).now_or_never();
        queues.links.clock.now()
    } else {
        queues.now(queue).await
    };
    let visible = instant(millis(now + change.visibility));
    limits::check_before_expiry(queue, visible, held.expires)?;
    let lock = Lock { queues, queue, token, held };
    if let Some(session) = lock.held.session.clone()
        && !is_renewal
    {
        let at = (!change.visibility.is_zero()).then_some(visible);
        lock.give_back_in_session(&session, change.text.as_deref(), at).await?;
        queues.notify(queue);
        return Ok(Updated::new(message.receipt.clone(), visible));
    }
    match (&change.text, change.visibility.is_zero()) {
        (None, true) => lock.abandon().await?,
        (_, false) if !change.ends_lease => {
            return lock.renew_and_save(message, change.text.as_deref()).await;
        }
        (text, is_now) => lock.put_back(text.as_deref(), (!is_now).then_some(visible)).await?,
    }
    queues.notify(queue);
    Ok(Updated::new(message.receipt.clone(), visible))
}

pub(super) async fn delete(
    queues: &ServiceBusQueues,
    queue: &QueueName,
    message: &MessageRef,
) -> Result<(), StoreError> {
    let failed = |fault: Fault| fault.of_change(DELETE, queue);
    let mut may_be_elsewhere = false;
    if let Some(Receipt::Scheduled(number)) = Receipt::read(&message.receipt) {
        let node = queues.node(queue).await.map_err(before_request(failed))?;
        let found = manage::peek(&node, number, 1).await.map_err(before_request(failed))?;
        // Numbers are per queue, and restart when a queue is recreated.
        if found.first().is_some_and(|found| found.sequence == number && found.id == message.id) {
            return manage::cancel(&node, number).await.map_err(failed);
        }
        // A peek at a partitioned queue shows a single partition.
        may_be_elsewhere =
            [number].into_iter().chain(found.iter().map(|found| found.sequence)).any(is_of_partition);
    }
    let (token, held) =
        find_held(queues, queue, message, DELETE).await.map_err(|error| match error.kind() {
            Kind::MessageNotFound => error.with_ambiguous(may_be_elsewhere),
            _ => error,
        })?;
    let lock = Lock { queues, queue, token, held };
    lock.settle(Settlement::Complete, DELETE).await?;
    queues.queue_blobs.forget(&lock.held).await;
    Ok(())
}

/// Returns the lock token and the held message for a receipt.
///
/// # Errors
/// `MessageNotFound` if this process does not hold the message, `LeaseExpired` if it was given back in its
/// session, `QueueNotFound` if there is no such queue.
pub(super) async fn find_held(
    queues: &ServiceBusQueues,
    queue: &QueueName,
    message: &MessageRef,
    operation: &'static str,
) -> Result<(Uuid, Arc<HeldMessage>), StoreError> {
    let receipt = Receipt::read(&message.receipt);
    if let Some(Receipt::Lock(token)) = receipt
        && let Some(held) = queues.held.get(queue, &message.id, token)
    {
        if held.is_given_back {
            return Err(StoreError::new(Kind::LeaseExpired, operation, queue));
        }
        return Ok((token, held));
    }
    // Opens the management node to find out whether the queue exists.
    queues.node(queue).await.map_err(|fault| fault.of_read(operation, queue))?;
    let error = StoreError::new(Kind::MessageNotFound, operation, queue);
    Err(match receipt {
        Some(Receipt::Sent(_) | Receipt::Scheduled(_)) => {
            error.with_detail("Service Bus can cancel a message only until its delay ends")
        }
        _ => error,
    })
}

pub(super) struct Lock<'a> {
    pub(super) queues: &'a ServiceBusQueues,
    pub(super) queue: &'a QueueName,
    pub(super) token: Uuid,
    pub(super) held: Arc<HeldMessage>,
}

/// The way in which a copy replaced its original, if it did.
enum CopyOutcome {
    InTransaction,
    /// The copy was sent; the original is still to be completed.
    NotCompleted,
    /// The transaction was rolled back repeatedly: no copy was sent.
    RolledBack,
}

/// Returns whether the queue has certainly refused a message because it is full, or disabled for sends.
fn takes_no_sends(error: &StoreError) -> bool {
    matches!(error.kind(), Kind::Full | Kind::QueueDisabled) && !error.is_ambiguous()
}

impl Lock<'_> {
    /// Renews the lock, and then saves the text if there is one.
    async fn renew_and_save(&self, message: &MessageRef, text: Option<&str>) -> Result<Updated, StoreError> {
        let failed = |fault: Fault| self.failed(fault, UPDATE);
        let until = match &self.held.session {
            Some(session) => session.renew(&self.queues.links).await.map_err(failed)?,
            None => {
                let node = self.queues.node(self.queue).await.map_err(before_request(failed))?;
                manage::renew(&node, self.token).await.map_err(failed)?
            }
        };
        let granted = self.queues.renewed_lock_length(self.queue, until);
        self.queues.held.change(self.token, |held| held.locked_until = until);
        // The renewal shows that the lock is held: any later receiver reads this text.
        if let Some(text) = text {
            self.queues.note_saving(self.queue).await?;
            let saved = format!("{}\n{text}", self.held.fence);
            let tag = self.queues.queue_blobs.write(&self.held, &saved).await?;
            let text = Arc::new(Ok(text.to_owned()));
            self.queues.held.change(self.token, |held| (held.text, held.saved) = (text, Some(tag)));
        }
        Ok(Updated::new(message.receipt.clone(), until).with_granted(granted))
    }

    async fn abandon(&self) -> Result<(), StoreError> {
        self.settle(Settlement::Abandon, UPDATE).await
    }

    /// Settles the message on the link that it was received over, or on the management node if that link is
    /// gone.
    pub(super) async fn settle(&self, how: Settlement, operation: &'static str) -> Result<(), StoreError> {
        if let Some(session) = &self.held.session {
            let retry = manage::session_settle_request(session.id(), self.token, &how);
            let settled = session.settle(self.token, how, retry).await;
            settled.map_err(|fault| self.failed(fault, operation))?;
            self.queues.held.remove(self.token);
            return Ok(());
        }
        let by_link = match &self.held.link {
            Some(link) => link.settle(self.token, how.clone()).await,
            None => None,
        };
        let settled = match by_link {
            Some(settled) => settled,
            None => match self.queues.node(self.queue).await {
                Ok(node) => node.call(manage::settle_request(self.token, &how)).await.map(drop),
                Err(fault) => Err(fault.unsent()),
            },
        };
        settled.map_err(|fault| self.failed(fault, operation))?;
        self.queues.held.remove(self.token);
        Ok(())
    }

    /// Puts the message back: replaces it with a copy or, while the queue accepts no copy or rolls back its
    /// transactions, gives it back in place with its text in a blob.
    async fn put_back(&self, text: Option<&str>, visible: Option<SystemTime>) -> Result<(), StoreError> {
        if self.held.is_copied {
            return self.complete_copied().await;
        }
        let present = || MessageBody::of(&self.held.text, self.held.other.as_deref());
        let content = text.map(MessageBody::Text).or_else(present);
        // A body that cannot be decoded cannot be copied, and nothing can be sent to a dead-letter queue.
        let Some(content) = content.filter(|_| !Place::of(self.queue).is_dead_letters) else {
            return self.abandon().await;
        };
        match self.replace(content, visible).await {
            Ok(CopyOutcome::InTransaction) => self.forget_original().await,
            Ok(CopyOutcome::NotCompleted) => {
                self.complete_copied().await.map_err(|error| self.in_doubt(error))
            }
            Ok(CopyOutcome::RolledBack) => self.put_back_in_place(text, visible).await,
            Err(error) if takes_no_sends(&error) => self.put_back_in_place(text, visible).await,
            Err(error) => Err(error),
        }
    }

    /// Replaces the message with a copy: in one transaction or, where there are none, by sending the copy
    /// before the original is completed.
    async fn replace(
        &self,
        content: MessageBody<'_>,
        visible: Option<SystemTime>,
    ) -> Result<CopyOutcome, StoreError> {
        let failed = |fault: Fault| self.failed(fault, UPDATE);
        let mut outgoing = self.copy(content, visible);
        outgoing.seal = Some(replaced::seal(&self.queues.queue_blobs, self.queue, &outgoing).await?);
        let copy = |outgoing: &Outgoing<'_>| {
            outgoing.message(self.held.properties.clone(), self.held.application_properties.clone())
        };
        let queue = self.queue;
        if !is_of_partition(self.held.sequence) && !self.queues.facts(queue, |facts| facts.lacks_transactions)
        {
            let mut in_transaction = self.replace_in_transaction(copy(&outgoing)).await;
            // A transient failure should not happen twice. A queue that accepts no sends refuses again.
            if in_transaction.as_ref().is_err_and(Fault::is_rolled_back) {
                // A queue that detects duplicates may remember the copy that was rolled back.
                outgoing.message_id = self.queues.links.runtime().uuid_v4().to_string();
                in_transaction = self.replace_in_transaction(copy(&outgoing)).await;
            }
            match in_transaction {
                // The queue has transactions, and a copy that is sent first may leave two messages.
                Err(error) if error.is_rolled_back() => return Ok(CopyOutcome::RolledBack),
                Err(error) if error.is_of_transaction() => {
                    log::debug!(%queue, %error, "no transaction with Service Bus: a copy is sent before its original is completed");
                    // Any other refusal concerns only this message.
                    self.queues.facts(queue, |facts| facts.lacks_transactions = error.lacks_transactions());
                }
                replaced => return replaced.map(|()| CopyOutcome::InTransaction).map_err(failed),
            }
        }
        if self.held.copies_in_doubt == MAX_COPIES_IN_DOUBT {
            // Each of them runs. Without a further one, the lock ends.
            return Err(StoreError::new(Kind::LeaseExpired, UPDATE, queue));
        }
        // The renewal shows that this process still holds the lock, and leaves time for the copy.
        self.renew().await?;
        let sender = self.queues.sender(self.queue).await.map_err(before_request(failed))?;
        // With the lock token as its id, the copies of later tries are dropped by a queue that detects
        // duplicates.
        outgoing.message_id = self.token.to_string();
        // Before the answer, which the caller may not wait for.
        self.queues.held.change(self.token, |held| held.copies_in_doubt += 1);
        let sent = sender.send(copy(&outgoing)).await.map_err(failed);
        let is_in_doubt = sent.as_ref().is_err_and(StoreError::is_ambiguous);
        self.queues.held.change(self.token, |held| {
            held.copies_in_doubt -= u32::from(!is_in_doubt);
            held.is_copied = sent.is_ok();
        });
        sent.map(|_| CopyOutcome::NotCompleted)
    }

    /// Gives the message back in place, after saving its text and the time before which it must not be
    /// delivered.
    async fn put_back_in_place(
        &self,
        text: Option<&str>,
        visible: Option<SystemTime>,
    ) -> Result<(), StoreError> {
        // The renewal shows that the lock is held: any later receiver reads this text.
        self.renew().await?;
        self.queues.note_saving(self.queue).await?;
        self.queues.queue_blobs.save_given_back(&self.held, text, visible).await?;
        self.abandon().await.map_err(|error| self.in_doubt(error))
    }

    async fn renew(&self) -> Result<(), StoreError> {
        let failed = before_request(|fault: Fault| self.failed(fault, UPDATE));
        let node = self.queues.node(self.queue).await.map_err(&failed)?;
        manage::renew(&node, self.token).await.map(drop).map_err(failed)
    }

    /// Replaces the message with a copy in one transaction. The original is settled by its lock token and not
    /// on its link, which may end at any time and serves other messages.
    async fn replace_in_transaction(&self, copy: Outbound) -> Result<(), Fault> {
        let address = Place::of(self.queue).address();
        let settling = manage::settle_request(self.token, &Settlement::Complete);
        self.queues.links.replace(&address, copy, settling).await?;
        if let Some(link) = &self.held.link {
            link.forget(self.token).await;
        }
        Ok(())
    }

    /// Completes a message whose copy was accepted. If that fails, a later put-back repeats only this step.
    async fn complete_copied(&self) -> Result<(), StoreError> {
        self.settle(Settlement::Complete, UPDATE).await.inspect_err(|error| {
            let queue = self.queue;
            log::warn!(%queue, message = %self.held.id, %error, "a message was put back as a copy, and the original is not completed yet; the job may run twice");
        })?;
        self.forget_original().await
    }

    async fn forget_original(&self) -> Result<(), StoreError> {
        self.queues.held.remove(self.token);
        self.queues.queue_blobs.forget(&self.held).await;
        Ok(())
    }

    fn copy<'t>(&'t self, content: MessageBody<'t>, visible: Option<SystemTime>) -> Outgoing<'t> {
        Outgoing {
            content,
            id: self.held.id.as_str(),
            // A new id: a queue that detects duplicates would drop a copy with the original's id.
            message_id: self.queues.links.runtime().uuid_v4().to_string(),
            group: None,
            inserted: Some(self.held.inserted),
            expires: self.held.expires,
            visible,
            dequeued: self.held.dequeue_count,
            seal: None,
            now: self.queues.links.clock.now(),
        }
    }

    /// Returns the error of the last step of a put-back, after its text was stored: the message may be
    /// delivered with that text.
    pub(super) fn in_doubt(&self, error: StoreError) -> StoreError {
        StoreError::new(Kind::Unavailable, UPDATE, self.queue).with_source(error).with_ambiguous(true)
    }

    /// Returns the error of a change. A lost lock does not show the state of the message: an earlier request
    /// may have settled it, and the service drops locks early when a connection breaks or a node restarts.
    pub(super) fn failed(&self, fault: Fault, operation: &'static str) -> StoreError {
        if !fault.is_lock_lost() {
            return fault.of_change(operation, self.queue);
        }
        StoreError::new(Kind::LeaseExpired, operation, self.queue).with_source(fault)
    }
}
