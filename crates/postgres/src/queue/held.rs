//! Operations that another transaction holds up: the deletion of the first message of a group while a message is put behind it, and a put behind a first
//! message that is not committed.
//!
//! They do not hold up others in turn. A list passes them over, or waits for a moment; then each deletion, and the puts into each group, are tried alone, with
//! nothing in hand, for a second at a time. An attempt that ends without the lock has changed nothing, and its connection is free for others.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use crate::combine::runtime_ended;
use crate::database::Call;
use jobqueue_storage::runtime::Runtime;
use jobqueue_storage::{StoreError, StoreErrorKind};

/// The time for which a list waits for a lock.
pub(super) const IN_LIST: Duration = Duration::from_millis(100);
/// The time for which an attempt waits for a lock alone.
const ALONE: Duration = Duration::from_secs(1);

/// The limits of locks within operations of this limit, for the setting `lock_timeout`. Beyond half of it the operation would end first, and uncertainly.
#[derive(Debug, Clone)]
pub(super) struct LockLimits {
    pub(super) in_list: String,
    pub(super) alone: String,
    /// That of an operation that waits once.
    pub(super) longest: String,
}

impl LockLimits {
    pub(super) fn within(limit: Duration) -> Self {
        let text = |wanted: Duration| format!("{}ms", wanted.min(limit / 2).as_millis().max(1));
        Self { in_list: text(IN_LIST), alone: text(ALONE), longest: text(limit) }
    }
}

/// The time for which an operation waits for a lock: in each attempt, and until when.
#[derive(Debug)]
pub(super) struct Patience {
    pub(super) lock_limit: String,
    pub(super) end: Instant,
}

/// Returns the error of an operation that was held up for as long as it may take. Nothing was changed.
pub(super) fn held_up(call: Call<'_>) -> StoreError {
    let detail = "an open transaction holds up the group of the message; commit soon after a send in order";
    call.refuse(StoreErrorKind::Timeout).with_detail(detail)
}

/// Runs an operation alone until `end`. An attempt returns `None` if it was held up; it goes on if this future is dropped.
pub(super) async fn alone<T, F>(
    runtime: &Runtime,
    permits: &Arc<Semaphore>,
    call: Call<'_>,
    end: Instant,
    attempt: impl Fn() -> F,
) -> Result<T, StoreError>
where
    T: Send + 'static,
    F: Future<Output = Option<Result<T, StoreError>>> + Send + 'static,
{
    while Instant::now() < end {
        let permit = timeout_at(end, Arc::clone(permits).acquire_owned()).await;
        let Ok(Ok(permit)) = permit else { break };
        let attempt = attempt();
        let attempted = runtime.spawn(async move {
            let _permit = permit;
            attempt.await
        });
        match attempted.await {
            Ok(Some(answer)) => return answer,
            Ok(None) => {}
            Err(_) => return Err(runtime_ended(call)),
        }
    }
    Err(held_up(call))
}
