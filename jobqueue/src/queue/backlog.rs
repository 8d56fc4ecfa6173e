//! The backlog of a queue, and producers that wait for it to shrink.

use std::time::Duration;

use super::queue_core::QueueCore;
use super::typed::Queue;
use crate::error::Error;
use crate::message::QueueMessage;
use crate::storage::MAX_MESSAGES;

/// The first pause between two readings of the length.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// The backlog of a queue: the two numbers for scaling workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backlog {
    /// The approximate number of messages, invisible ones included; never below the real number.
    pub length: u64,
    /// The age of the oldest of the next 32 visible messages, by this process's clock; `None` if none is visible. No
    /// queue tells which of all its messages is the oldest. Messages come roughly in order, so the next ones are
    /// among the oldest.
    pub oldest: Option<Duration>,
}

impl<M: QueueMessage> Queue<M> {
    /// Returns the length and the age of the queue. It costs two requests and leases nothing.
    ///
    /// # Errors
    /// [`Storage`](crate::ErrorKind::Storage) if the storage fails.
    ///
    /// # Cancel safety
    /// This only reads; dropping the future changes nothing.
    pub async fn backlog(&self) -> Result<Backlog, Error> {
        let core = self.core();
        let length = self.approximate_len().await?;
        let next = core.store().peek(&core.name, MAX_MESSAGES).await?;
        let now = core.options.clock.now();
        let oldest = next.iter().map(|message| message.inserted).min();
        // Two clocks may differ: a message that was inserted in the future is new.
        Ok(Backlog { length, oldest: oldest.map(|at| now.duration_since(at).unwrap_or_default()) })
    }

    /// Waits until the queue has fewer than `mark` messages, and returns their number. Reads the length after 100 ms,
    /// then at growing intervals of at most 5 seconds. A mark of 0 counts as 1.
    ///
    /// # Errors
    /// [`Storage`](crate::ErrorKind::Storage) if the error is not retryable; after a retryable error it continues to
    /// wait.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing. Set a limit with `tokio::time::timeout`.
    pub async fn wait_until_below(&self, mark: u64) -> Result<u64, Error> {
        wait_until_below(self.core(), mark).await
    }
}

pub(super) async fn wait_until_below(core: &QueueCore, mark: u64) -> Result<u64, Error> {
    let mut pause = FIRST_PAUSE;
    loop {
        match core.store().queue_properties(&core.name).await {
            Ok(properties) if properties.approximate_count < mark.max(1) => {
                return Ok(properties.approximate_count);
            }
            Err(error) if !error.is_retryable() => return Err(error.into()),
            Ok(_) | Err(_) => tokio::time::sleep(pause).await,
        }
        pause = (pause * 2).min(MAX_PAUSE);
    }
}
