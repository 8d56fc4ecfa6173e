//! Promises about changing leased messages.

use crate::prelude::*;

promises! { "update";
    /// An update returns a new, valid receipt.
    async fn gives_a_new_receipt(subject, queue) {
        let old = queue.put_and_get("text", LONG_TIMEOUT).await?.message;
        let updated = queue.update(&old, LONG_TIMEOUT).await?;
        ensure!(updated.receipt != old.receipt, "the old receipt again");
        queue.delete(&with_receipt(&old, &updated.receipt)).await?;
    }

    /// An update invalidates the former receipt.
    async fn ends_the_old_receipt(subject, queue) {
        let old = queue.put_and_get("text", LONG_TIMEOUT).await?.message;
        let new = with_receipt(&old, &queue.update(&old, LONG_TIMEOUT).await?.receipt);
        refused(queue.update(&old, LONG_TIMEOUT).await, STALE)?;
        refused(queue.delete(&old).await, STALE)?;
        queue.delete(&new).await?;
    }

    /// An update restarts the visibility timeout.
    async fn extends_the_lease(subject, queue) {
        let old = queue.put_and_get("text", secs(2)).await?.message;
        let new = with_receipt(&old, &queue.update(&old, LONG_TIMEOUT).await?.receipt);
        subject.advance(secs(2)).await;
        ensure!(queue.get(1, LONG_TIMEOUT).await?.is_empty(), "it became visible all the same");
        queue.delete(&new).await?;
    }

    /// An update can shorten the visibility timeout.
    async fn shortens_the_lease(subject, queue) {
        let message = queue.put_and_get("text", LONG_TIMEOUT).await?.message;
        queue.update(&message, secs(1)).await?;
        subject.advance(secs(1)).await;
        ensure_eq!(queue.get_one(LONG_TIMEOUT).await?.message.id, message.id, "id");
    }

    /// An update with a timeout of zero makes the message visible at once.
    async fn to_zero_releases_at_once(subject, queue) {
        let message = queue.put_and_get("text", LONG_TIMEOUT).await?.message;
        queue.update(&message, secs(0)).await?;
        ensure_eq!(queue.get_one(LONG_TIMEOUT).await?.message.id, message.id, "id");
    }

    /// An update with text replaces the text.
    async fn replaces_the_text(subject, queue) {
        let old = queue.put_and_get("first", LONG_TIMEOUT).await?.message;
        let new = with_receipt(&old, &queue.update_text(&old, "second").await?.receipt);
        queue.update(&new, secs(0)).await?;
        ensure_eq!(queue.get_one(LONG_TIMEOUT).await?.text.as_deref(), Ok("second"), "text");
    }

    /// An update without text keeps the text.
    async fn keeps_the_text(subject, queue) {
        let message = queue.put_and_get("first", LONG_TIMEOUT).await?.message;
        queue.update(&message, secs(0)).await?;
        ensure_eq!(queue.get_one(LONG_TIMEOUT).await?.text.as_deref(), Ok("first"), "text");
    }

    /// An update does not raise the dequeue count.
    async fn does_not_count(subject, queue) {
        let message = queue.put_and_get("text", LONG_TIMEOUT).await?.message;
        queue.update(&message, secs(0)).await?;
        ensure_eq!(queue.peek_one().await?.dequeue_count, 1, "dequeue count");
    }

    /// An update does not lengthen the time to live, nor change the time of insertion.
    async fn does_not_prolong_life(subject, queue) {
        let put = queue.put_with(PutMessage::new("text").with_ttl(Some(secs(1000)))).await?;
        let leased = queue.get_one(LONG_TIMEOUT).await?;
        subject.advance(secs(1)).await;
        queue.update(&leased.message, secs(0)).await?;
        let got = queue.get_one(LONG_TIMEOUT).await?;
        ensure_eq!(got.inserted, leased.inserted, "insertion");
        ensure_eq!(got.expires, put.expires, "expiry");
    }

    /// The answer contains the time at which the message becomes visible.
    async fn tells_the_time_of_return(subject, queue) {
        let put = queue.put("text").await?;
        let updated = queue.update(&put.message, secs(500)).await?;
        ensure!(near(updated.next_visible, put.inserted + secs(500), subject.tolerance()), "put: {updated:?}");
        let leased = queue.put_and_get("text", LONG_TIMEOUT).await?;
        let updated = queue.update(&leased.message, secs(500)).await?;
        ensure!(near(updated.next_visible, leased.inserted + secs(500), subject.tolerance()), "leased: {updated:?}");
    }

    /// A timeout of 7 days and a text of 65,536 bytes are accepted.
    async fn takes_7_days_and_64_kib(subject, queue) {
        let message = queue.put_and_get("text", LONG_TIMEOUT).await?.message;
        let greatest = UpdateMessage::new(MAX_VISIBILITY).with_text("x".repeat(65_536));
        queue.update_with(&message, greatest).await?;
    }

    /// A timeout that ends after the message expires is refused.
    async fn does_not_hide_beyond_expiry(subject, queue) {
        let living = || PutMessage::new("text").with_ttl(Some(secs(100)));
        queue.put_with(living()).await?;
        let leased = queue.get_one(LONG_TIMEOUT).await?.message;
        let put = queue.put_with(living()).await?.message;
        for message in [put, leased] {
            let deviates = subject.deviates(Deviation::VisibilityBeyondExpiryAccepted);
            refused_unless(deviates, queue.update(&message, secs(200)).await, &[K::InvalidInput])?;
        }
    }

    /// A timeout that ends when the message expires, or earlier, is accepted.
    async fn may_hide_until_expiry(subject, queue) {
        let put = queue.put_with(PutMessage::new("text").with_ttl(Some(secs(100)))).await?;
        queue.update(&put.message, secs(90)).await?;
    }

    /// A refused update, for its timeout or its text, leaves text, timeout and receipt as they were.
    async fn that_is_refused_changes_nothing(subject, queue) {
        let message = queue.put_and_get("first", LONG_TIMEOUT).await?.message;
        refused(queue.update_text(&message, &"x".repeat(65_537)).await, &[K::TooLarge])?;
        refused(queue.update(&message, MAX_VISIBILITY + secs(1)).await, &[K::InvalidInput])?;
        ensure!(queue.get(1, LONG_TIMEOUT).await?.is_empty(), "it became visible");
        queue.update(&message, secs(0)).await?;
        ensure_eq!(queue.get_one(LONG_TIMEOUT).await?.text.as_deref(), Ok("first"), "text");
    }

    /// A text with characters that XML 1.0 cannot carry is refused.
    async fn refuses_illegal_characters(subject, queue) {
        let message = queue.put_and_get("first", LONG_TIMEOUT).await?.message;
        let deviates = subject.deviates(Deviation::IllegalCharactersAccepted);
        refused_unless(deviates, queue.update_text(&message, "a\u{1}").await, &[K::InvalidInput])?;
    }

    /// A deleted message cannot be changed.
    async fn of_a_deleted_message_finds_nothing(subject, queue) {
        let message = queue.put_and_get("text", LONG_TIMEOUT).await?.message;
        queue.delete(&message).await?;
        refused(queue.update(&message, LONG_TIMEOUT).await, &[K::MessageNotFound])?;
    }

    /// A chain of updates keeps a message leased, with a new receipt after each.
    async fn can_be_repeated(subject, queue) {
        let mut message = queue.put_and_get("0", LONG_TIMEOUT).await?.message;
        for n in 1..=10 {
            let updated = queue.update_text(&message, &n.to_string()).await?;
            message = with_receipt(&message, &updated.receipt);
        }
        queue.update(&message, secs(0)).await?;
        ensure_eq!(queue.get_one(LONG_TIMEOUT).await?.text.as_deref(), Ok("10"), "text");
    }
}
