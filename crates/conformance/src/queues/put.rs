//! Promises about putting messages.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::FutureExt;

use crate::prelude::*;

promises! { "put";
    /// A message is received with the id and the text of its put, as its first dequeue.
    async fn delivers(subject, queue) {
        let put = queue.put("text").await?;
        let got = queue.get_one(LONG_TIMEOUT).await?;
        ensure_eq!(got.message.id, put.message.id, "id");
        ensure_eq!(got.text.as_deref(), Ok("text"), "text");
        ensure_eq!(got.dequeue_count, 1, "dequeue count");
    }

    /// Putting the same text twice makes two messages with different ids and receipts.
    async fn twice_makes_two_messages(subject, queue) {
        let (first, second) = (queue.put("same").await?.message, queue.put("same").await?.message);
        ensure!(first.id != second.id, "both messages have the same id");
        ensure!(first.receipt != second.receipt, "both messages have the same receipt");
        ensure_eq!(queue.get_all(LONG_TIMEOUT).await?.len(), 2, "messages");
    }

    /// The answer contains the times of insertion, visibility and expiry.
    async fn tells_the_times(subject, queue) {
        let message = PutMessage::new("text").with_visibility_delay(secs(100)).with_ttl(Some(secs(1000)));
        let put = queue.put_with(message).await?;
        let tolerance = subject.tolerance();
        ensure!(near(put.next_visible, put.inserted + secs(100), tolerance), "next visible: {put:?}");
        let Some(expires) = put.expires else {
            return Err(Broken::new("no expiry"));
        };
        ensure!(near(expires, put.inserted + secs(1000), tolerance), "expires: {put:?}");
    }

    /// The time in the properties of a queue comes from the clock that stamps messages.
    async fn is_stamped_by_the_clock_of_the_properties(subject, queue) {
        let inserted = queue.put("text").await?.inserted;
        let properties = queue.store.queue_properties(&queue.name).await?;
        // Callers ask a storage that returns no time for the time of a listing instead.
        if let Some(now) = properties.now {
            ensure!(near(now, inserted, subject.tolerance()), "{now:?} after an insertion at {inserted:?}");
        }
    }

    /// A message with a delay is invisible until the delay is over.
    async fn with_a_delay_hides_the_message(subject, queue) {
        queue.put_with(PutMessage::new("later").with_visibility_delay(secs(2))).await?;
        ensure!(queue.get(1, LONG_TIMEOUT).await?.is_empty(), "got before its time");
        subject.advance(secs(2)).await;
        ensure_eq!(queue.get_one(LONG_TIMEOUT).await?.dequeue_count, 1, "dequeue count");
    }

    /// A fraction of a second in a delay is kept to the millisecond, refused or rounded up, but never cut.
    async fn never_cuts_a_delay(subject, queue) {
        let delay = Duration::from_millis(1500);
        let whole = subject.deviates(Deviation::WholeSeconds);
        match queue.put_with(PutMessage::new("a").with_visibility_delay(delay)).await {
            Ok(put) if whole => ensure!(put.next_visible >= put.inserted + secs(2), "cut: {put:?}"),
            Ok(put) => ensure!(
                near(put.next_visible, put.inserted + delay, Duration::from_millis(1)),
                "not kept: {put:?}"
            ),
            Err(error) => {
                ensure!(whole, "refused: {error}");
                ensure_eq!(error.kind(), K::InvalidInput, "refusal");
            }
        }
    }

    /// A delay of 7 days is accepted; a longer delay is refused, and the refused put stores nothing.
    async fn takes_delays_up_to_7_days(subject, queue) {
        let longer = PutMessage::new("text").with_visibility_delay(MAX_VISIBILITY + secs(1));
        refused(queue.put_with(longer).await, &[K::InvalidInput])?;
        ensure_eq!(queue.count().await?, 0, "messages");
        queue.put_with(PutMessage::new("text").with_visibility_delay(MAX_VISIBILITY)).await?;
    }

    /// The receipt of a put deletes the message without a get.
    async fn receipt_deletes(subject, queue) {
        let message = queue.put("text").await?.message;
        queue.delete(&message).await?;
        ensure!(queue.get(1, LONG_TIMEOUT).await?.is_empty(), "it is still there");
    }

    /// The receipt of a put changes the message without a get, and the change counts as no dequeue.
    async fn receipt_updates(subject, queue) {
        let message = queue.put("text").await?.message;
        queue.update(&message, secs(0)).await?;
        ensure_eq!(queue.get_one(LONG_TIMEOUT).await?.dequeue_count, 1, "dequeue count");
    }

    /// The receipt of a put with a delay is valid during the delay and after it.
    async fn receipt_outlives_the_delay(subject, queue) {
        let delayed = PutMessage::new("text").with_visibility_delay(secs(1));
        let (one, two) = (queue.put_with(delayed.clone()).await?, queue.put_with(delayed).await?);
        queue.delete(&one.message).await?;
        subject.advance(secs(2)).await;
        queue.delete(&two.message).await?;
    }

    /// The receipt of a put is invalid after the first get.
    async fn receipt_ends_with_the_first_get(subject, queue) {
        let put = queue.put("text").await?.message;
        let got = queue.get_one(LONG_TIMEOUT).await?.message;
        refused(queue.delete(&put).await, STALE)?;
        refused(queue.update(&put, LONG_TIMEOUT).await, STALE)?;
        queue.delete(&got).await?;
    }

    /// A list of puts is answered in its order, with a separate message for each.
    async fn all_answers_in_order(subject, queue) {
        let messages = (0..40).map(|n| PutMessage::new(format!("text {n}"))).collect();
        let puts = queue.store.put_all(&queue.name, messages).await;
        let puts: Vec<_> = puts.into_iter().collect::<Result<_, _>>()?;
        let got = queue.get_all(LONG_TIMEOUT).await?;
        ensure_eq!(got.len(), 40, "messages");
        for message in got {
            let place = puts.iter().position(|put| put.message.id == message.message.id);
            let text = place.map(|place| format!("text {place}"));
            ensure_eq!(message.text.ok(), text, "text by place in the batch");
        }
    }

    /// Each message of a list of puts keeps its own delay and time to live.
    @slow
    async fn all_keeps_delays_and_lives(subject, queue) {
        let messages = [
            PutMessage::new("delayed").with_visibility_delay(secs(20)),
            PutMessage::new("short-lived").with_ttl(Some(secs(1))),
            PutMessage::new("plain"),
        ];
        for put in queue.store.put_all(&queue.name, messages.into()).await {
            put?;
        }
        subject.advance(secs(1)).await;
        let got = queue.get_all(LONG_TIMEOUT).await?;
        let texts: Vec<_> = got.iter().map(|leased| leased.text.as_deref().ok()).collect();
        ensure_eq!(texts, [Some("plain")], "visible after a second");
        queue.delete(&got[0].message).await?;
        subject.advance(secs(20)).await;
        ensure_eq!(queue.get_one(LONG_TIMEOUT).await?.text.as_deref(), Ok("delayed"), "visible after the delay");
    }

    /// An invalid message in a list of puts is refused, and the others are stored.
    async fn all_refuses_each_alone(subject, queue) {
        let bad = PutMessage::new("x".repeat(65_537));
        let puts = queue.store.put_all(&queue.name, [PutMessage::new("a"), bad, PutMessage::new("b")].into()).await;
        let fine: Vec<_> = puts.iter().map(Result::is_ok).collect();
        ensure_eq!(fine, [true, false, true], "answers");
        ensure_eq!(queue.count().await?, 2, "messages");
    }

    /// If lists are put as a whole, a list whose put is cancelled is stored completely or not at all.
    async fn all_is_whole_after_a_dropped_future(subject, queue) {
        if !queue.store.guarantees().puts_lists_whole {
            return Ok(());
        }
        for polls in 1..=5 {
            let messages = vec![PutMessage::new("text"); 20];
            let mut put = Box::pin(queue.store.put_all(&queue.name, messages.into()));
            for _ in 0..polls {
                if put.as_mut().now_or_never().is_some() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            drop(put);
            let count = queue.count().await?;
            ensure!(count % 20 == 0, "{count} messages of lists of 20");
        }
    }

    /// An empty list of puts does nothing.
    async fn all_of_nothing_does_nothing(subject, queue) {
        ensure!(queue.store.put_all(&queue.name, [].into()).await.is_empty(), "answers to nothing");
        ensure_eq!(queue.count().await?, 0, "messages");
    }

    /// Messages from many concurrent puts are all stored, each once.
    async fn by_many_at_once_stores_each(subject, queue) {
        let texts: HashSet<_> = (0..30).map(|n| format!("text {n}")).collect();
        let puts = texts.iter().map(|text| queue.put(text));
        for put in futures_util::future::join_all(puts).await {
            put?;
        }
        let got = queue.get_all(LONG_TIMEOUT).await?;
        ensure_eq!(got.len(), 30, "messages");
        let got: HashSet<_> = got.into_iter().filter_map(|message| message.text.ok()).collect();
        ensure_eq!(got, texts, "texts");
    }
}
