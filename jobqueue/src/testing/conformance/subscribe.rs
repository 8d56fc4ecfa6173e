//! The bell: nobody who waits for a message sleeps through its arrival.

use std::time::Duration;

use super::fixture::{LONG, secs};
use super::{Broken, Deviation, Subject};
use crate::name::QueueName;
use crate::storage::{PutMessage, QueueStore, Subscription};

/// The bell of a queue, or `None` where the storage is known to have none.
fn notifier(
    subject: &Subject,
    store: &dyn QueueStore,
    queue: &QueueName,
) -> Result<Option<Subscription>, Broken> {
    let subscribe = store.subscribe(queue);
    ensure_eq!(subscribe.is_none(), subject.deviates(Deviation::PollOnly), "having no bell");
    Ok(subscribe)
}

async fn rings(subscribe: &mut Subscription) -> Result<(), Broken> {
    // Generous, because a bell may be rung by another process; a good one rings in microseconds.
    let wait = tokio::time::timeout(Duration::from_secs(10), subscribe.wait()).await;
    wait.map_err(|_| Broken::new("the bell did not ring"))
}

promises! { "arrivals";
    /// A put rings the queue's bell.
    async fn ring_for_a_put(subject) {
        let queue = subject.queue().await?;
        if let Some(mut subscribe) = notifier(subject, &*queue.store, &queue.name)? {
            let (rang, put) = futures_util::join!(rings(&mut subscribe), queue.put("text"));
            put?;
            rang?;
        }
    }

    /// A put before the wait is remembered.
    async fn are_remembered(subject) {
        let queue = subject.queue().await?;
        if let Some(mut subscribe) = notifier(subject, &*queue.store, &queue.name)? {
            queue.put("text").await?;
            rings(&mut subscribe).await?;
        }
    }

    /// Several messages put together ring the bell.
    async fn ring_for_a_batch(subject) {
        let queue = subject.queue().await?;
        if let Some(mut subscribe) = notifier(subject, &*queue.store, &queue.name)? {
            queue.store.put_all(&queue.name, vec![PutMessage::new("text"); 3]).await;
            rings(&mut subscribe).await?;
        }
    }

    /// A release (an update to zero) rings the bell.
    async fn ring_for_a_release(subject) {
        let queue = subject.queue().await?;
        let message = queue.put_and_get("text", LONG).await?.message;
        if let Some(mut subscribe) = notifier(subject, &*queue.store, &queue.name)? {
            queue.update(&message, secs(0)).await?;
            rings(&mut subscribe).await?;
        }
    }

    /// A put with a delay rings the bell: whoever waits may wait for longer than the delay.
    async fn ring_for_a_delayed_put(subject) {
        let queue = subject.queue().await?;
        if let Some(mut subscribe) = notifier(subject, &*queue.store, &queue.name)? {
            let delayed = PutMessage::new("text").with_visibility_delay(secs(2));
            queue.store.put(&queue.name, delayed).await?;
            rings(&mut subscribe).await?;
        }
    }

    /// An update that shortens a lease rings the bell: whoever waits may wait for the lease's former end.
    async fn ring_for_a_release_with_a_delay(subject) {
        let queue = subject.queue().await?;
        let message = queue.put_and_get("text", LONG).await?.message;
        if let Some(mut subscribe) = notifier(subject, &*queue.store, &queue.name)? {
            queue.update(&message, secs(2)).await?;
            rings(&mut subscribe).await?;
        }
    }

    /// A bell can be heard before the queue exists.
    async fn ring_in_a_queue_made_later(subject) {
        let queue = subject.missing_queue()?;
        if let Some(mut subscribe) = notifier(subject, &*queue.store, &queue.name)? {
            queue.store.create_queue(&queue.name, &Default::default()).await?;
            queue.put("text").await?;
            rings(&mut subscribe).await?;
        }
    }

    /// All who wait hear the bell.
    async fn ring_for_everybody(subject) {
        let queue = subject.queue().await?;
        let first = notifier(subject, &*queue.store, &queue.name)?;
        let second = notifier(subject, &*queue.store, &queue.name)?;
        queue.put("text").await?;
        for mut subscribe in first.into_iter().chain(second) {
            rings(&mut subscribe).await?;
        }
    }

    /// A wait that is given up loses no ring.
    async fn survive_a_wait_given_up(subject) {
        let queue = subject.queue().await?;
        if let Some(mut subscribe) = notifier(subject, &*queue.store, &queue.name)? {
            let given_up = tokio::time::timeout(Duration::ZERO, subscribe.wait()).await;
            drop(given_up);
            queue.put("text").await?;
            rings(&mut subscribe).await?;
        }
    }
}
