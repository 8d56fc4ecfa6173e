//! What the worker does for messages that keep to the order of their key.
//!
//! Knows lines and deliveries; which message is first, and how that is written down, stands in `queue::order`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::value::RawValue;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

use crate::queue::order::{HEADER, Lines, Standing, Ticket, finish_withdrawal, superseded};
use crate::vocabulary::error::Error;
use crate::vocabulary::job::JobInfo;
use crate::vocabulary::name::QueueName;
use crate::worker::{Admission, Hook, Visit};

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
type Bells = HashMap<(QueueName, Arc<str>), Arc<Notify>>;

/// Takes part in every delivery whose sender asked for the order of its key, and in no other.
#[derive(Debug)]
pub(crate) struct InOrder {
    held: Semaphore,
    ended: Mutex<Bells>,
}

impl InOrder {
    pub(crate) fn new() -> Self {
        Self { held: Semaphore::new(MAX_HELD), ended: Mutex::default() }
    }

    /// Rings when a job of this key ends here.
    fn bell(&self, queue: &QueueName, key: &Arc<str>) -> Arc<Notify> {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.retain(|_, bell| Arc::strong_count(bell) > 1);
        Arc::clone(ended.entry((queue.clone(), Arc::clone(key))).or_default())
    }

    fn ring(&self, queue: &QueueName, key: &Arc<str>) {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bell) = ended.get(&(queue.clone(), Arc::clone(key))) {
            bell.notify_waiters();
        }
    }
}

/// The key whose order the message keeps to. An event without a key has none to keep to.
fn key(visit: Visit<'_>) -> Option<&Arc<str>> {
    visit.job.headers.contains_key(HEADER).then_some(visit.job.key.as_ref()).flatten()
}

fn ticket<'a>(visit: Visit<'a>, key: &'a str) -> Ticket<'a> {
    Ticket { key, job: &visit.job.id, message: visit.message.as_str(), delivery: visit.job.dequeue_count }
}

fn lines(visit: Visit<'_>) -> Lines<'_> {
    Lines::new(&**visit.storage.blobs(), &visit.job.queue)
}

/// The longer, the further behind and the more often it was in vain.
fn wait(ahead: usize, dequeue_count: u32) -> Duration {
    let one = Duration::from_millis(400 + 100 * ahead.min(1000) as u64);
    one.saturating_mul(1 << dequeue_count.saturating_sub(1).min(7)).min(LONGEST_WAIT)
}

#[async_trait]
impl Hook for InOrder {
    fn concerns(&self, job: &JobInfo) -> bool {
        job.headers.contains_key(HEADER)
    }

    async fn admit(&self, visit: Visit<'_>) -> Result<Admission, Error> {
        let Some(key) = key(visit) else { return Ok(Admission::Run) };
        let (ticket, lines) = (ticket(visit, key), lines(visit));
        let bell = self.bell(&visit.job.queue, key);
        let give_up = Instant::now() + HOLD;
        let mut place = None;
        loop {
            let mut ended = std::pin::pin!(bell.notified());
            // Before the line is read, so that nothing is missed.
            ended.as_mut().enable();
            let ahead = match lines.stand(&ticket, visit.now).await? {
                Standing::First => return Ok(Admission::Run),
                Standing::Over => return Ok(Admission::Duplicate),
                Standing::Superseded => return Err(superseded()),
                Standing::Full => return Ok(Admission::Wait(LONGEST_WAIT)),
                Standing::Behind(ahead) => ahead,
                Standing::BehindWithdrawn(withdrawn) => {
                    let (store, queue) = (&**visit.storage.queues(), &visit.job.queue);
                    finish_withdrawal(lines, store, queue, key, &withdrawn).await?;
                    continue;
                }
            };
            if place.is_none() && ahead <= HELD_PLACES {
                place = self.held.try_acquire().ok();
            }
            if place.is_none() || Instant::now() >= give_up {
                return Ok(Admission::Wait(wait(ahead, visit.job.dequeue_count)));
            }
            drop(tokio::time::timeout(LOOK, ended).await);
        }
    }

    async fn completing(&self, visit: Visit<'_>, _: Option<&RawValue>, _: bool) -> Result<(), Error> {
        let Some(key) = key(visit) else { return Ok(()) };
        if !lines(visit).finish(&ticket(visit, key)).await? {
            return Err(superseded());
        }
        self.ring(&visit.job.queue, key);
        Ok(())
    }

    async fn burying(&self, visit: Visit<'_>, _: &str, _: &str) -> Result<(), Error> {
        let Some(key) = key(visit) else { return Ok(()) };
        if !lines(visit).leave(&ticket(visit, key)).await? {
            return Err(superseded());
        }
        self.ring(&visit.job.queue, key);
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
    fn a_bell_that_nobody_waits_for_is_not_kept() {
        let (order, queue) = (InOrder::new(), QueueName::new("steps").unwrap());
        let kept = order.bell(&queue, &"kept".into());
        for key in 0..100 {
            drop(order.bell(&queue, &key.to_string().into()));
        }
        assert_eq!(order.ended.lock().unwrap().len(), 2, "the one in use and the last");
        assert!(Arc::ptr_eq(&kept, &order.bell(&queue, &"kept".into())));
    }
}
