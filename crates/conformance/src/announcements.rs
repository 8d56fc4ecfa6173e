//! Promises about storages that announce the messages of all processes, so that workers do not poll.

use crate::prelude::*;
use crate::subscribe::{arrives, quiet_subscription};

promises! { "announcements" if |storage| storage.queues().announces_all();
    /// A put with a delay notifies the subscribers, because they may be waiting for longer than the delay.
    async fn notify_of_a_delayed_put(subject, queue) {
        let mut subscription = quiet_subscription(&queue).await?;
        let delayed = PutMessage::new("text").with_visibility_delay(secs(60));
        queue.store.put(&queue.name, delayed).await?;
        arrives(&mut subscription).await?;
    }

    /// Shortening a lease notifies the subscribers, because they may be waiting for its former end.
    async fn notify_of_a_release_with_a_delay(subject, queue) {
        let message = queue.put_and_get("text", LONG_TIMEOUT).await?.message;
        let mut subscription = quiet_subscription(&queue).await?;
        queue.update(&message, secs(60)).await?;
        arrives(&mut subscription).await?;
    }
}
