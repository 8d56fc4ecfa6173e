//! Promises about fencing: a receipt that is stale, expired or of another message changes nothing.

use crate::prelude::*;
use jobqueue::storage::{LeasedMessage, MessageId, PopReceipt};

/// Returns an update that accepts an expired receipt.
fn late() -> UpdateMessage {
    UpdateMessage::new(LONG_TIMEOUT).with_expired(ExpiredReceipt::Allow)
}

/// Returns a message whose lease has expired and that no other client has received.
async fn expired(subject: &Subject) -> Result<(TestQueue, MessageRef), Broken> {
    let queue = subject.queue().await?;
    let message = queue.put_and_get("text", secs(1)).await?.message;
    subject.advance(secs(1)).await;
    Ok((queue, message))
}

/// Returns a message whose lease has expired and that another worker has received since.
async fn succeeded(subject: &Subject) -> Result<(TestQueue, MessageRef, LeasedMessage), Broken> {
    let (queue, message) = expired(subject).await?;
    let successor = queue.get_one(LONG_TIMEOUT).await?;
    Ok((queue, message, successor))
}

promises! { "receipt";
    /// A former holder cannot delete a message that a successor has received.
    async fn of_a_predecessor_does_not_delete(subject) {
        let (queue, stale, successor) = succeeded(subject).await?;
        refused(queue.delete(&stale).await, STALE)?;
        queue.delete(&successor.message).await?;
    }

    /// A former holder cannot change a message that a successor has received.
    async fn of_a_predecessor_does_not_update(subject) {
        let (queue, stale, successor) = succeeded(subject).await?;
        refused(queue.update(&stale, secs(0)).await, STALE)?;
        refused(queue.update_text(&stale, "stale").await, STALE)?;
        ensure!(queue.get(1, LONG_TIMEOUT).await?.is_empty(), "the stale holder released the message");
        queue.update(&successor.message, secs(0)).await?;
        ensure_eq!(queue.get_one(LONG_TIMEOUT).await?.text.as_deref(), Ok("text"), "text");
    }

    /// Even if expired receipts are allowed, a former holder cannot delete or change a successor's message.
    async fn of_a_predecessor_is_refused_if_claimed(subject) {
        let (queue, stale, successor) = succeeded(subject).await?;
        refused(queue.delete_late(&stale).await, STALE)?;
        refused(queue.update_with(&stale, late()).await, STALE)?;
        queue.delete(&successor.message).await?;
    }

    /// An expired receipt does not delete the message, even if no other client has received it.
    async fn that_expired_does_not_delete(subject) {
        let (queue, message) = expired(subject).await?;
        let deviates = subject.deviates(Deviation::ExpiryNotChecked);
        ensure_eq!(queue.store.guarantees().checks_expiry, !deviates, "the guarantee that the storage reports");
        refused_unless(deviates, queue.delete(&message).await, &[K::LeaseExpired])?;
        ensure_eq!(queue.get(1, LONG_TIMEOUT).await?.len(), usize::from(!deviates), "messages");
    }

    /// An expired receipt does not update the message, even if no other client has received it.
    async fn that_expired_does_not_update(subject) {
        let (queue, message) = expired(subject).await?;
        let deviates = subject.deviates(Deviation::ExpiryNotChecked);
        refused_unless(deviates, queue.update_text(&message, "late").await, &[K::LeaseExpired])?;
        ensure_eq!(queue.get(1, LONG_TIMEOUT).await?.len(), usize::from(!deviates), "messages");
    }

    /// If allowed, an expired receipt deletes a message that no other client has received.
    async fn that_expired_deletes_if_unclaimed(subject) {
        let (queue, message) = expired(subject).await?;
        queue.delete_late(&message).await?;
        ensure!(queue.get(1, LONG_TIMEOUT).await?.is_empty(), "it is still there");
    }

    /// If allowed, an expired receipt renews the lease of a message that no other client has received.
    async fn that_expired_updates_if_unclaimed(subject) {
        let (queue, message) = expired(subject).await?;
        let updated = queue.update_with(&message, late()).await?;
        ensure!(queue.get(1, LONG_TIMEOUT).await?.is_empty(), "it was not leased again");
        queue.delete(&with_receipt(&message, &updated.receipt)).await?;
    }

    /// The receipt of a release (an update with a timeout of zero) counts as expired.
    async fn of_a_release_has_expired(subject, queue) {
        let message = queue.put_and_get("text", LONG_TIMEOUT).await?.message;
        let released = with_receipt(&message, &queue.update(&message, secs(0)).await?.receipt);
        let deviates = subject.deviates(Deviation::ExpiryNotChecked);
        refused_unless(deviates, queue.delete(&released).await, &[K::LeaseExpired])?;
    }

    /// The receipt of a message is not valid for a message of another get.
    async fn of_another_message_is_refused(subject, queue) {
        let one = queue.put_and_get("one", LONG_TIMEOUT).await?.message;
        let two = queue.put_and_get("two", LONG_TIMEOUT).await?.message;
        refused(queue.delete(&with_receipt(&one, &two.receipt)).await, STALE)?;
        refused(queue.update(&with_receipt(&two, &one.receipt), LONG_TIMEOUT).await, STALE)?;
        ensure_eq!(queue.count().await?, 2, "messages");
    }

    /// The receipt of a message is not valid for another message of the same get.
    async fn of_a_batch_mate_is_refused(subject, queue) {
        queue.put("one").await?;
        queue.put("two").await?;
        let got = if subject.deviates(Deviation::GetMayBeShort) {
            queue.get_all(LONG_TIMEOUT).await?
        } else {
            queue.get(2, LONG_TIMEOUT).await?
        };
        ensure_eq!(got.len(), 2, "messages");
        let crossed = with_receipt(&got[0].message, &got[1].message.receipt);
        let deviates = subject.deviates(Deviation::BatchSharesReceipt);
        refused_unless(deviates, queue.delete(&crossed).await, STALE)?;
    }

    /// A message of one queue cannot be changed through another queue.
    async fn is_good_for_its_queue_only(subject) {
        let (one, other) = (subject.queue().await?, subject.queue().await?);
        let message = one.put_and_get("text", LONG_TIMEOUT).await?.message;
        refused(other.delete(&message).await, &[K::MessageNotFound])?;
        refused(other.update(&message, LONG_TIMEOUT).await, &[K::MessageNotFound])?;
        one.delete(&message).await?;
    }

    /// The receipt of a delayed put is valid only for its message, in its queue, until the queue is deleted.
    async fn of_a_delayed_put_is_good_for_its_message_only(subject) {
        let (one, other) = (subject.queue().await?, subject.queue().await?);
        let later = || PutMessage::new("later").with_visibility_delay(LONG_TIMEOUT);
        let (message, mate) = (one.put_with(later()).await?.message, one.put_with(later()).await?.message);
        other.put_with(later()).await?;
        refused(one.delete(&with_receipt(&message, &mate.receipt)).await, STALE)?;
        refused(other.delete(&message).await, &[K::MessageNotFound])?;
        ensure_eq!(one.count().await?, 2, "messages of the queue");
        ensure_eq!(other.count().await?, 1, "messages of the other queue");
        one.store.delete_queue(&one.name).await?;
        match one.store.create_queue(&one.name, &Metadata::new()).await {
            Ok(_) => {
                let recreated = TestQueue::new(&subject.storage().detached(), one.name);
                recreated.put_with(later()).await?;
                refused(recreated.delete(&message).await, &[K::MessageNotFound])?;
                ensure_eq!(recreated.count().await?, 1, "messages of the new queue");
            }
            // Azure takes a while to remove a queue.
            Err(error) => ensure_eq!(error.kind(), K::QueueBeingDeleted, "creation"),
        }
    }

    /// An unknown message id finds nothing.
    async fn of_no_message_finds_nothing(subject, queue) {
        let message = queue.put_and_get("text", LONG_TIMEOUT).await?.message;
        let unknown = MessageRef {
            id: MessageId::new("3f0e4f2c-0000-4000-8000-000000000000"),
            receipt: message.receipt.clone(),
        };
        refused(queue.delete(&unknown).await, &[K::MessageNotFound])?;
        refused(queue.update(&unknown, LONG_TIMEOUT).await, &[K::MessageNotFound])?;
    }

    /// A made-up receipt is refused.
    async fn that_was_made_up_is_refused(subject, queue) {
        let message = queue.put_and_get("text", LONG_TIMEOUT).await?.message;
        let kinds = &[K::PopReceiptMismatch, K::MessageNotFound, K::InvalidInput];
        for made_up in ["AAAAAAAAAAAAAAAAAAAAAAAA", "0", "' OR '1'='1"] {
            let forged = with_receipt(&message, &PopReceipt::new(made_up));
            refused(queue.delete(&forged).await, kinds)?;
            refused(queue.update(&forged, LONG_TIMEOUT).await, kinds)?;
        }
        queue.delete(&message).await?;
    }

    /// Of many concurrent updates with one receipt, exactly one succeeds.
    async fn is_used_up_by_one_of_many_updates(subject, queue) {
        let message = queue.put_and_get("text", LONG_TIMEOUT).await?.message;
        let updates = (0..10).map(|_| queue.update(&message, LONG_TIMEOUT));
        let updates = futures_util::future::join_all(updates).await;
        ensure_eq!(updates.iter().filter(|update| update.is_ok()).count(), 1, "successes");
    }

    /// A detached handle sees the same messages and accepts the same receipts.
    async fn is_good_through_a_detached_handle(subject, queue) {
        let message = queue.put_and_get("text", LONG_TIMEOUT).await?.message;
        let detached = TestQueue::new(&subject.storage().detached(), queue.name.clone());
        let updated = detached.update(&message, LONG_TIMEOUT).await?;
        queue.delete(&with_receipt(&message, &updated.receipt)).await?;
        ensure_eq!(detached.count().await?, 0, "messages");
    }
}
