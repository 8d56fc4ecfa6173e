//! Promises about deleting messages.

use crate::prelude::*;

promises! { "delete";
    /// A deleted message is never received again.
    async fn removes_the_message(subject, queue) {
        let message = queue.put_and_get("text", secs(1)).await?.message;
        queue.delete(&message).await?;
        subject.advance(secs(1)).await;
        ensure!(queue.get(1, LONG_TIMEOUT).await?.is_empty(), "it came back");
        ensure_eq!(queue.count().await?, 0, "messages");
    }

    /// Deleting a message leaves all other messages.
    async fn removes_one_message(subject, queue) {
        let one = queue.put_and_get("one", LONG_TIMEOUT).await?.message;
        let two = queue.put("two").await?.message;
        queue.delete(&one).await?;
        ensure_eq!(queue.get_one(LONG_TIMEOUT).await?.message.id, two.id, "the remaining message");
    }

    /// Deleting a message twice finds nothing the second time.
    async fn twice_finds_nothing(subject, queue) {
        let message = queue.put_and_get("text", LONG_TIMEOUT).await?.message;
        queue.delete(&message).await?;
        refused(queue.delete(&message).await, &[K::MessageNotFound])?;
        refused(queue.delete_late(&message).await, &[K::MessageNotFound])?;
    }

    /// Of many concurrent deletions of a message, exactly one succeeds.
    async fn by_many_at_once_succeeds_once(subject, queue) {
        let message = queue.put_and_get("text", LONG_TIMEOUT).await?.message;
        let deletions = join_all((0..10).map(|_| queue.delete(&message))).await;
        ensure_eq!(deletions.iter().filter(|deletion| deletion.is_ok()).count(), 1, "successes");
    }

    /// A list of deletions is answered in its order, and a stale receipt does not stop the others.
    async fn all_answers_in_order(subject, queue) {
        let mut messages = Vec::new();
        for text in ["one", "two", "three"] {
            messages.push(queue.put_and_get(text, LONG_TIMEOUT).await?.message);
        }
        queue.delete(&messages[0]).await?;
        let answers = queue.store.delete_all(&queue.name, messages, ExpiredReceipt::Refuse).await;
        let fine: Vec<_> = answers.iter().map(Result::is_ok).collect();
        ensure_eq!(fine, [false, true, true], "answers");
        ensure_eq!(queue.count().await?, 0, "messages");
    }

    /// In a list of deletions, a former holder's receipt is refused, even if expired receipts are allowed.
    async fn all_refuses_a_predecessor(subject) {
        for expired in [ExpiredReceipt::Refuse, ExpiredReceipt::Allow] {
            let queue = subject.queue().await?;
            let stale = queue.put_and_get("claimed", secs(1)).await?.message;
            subject.advance(secs(1)).await;
            let successor = queue.get_one(LONG_TIMEOUT).await?.message;
            let own = queue.put_and_get("own", LONG_TIMEOUT).await?.message;
            let mut answers = queue.store.delete_all(&queue.name, vec![stale, own], expired).await;
            ensure_eq!(answers.len(), 2, "answers");
            refused(answers.remove(0), STALE)?;
            answers.remove(0)?;
            queue.delete(&successor).await?;
        }
    }

    /// If a list of deletions has two receipts of one message, only the newest is accepted.
    async fn all_accepts_the_newest_receipt_only(subject) {
        for former_first in [true, false] {
            let queue = subject.queue().await?;
            let former = queue.put_and_get("text", secs(1)).await?.message;
            subject.advance(secs(1)).await;
            let newest = queue.get_one(LONG_TIMEOUT).await?.message;
            let mut messages = vec![newest, former];
            if former_first {
                messages.reverse();
            }
            let mut answers =
                queue.store.delete_all(&queue.name, messages, ExpiredReceipt::Allow).await;
            ensure_eq!(answers.len(), 2, "answers");
            refused(answers.remove(usize::from(!former_first)), STALE)?;
            answers.remove(0)?;
            ensure_eq!(queue.count().await?, 0, "messages");
        }
    }

    /// In a list of deletions, a message whose lease has expired is refused, and stays.
    async fn all_refuses_an_expired_one(subject, queue) {
        let late = queue.put_and_get("late", secs(1)).await?.message;
        subject.advance(secs(1)).await;
        let deviates = subject.deviates(Deviation::ExpiryNotChecked);
        let mut answers = queue.store.delete_all(&queue.name, vec![late], ExpiredReceipt::Refuse).await;
        ensure_eq!(answers.len(), 1, "answers");
        refused_unless(deviates, answers.remove(0), &[K::LeaseExpired])?;
        ensure_eq!(queue.get(1, LONG_TIMEOUT).await?.len(), usize::from(!deviates), "messages");
    }

    /// A list of deletions may be long.
    async fn all_removes_many(subject, queue) {
        for put in queue.store.put_all(&queue.name, vec![PutMessage::new("text"); 40].into()).await {
            put?;
        }
        let messages: Vec<_> = queue.get_all(LONG_TIMEOUT).await?.into_iter().map(|leased| leased.message).collect();
        ensure_eq!(messages.len(), 40, "messages");
        for answer in queue.store.delete_all(&queue.name, messages, ExpiredReceipt::Refuse).await {
            answer?;
        }
        ensure_eq!(queue.count().await?, 0, "messages");
    }

    /// An empty list of deletions does nothing.
    async fn all_of_nothing_does_nothing(subject, queue) {
        queue.put("kept").await?;
        let answers = queue.store.delete_all(&queue.name, Vec::new(), ExpiredReceipt::Refuse).await;
        ensure!(answers.is_empty(), "answers to nothing");
        ensure_eq!(queue.count().await?, 1, "messages");
    }
}
