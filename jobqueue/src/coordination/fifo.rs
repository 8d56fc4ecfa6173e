//! What the worker does for messages that keep to the order of their key.
//!
//! Knows lines and deliveries; which message is first, and how that is written down, stands in `queue::fifo`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::value::RawValue;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

use crate::error::Error;
use crate::job::JobInfo;
use crate::name::QueueName;
use crate::queue::fifo::{HEADER, Lines, Standing, Ticket, finish_cancellation, superseded};
use crate::sync::lock;
use crate::worker::{Decision, Hook, HookContext};

/// How many messages of one worker wait for their turn with their slots, and how near it they must be; the rest is put
/// back.
const MAX_HELD: usize = 16;
const HELD_PLACES: usize = 4;
/// How long they do so.
const HOLD: Duration = Duration::from_secs(1);
/// Between two looks at a line, in which another process may have ended a job.
const LOOK: Duration = Duration::from_millis(250);
/// The longest time a message is put back for.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// By queue and key.
type Notifiers = HashMap<(QueueName, Arc<str>), Arc<Notify>>;

/// Takes part in every delivery whose sender asked for the order of its key, and in no other.
#[derive(Debug)]
pub(crate) struct InOrder {
    held: Semaphore,
    ended: Mutex<Notifiers>,
}

impl InOrder {
    pub(crate) fn new() -> Self {
        Self { held: Semaphore::new(MAX_HELD), ended: Mutex::default() }
    }

    /// Rings when a job of this key ends here.
    fn notifier(&self, queue: &QueueName, key: &Arc<str>) -> Arc<Notify> {
        let mut ended = lock(&self.ended);
        ended.retain(|_, notifier| Arc::strong_count(notifier) > 1);
        Arc::clone(ended.entry((queue.clone(), Arc::clone(key))).or_default())
    }

    fn notify(&self, queue: &QueueName, key: &Arc<str>) {
        let ended = lock(&self.ended);
        if let Some(notifier) = ended.get(&(queue.clone(), Arc::clone(key))) {
            notifier.notify_waiters();
        }
    }
}

/// The key whose order the message keeps to. An event without a key has none to keep to.
fn key(hook_context: HookContext<'_>) -> Option<&Arc<str>> {
    hook_context.job.headers.contains_key(HEADER).then_some(hook_context.job.key.as_ref()).flatten()
}

fn ticket<'a>(hook_context: HookContext<'a>, key: &'a str) -> Ticket<'a> {
    Ticket {
        key,
        job: &hook_context.job.id,
        message: hook_context.message.as_str(),
        delivery: hook_context.job.dequeue_count,
    }
}

fn lines(hook_context: HookContext<'_>) -> Lines<'_> {
    Lines::new(hook_context.storage.blobs(), &hook_context.job.queue)
}

/// The longer, the further behind and the more often it was in vain.
fn wait(ahead: usize, dequeue_count: u32) -> Duration {
    let one = Duration::from_millis(400 + 100 * ahead.min(1000) as u64);
    one.saturating_mul(1 << dequeue_count.saturating_sub(1).min(7)).min(LONGEST_WAIT)
}

#[async_trait]
impl Hook for InOrder {
    fn applies_to(&self, job: &JobInfo) -> bool {
        job.headers.contains_key(HEADER)
    }

    async fn admit(&self, hook_context: HookContext<'_>) -> Result<Decision, Error> {
        let Some(key) = key(hook_context) else { return Ok(Decision::Run) };
        let (ticket, lines) = (ticket(hook_context, key), lines(hook_context));
        let notifier = self.notifier(&hook_context.job.queue, key);
        let give_up = Instant::now() + HOLD;
        let mut place = None;
        loop {
            let mut ended = std::pin::pin!(notifier.notified());
            // Before the line is read, so that nothing is missed.
            ended.as_mut().enable();
            let ahead = match lines.stand(&ticket, hook_context.now).await? {
                Standing::First => return Ok(Decision::Run),
                Standing::Over => return Ok(Decision::Duplicate),
                Standing::Superseded => return Err(superseded()),
                Standing::Full => return Ok(Decision::Wait(LONGEST_WAIT)),
                Standing::Behind(ahead) => ahead,
                Standing::BehindWithdrawn(pending) => {
                    let (store, queue) = (&**hook_context.storage.queues(), &hook_context.job.queue);
                    finish_cancellation(lines, store, queue, key, &pending).await?;
                    continue;
                }
            };
            if place.is_none() && ahead <= HELD_PLACES {
                place = self.held.try_acquire().ok();
            }
            if place.is_none() || Instant::now() >= give_up {
                return Ok(Decision::Wait(wait(ahead, hook_context.job.dequeue_count)));
            }
            drop(tokio::time::timeout(LOOK, ended).await);
        }
    }

    async fn completing(
        &self,
        hook_context: HookContext<'_>,
        _: Option<&RawValue>,
        _: bool,
    ) -> Result<(), Error> {
        let Some(key) = key(hook_context) else { return Ok(()) };
        if !lines(hook_context).finish(&ticket(hook_context, key)).await? {
            return Err(superseded());
        }
        self.notify(&hook_context.job.queue, key);
        Ok(())
    }

    async fn dead_lettering(&self, hook_context: HookContext<'_>, _: &str, _: &str) -> Result<(), Error> {
        let Some(key) = key(hook_context) else { return Ok(()) };
        if !lines(hook_context).leave(&ticket(hook_context, key)).await? {
            return Err(superseded());
        }
        self.notify(&hook_context.job.queue, key);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_further_behind_or_came_in_vain_waits_longer_and_nobody_for_more_than_half_a_minute() {
        let waits = [wait(1, 1), wait(10, 1), wait(1, 2), wait(1, 3), wait(5_000, 1), wait(1, u32::MAX)];
        assert_eq!(waits.map(|wait| wait.as_millis()), [500, 1_400, 1_000, 2_000, 30_000, 30_000]);
    }

    #[test]
    fn notifier_without_subscribers_is_dropped() {
        let (order, queue) = (InOrder::new(), QueueName::new("steps").unwrap());
        let kept = order.notifier(&queue, &"kept".into());
        for key in 0..100 {
            drop(order.notifier(&queue, &key.to_string().into()));
        }
        assert_eq!(order.ended.lock().unwrap().len(), 2, "the one in use and the last");
        assert!(Arc::ptr_eq(&kept, &order.notifier(&queue, &"kept".into())));
    }
}
