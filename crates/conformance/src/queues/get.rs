//! Promises about getting messages.

use std::collections::HashSet;

use crate::prelude::*;

async fn next_comes_in_100_seconds(subject: &Subject, queue: &TestQueue) -> Result<(), Broken> {
    let tolerance = subject.tolerance();
    let mut received = queue.store.get(&queue.name, GetMessages::new(1, LONG_TIMEOUT)).await?;
    // Some gets may not search as far as that message, and then return an earlier time.
    for _ in 0..100 {
        if received.next_visible_in.is_none_or(|wait| wait + tolerance >= secs(100)) {
            break;
        }
        received = queue.store.get(&queue.name, GetMessages::new(1, LONG_TIMEOUT)).await?;
    }
    ensure!(received.messages.is_empty(), "it is visible");
    match received.next_visible_in {
        None => {
            ensure!(subject.deviates(Deviation::NextVisibleUnknown), "the answer does not contain the time")
        }
        Some(wait) => {
            ensure!(
                !subject.deviates(Deviation::NextVisibleUnknown),
                "the answer contains the time; remove the deviation from its list"
            );
            ensure!(wait <= secs(100) && wait + tolerance >= secs(100), "{wait:?} instead of 100 s");
        }
    }
    Ok(())
}

promises! { "get";
    /// A get returns at most as many messages as requested.
    async fn returns_no_more_than_asked_for(subject, queue) {
        for _ in 0..5 {
            queue.put("text").await?;
        }
        let got = queue.get(2, LONG_TIMEOUT).await?.len();
        ensure!(got <= 2, "more than 2");
        ensure!(got == 2 || subject.deviates(Deviation::GetMayBeShort), "fewer than 2");
        ensure_eq!(queue.get_all(LONG_TIMEOUT).await?.len(), 5 - got, "the rest");
    }

    /// All messages are received once, with as many gets as necessary.
    async fn returns_each_message_once(subject, queue) {
        let messages = (0..50).map(|n| PutMessage::new(n.to_string())).collect();
        for put in queue.store.put_all(&queue.name, messages).await {
            put?;
        }
        let got = queue.get_all(LONG_TIMEOUT).await?;
        ensure_eq!(got.len(), 50, "messages");
        let ids: HashSet<_> = got.into_iter().map(|message| message.message.id).collect();
        ensure_eq!(ids.len(), 50, "different messages");
    }

    /// Of many concurrent gets, no two lease the same message.
    async fn by_many_at_once_shares_no_message(subject, queue) {
        let messages = (0..30).map(|n| PutMessage::new(n.to_string())).collect();
        for put in queue.store.put_all(&queue.name, messages).await {
            put?;
        }
        let mut ids = HashSet::new();
        for got in join_all((0..20).map(|_| queue.get(3, LONG_TIMEOUT))).await {
            for message in got? {
                ensure!(ids.insert(message.message.id), "one message was leased twice");
                ensure_eq!(message.dequeue_count, 1, "dequeue count");
            }
        }
        ensure_eq!(ids.len() + queue.get_all(LONG_TIMEOUT).await?.len(), 30, "messages");
    }

    /// A get of no messages, or of more than 32, is refused.
    async fn takes_counts_from_1_to_32(subject, queue) {
        queue.put("text").await?;
        for count in [0, 33] {
            refused(queue.get(count, LONG_TIMEOUT).await, &[K::InvalidInput])?;
        }
        ensure_eq!(queue.get(32, LONG_TIMEOUT).await?.len(), 1, "messages");
    }

    /// A visibility timeout of zero, or of more than 7 days, is refused.
    async fn takes_timeouts_up_to_7_days(subject, queue) {
        queue.put("text").await?;
        for visibility in [secs(0), MAX_VISIBILITY + secs(1)] {
            refused(queue.get(1, visibility).await, &[K::InvalidInput])?;
        }
        queue.get_one(MAX_VISIBILITY).await?;
    }

    /// A leased message is invisible to gets and peeks.
    async fn hides_the_message(subject, queue) {
        queue.put_and_get("text", LONG_TIMEOUT).await?;
        ensure!(queue.get(1, LONG_TIMEOUT).await?.is_empty(), "leased twice");
        ensure!(queue.peek(1).await?.is_empty(), "visible to a peek");
    }

    /// Each get raises the dequeue count by one.
    async fn raises_the_dequeue_count(subject, queue) {
        queue.put("text").await?;
        for count in 1..=5 {
            let got = queue.get_one(LONG_TIMEOUT).await?;
            ensure_eq!(got.dequeue_count, count, "dequeue count");
            queue.update(&got.message, secs(0)).await?;
        }
    }

    /// Each get of a message returns a receipt that was never returned before.
    async fn gives_a_new_receipt(subject, queue) {
        let put = queue.put("text").await?.message;
        let first = queue.get_one(secs(1)).await?.message;
        subject.advance(secs(1)).await;
        let second = queue.get_one(LONG_TIMEOUT).await?.message;
        ensure!(put.receipt != first.receipt, "the put's receipt again");
        ensure!(first.receipt != second.receipt, "the first get's receipt again");
        ensure!(put.receipt != second.receipt, "the put's receipt again");
    }

    /// Each message of a get has its own receipt.
    async fn gives_each_message_a_receipt_of_its_own(subject, queue) {
        for _ in 0..3 {
            queue.put("text").await?;
        }
        let got = if subject.deviates(Deviation::GetMayBeShort) {
            queue.get_all(LONG_TIMEOUT).await?
        } else {
            queue.get(3, LONG_TIMEOUT).await?
        };
        ensure_eq!(got.len(), 3, "messages");
        let shared = got[0].message.receipt == got[1].message.receipt;
        ensure_eq!(shared, subject.deviates(Deviation::BatchSharesReceipt), "a shared receipt");
    }

    /// The answer contains the time at which the message becomes visible again.
    async fn tells_the_time_of_return(subject, queue) {
        queue.put("text").await?;
        let got = queue.get_one(secs(500)).await?;
        ensure!(near(got.next_visible, got.inserted + secs(500), subject.tolerance()), "{got:?}");
    }

    /// The answer contains the time until the next message becomes visible.
    async fn tells_when_the_next_becomes_visible(subject, queue) {
        queue.put_with(PutMessage::new("second").with_visibility_delay(secs(200))).await?;
        queue.put_with(PutMessage::new("first").with_visibility_delay(secs(100))).await?;
        next_comes_in_100_seconds(subject, &queue).await?;
    }

    /// The answer contains the time until a leased message becomes visible, if no other does before.
    async fn tells_when_a_leased_message_becomes_visible(subject, queue) {
        queue.put_and_get("leased", secs(100)).await?;
        next_comes_in_100_seconds(subject, &queue).await?;
    }

    /// An empty queue returns no messages, and no time of a next message.
    async fn of_an_empty_queue_is_empty(subject, queue) {
        let received = queue.store.get(&queue.name, GetMessages::new(32, LONG_TIMEOUT)).await?;
        ensure!(received.messages.is_empty(), "messages out of nothing");
        ensure_eq!(received.next_visible_in, None, "the next");
    }

    /// After its timeout, an undeleted message is received again, unchanged, which counts as a dequeue.
    async fn counts_after_a_timeout(subject, queue) {
        let first = queue.put_and_get("text", secs(1)).await?;
        subject.advance(secs(1)).await;
        let second = queue.get_one(LONG_TIMEOUT).await?;
        ensure_eq!(second.dequeue_count, 2, "dequeue count");
        ensure_eq!(second.message.id, first.message.id, "id");
        ensure_eq!(second.text, first.text, "text");
        ensure_eq!(second.inserted, first.inserted, "insertion");
    }
}
