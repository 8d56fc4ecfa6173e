//! Operations that another transaction holds up: the deletion of the first message of a group while a message is put behind it, and a put behind a first
//! message that is not committed.
//!
//! They do not hold up others in turn. A list passes them over, or waits for a moment; then each deletion, and the puts into each group, are tried alone, with
//! nothing in hand: at first for a moment, which lets those through that were in the list of another, then for a second at a time, of which each needs a
//! permit. A list that is put as a whole is tried for a moment each second. An attempt that ends without the lock has changed nothing, and its connection is
//! free for others.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout_at};

use crate::combine::runtime_ended;
use crate::database::Call;
use jobqueue_storage::runtime::Runtime;
use jobqueue_storage::{StoreError, StoreErrorKind};

/// The time for which a list waits for a lock.
pub(crate) const IN_LIST: Duration = Duration::from_millis(100);
/// The time for which the first attempt of the puts into a group waits for a lock. There may be as many as groups, and they need no permits.
const BRIEFLY: Duration = Duration::from_millis(20);
/// The time for which an attempt waits for a lock alone, and between two attempts of a list.
const ALONE: Duration = Duration::from_secs(1);

/// The limits of locks within operations of this limit, for the setting `lock_timeout`. Beyond half of it the operation would end first, and uncertainly.
#[derive(Debug, Clone)]
pub(crate) struct LockLimits {
    pub(crate) in_list: String,
    pub(crate) briefly: String,
    pub(crate) alone: String,
    /// That of an operation that waits once.
    pub(crate) longest: String,
}

impl LockLimits {
    pub(crate) fn within(limit: Duration) -> Self {
        let text = |wanted: Duration| format!("{}ms", wanted.min(limit / 2).as_millis().max(1));
        Self { in_list: text(IN_LIST), briefly: text(BRIEFLY), alone: text(ALONE), longest: text(limit) }
    }

    /// Returns the patience of a deletion.
    pub(crate) fn for_deletion(&self, end: Instant) -> Patience {
        let (first, later) = (self.in_list.clone(), self.alone.clone());
        Patience { first, later, pause: Duration::ZERO, end }
    }

    /// Returns the patience of a list of puts, whose other groups are free between two attempts.
    pub(crate) fn for_list(&self, end: Instant) -> Patience {
        let (first, later) = (self.in_list.clone(), self.in_list.clone());
        Patience { first, later, pause: ALONE, end }
    }
}

/// The time for which an operation waits for a lock: in its first attempt, in each later one, between two, and until when.
#[derive(Debug)]
pub(crate) struct Patience {
    pub(crate) first: String,
    pub(crate) later: String,
    pub(crate) pause: Duration,
    pub(crate) end: Instant,
}

/// Returns the error of an operation that was held up for as long as it may take. Nothing was changed.
pub(crate) fn held_up(call: Call<'_>) -> StoreError {
    let detail = "an open transaction holds up the group of the message; commit soon after a send in order";
    call.refuse(StoreErrorKind::Timeout).with_detail(detail)
}

/// Runs an operation alone. An attempt with a limit of the lock returns `None` if it was held up; it goes on if this future is dropped. Only the later ones
/// need permits: most operations are held up for a moment.
pub(crate) async fn alone<T, F>(
    runtime: &Runtime,
    permits: &Arc<Semaphore>,
    call: Call<'_>,
    patience: Patience,
    attempt: impl Fn(String) -> F,
) -> Result<T, StoreError>
where
    T: Send + 'static,
    F: Future<Output = Option<Result<T, StoreError>>> + Send + 'static,
{
    let Patience { first, later, pause, end } = patience;
    let (mut lock_limit, mut permit) = (first, None);
    while Instant::now() < end {
        let attempt = attempt(lock_limit);
        let attempted = runtime.spawn(async move {
            let _permit = permit;
            attempt.await
        });
        match attempted.await {
            Ok(Some(answer)) => return answer,
            Ok(None) => {}
            Err(_) => return Err(runtime_ended(call)),
        }
        let next = async {
            sleep(pause).await;
            Arc::clone(permits).acquire_owned().await
        };
        let Ok(Ok(next)) = timeout_at(end, next).await else { break };
        (lock_limit, permit) = (later.clone(), Some(next));
    }
    Err(held_up(call))
}
