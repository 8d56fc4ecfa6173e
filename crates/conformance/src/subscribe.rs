//! Promises about subscriptions: a caller that waits for a message does not miss its arrival.

use std::time::Duration;

use crate::prelude::*;
use jobqueue::storage::Subscription;

fn subscription(queue: &TestQueue) -> Result<Subscription, Broken> {
    queue.store.subscribe(&queue.name).ok_or_else(|| Broken::new("the storage announces no messages"))
}

pub(crate) async fn arrives(subscription: &mut Subscription) -> Result<(), Broken> {
    // The timeout is generous, because another process may send the notification. A good notifier takes
    // microseconds.
    let wait = tokio::time::timeout(Duration::from_secs(10), subscription.wait()).await;
    wait.map_err(|_| Broken::new("no notification came"))
}

/// Returns a subscription without pending notifications. A storage may notify a new subscription once without
/// a cause, which would hide a missing notification later.
pub(crate) async fn quiet_subscription(queue: &TestQueue) -> Result<Subscription, Broken> {
    let mut subscription = subscription(queue)?;
    queue.put_and_get("before", LONG_TIMEOUT).await?;
    arrives(&mut subscription).await?;
    drain(&mut subscription).await;
    Ok(subscription)
}

pub(crate) async fn drain(subscription: &mut Subscription) {
    while tokio::time::timeout(Duration::from_millis(200), subscription.wait()).await.is_ok() {}
}

promises! { "subscriptions" if |storage| storage.queues().powers().arrivals.is_some();
    /// A put notifies the subscribers of the queue.
    async fn notify_of_a_put(subject, queue) {
        let mut subscription = quiet_subscription(&queue).await?;
        let (notified, put) = futures_util::join!(arrives(&mut subscription), queue.put("text"));
        put?;
        notified?;
    }

    /// A put before the wait is remembered.
    async fn are_remembered(subject, queue) {
        let mut subscription = quiet_subscription(&queue).await?;
        queue.put("text").await?;
        arrives(&mut subscription).await?;
    }

    /// A put of several messages at once notifies the subscribers.
    async fn notify_of_a_batch(subject, queue) {
        let mut subscription = quiet_subscription(&queue).await?;
        queue.store.put_all(&queue.name, vec![PutMessage::new("text"); 3].into()).await;
        arrives(&mut subscription).await?;
    }

    /// A release (an update to zero) notifies the subscribers.
    async fn notify_of_a_release(subject, queue) {
        let message = queue.put_and_get("text", LONG_TIMEOUT).await?.message;
        let mut subscription = quiet_subscription(&queue).await?;
        queue.update(&message, secs(0)).await?;
        arrives(&mut subscription).await?;
    }

    /// A subscription may begin before the queue exists.
    async fn notify_in_a_queue_made_later(subject, queue: missing_queue) {
        let mut subscription = subscription(&queue)?;
        queue.store.create_queue(&queue.name, &Default::default()).await?;
        drain(&mut subscription).await;
        queue.put("text").await?;
        arrives(&mut subscription).await?;
    }

    /// A put notifies all subscribers.
    async fn notify_every_subscriber(subject, queue) {
        let mut both = [subscription(&queue)?, quiet_subscription(&queue).await?];
        drain(&mut both[0]).await;
        queue.put("text").await?;
        for mut subscription in both {
            arrives(&mut subscription).await?;
        }
    }

    /// A cancelled wait loses no notification.
    async fn survive_a_wait_given_up(subject, queue) {
        let mut subscription = quiet_subscription(&queue).await?;
        let given_up = tokio::time::timeout(Duration::ZERO, subscription.wait()).await;
        drop(given_up);
        queue.put("text").await?;
        arrives(&mut subscription).await?;
    }
}
