//! Keeps the service's time known.

use std::sync::Arc;
use std::time::SystemTime;

use tokio::time::timeout;

use super::super::clock::ClockReading;
use super::super::place::Place;
use super::ServiceBusQueues;
use super::requires_session::DESCRIBE_TIMEOUT;
use jobqueue_storage::QueueName;

pub(super) const KEY: &str = "";

impl ServiceBusQueues {
    /// Returns the service's time, after [`read_clock`](Self::read_clock).
    pub(super) async fn now(&self, queue: &QueueName) -> SystemTime {
        self.read_clock(queue).await;
        self.links.clock.now()
    }

    /// Begins to read the service's time if the last answer with it is too long ago. Waits for the answer
    /// only if this process's clock was set since, and for two seconds at most.
    pub(super) async fn read_clock(&self, queue: &QueueName) {
        if !self.entities.shows_time() {
            return;
        }
        let read = || {
            let (entities, clock) = (Arc::clone(&self.entities), Arc::clone(&self.links.clock));
            let queue = Place::of(queue).queue.to_owned();
            async move {
                // Another request may have shown it.
                if !clock.is_known() {
                    drop(entities.describe(&queue).await);
                }
                Ok(ClockReading::ended(clock))
            }
        };
        let reading = self.clock_readings.get(self.links.runtime(), KEY, read);
        if timeout(DESCRIBE_TIMEOUT, reading).await.is_err() {
            // The attempt continues, and no later call waits for it.
            self.clock_readings.set(KEY, ClockReading::ended(Arc::clone(&self.links.clock)));
        }
    }
}
