//! Waiting until a queue is short.

use std::time::Duration;

use super::queue::QueueCore;
use crate::error::Error;

/// The first pause between two readings of the length.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// Waits until the queue has fewer than `mark` messages, and returns their number.
pub(crate) async fn wait_until_below(core: &QueueCore, mark: u64) -> Result<u64, Error> {
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
