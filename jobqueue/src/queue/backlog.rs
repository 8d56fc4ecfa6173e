//! Backpressure: how much waits in a queue, and producers that wait for it.

use std::time::Duration;

use super::queue_core::QueueCore;
use super::typed::Queue;
use crate::error::Error;
use crate::message::QueueMessage;
use crate::storage::MAX_MESSAGES;

/// The first pause between two looks at the length.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// The backlog of a queue: the two numbers by which workers are scaled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backlog {
    /// About how many messages there are, invisible ones included; never below the real number.
    pub length: u64,
    /// For how long the oldest of the next 32 visible messages has been in the queue, by this process's clock; `None`
    /// if none is visible. No queue tells which of all its messages is the oldest; as messages come about in
    /// order, the next ones are among the oldest.
    pub oldest: Option<Duration>,
}

impl<M: QueueMessage> Queue<M> {
    /// Length and age of the queue. Two requests; nothing is leased.
    ///
    /// # Errors
    /// What the storage says.
    ///
    /// # Cancel safety
    /// It only reads.
    pub async fn backlog(&self) -> Result<Backlog, Error> {
        let core = self.core();
        let length = self.approximate_len().await?;
        let next = core.store().peek(&core.name, MAX_MESSAGES).await?;
        let now = core.options.clock.now();
        let oldest = next.iter().map(|message| message.inserted).min();
        // Two clocks may differ: what was inserted in the future is new.
        Ok(Backlog { length, oldest: oldest.map(|at| now.duration_since(at).unwrap_or_default()) })
    }

    /// Waits until the queue has fewer than `mark` messages, and returns how many it has. The length is looked at after
    /// 100 ms, then less and less often, at least every 5 seconds. A mark of 0 is taken for 1.
    ///
    /// # Errors
    /// What the storage says, unless the same call may succeed later: then it goes on waiting.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped; give it a limit by `tokio::time::timeout`.
    pub async fn wait_until_below(&self, mark: u64) -> Result<u64, Error> {
        self.core().wait_until_below(mark).await
    }
}

impl QueueCore {
    pub(super) async fn wait_until_below(&self, mark: u64) -> Result<u64, Error> {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.store().queue_properties(&self.name).await {
                Ok(properties) if properties.approximate_count < mark.max(1) => {
                    return Ok(properties.approximate_count);
                }
                Err(error) if !error.is_retryable() => return Err(error.into()),
                Ok(_) | Err(_) => tokio::time::sleep(pause).await,
            }
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }
}
