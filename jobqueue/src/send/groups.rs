//! Sends a list of messages to a storage that keeps the order of groups itself.

use std::collections::{BTreeMap, HashMap};

use futures_util::StreamExt as _;
use tokio::time::Instant;

use super::prepare::Prepared;
use super::put::{put_all, put_with_retries, unanswered};
use super::resend::remove_unsent;
use super::sent::Sent;
use super::silence::Silence;
use crate::error::Error;
use crate::queue_core::QueueCore;
use crate::undelivered::StoredMessage;

/// The maximum number of groups whose messages are put at the same time.
const CONCURRENT_GROUPS: usize = 32;

/// Puts messages: the messages of a group one after the other, because a group has the order of its puts; all
/// other messages together. Returns the answers in the order of the list.
pub(super) async fn put_by_group(
    core: &QueueCore,
    mut prepared: Vec<Result<Prepared, Error>>,
    started: Instant,
) -> Vec<Result<Sent, Error>> {
    let mut groups = BTreeMap::<Option<&str>, Vec<(usize, &Prepared)>>::new();
    let (mut others, mut ready) = (Vec::new(), Vec::new());
    for (place, message) in prepared.iter_mut().enumerate() {
        let Ok(message) = message else { continue };
        if message.put.group.is_none() {
            others.push(place);
            ready.push(message);
        } else {
            let message: &Prepared = message;
            groups.entry(message.put.group.as_deref()).or_default().push((place, message));
        }
    }
    let silence = Silence::default();
    let groups: Vec<_> = groups.into_values().map(|group| put_group(core, group, &silence)).collect();
    let in_groups =
        futures_util::stream::iter(groups).buffer_unordered(CONCURRENT_GROUPS).collect::<Vec<_>>();
    let (put, in_groups) = tokio::join!(put_all(core, &mut ready, started), in_groups);
    let mut stored: HashMap<usize, Result<StoredMessage, Error>> = in_groups.into_iter().flatten().collect();
    stored.extend(others.into_iter().zip(put));
    let answers = prepared.into_iter().enumerate().map(|(place, message)| {
        let message = message?;
        let stored = stored.remove(&place).unwrap_or_else(|| Err(unanswered()))?;
        Ok(message.sent(Some(stored)))
    });
    answers.collect()
}

/// Puts the messages of a group. A refused message does not stop the next ones; each stored message restarts
/// the send budget for the messages behind it.
async fn put_group(
    core: &QueueCore,
    group: Vec<(usize, &Prepared)>,
    silence: &Silence,
) -> Vec<(usize, Result<StoredMessage, Error>)> {
    // With many groups, the last ones begin when others have ended. They share the silence of the list, so
    // that an outage ends the whole list as soon as it would end one message.
    let mut started = silence.since().unwrap_or_else(Instant::now);
    let (mut answers, mut untried) = (Vec::with_capacity(group.len()), Vec::new());
    for (place, message) in group {
        let is_tried = !silence.exceeds_budget();
        let answer = silence.guard(put_with_retries(core, message, started)).await;
        if answer.is_ok() {
            started = Instant::now();
        } else if !is_tried {
            untried.push(message);
        }
        answers.push((place, answer));
    }
    remove_unsent(core, untried).await;
    answers
}
