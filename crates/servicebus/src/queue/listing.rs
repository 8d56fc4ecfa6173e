//! Lists all messages of a queue by peeks, in the order of their numbers.

use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use futures_util::{StreamExt as _, stream};
use tokio::time::{Instant, sleep, timeout_at};

use super::super::error::Fault;
use super::super::place::Place;
use super::get::add_saved;
use super::manage::PAGE_SIZE;
use super::message::{Content, is_of_partition};
use super::{ServiceBusQueues, manage};
use jobqueue_storage::rules::limits;
use jobqueue_storage::{
    LogPage, LoggedMessage, LoggedState, Operation, QueueName, StoreError, StoreErrorKind as Kind, log,
};

const PEEK: &str = Operation::Peek.as_str();
/// The pause before a further page, for each message that it may have. On the tier Standard, a namespace has
/// a thousand credits a second for all its operations, and each message that a peek returns costs one. The
/// walks of a process together take half of them.
const PAUSE_PER_MESSAGE: Duration = Duration::from_millis(2);
/// The number of blobs of a page that are read concurrently.
const CONCURRENT_READS: usize = 32;
/// The time limit for the blobs of a page. Messages whose blobs are not read by then are listed as the
/// service shows them.
const BLOBS_TIMEOUT: Duration = Duration::from_secs(4);

/// Returns a page of up to 100 messages, by two peeks at most. The service shows a locked message as active,
/// so such messages are among the active ones.
///
/// A walk through the active messages begins at the first one that an earlier walk or peek of this process
/// has found: no message before it can become active, because the service renumbers a delayed message when
/// its delay is over.
///
/// A message whose blob cannot be read is listed as the service shows it, and the page is partial.
pub(super) async fn page(
    queues: &ServiceBusQueues,
    queue: &QueueName,
    state: Option<LoggedState>,
    from: Option<&str>,
    count: u32,
) -> Result<LogPage, StoreError> {
    let failed = |fault: Fault| fault.of_read(PEEK, queue);
    limits::check_page(queue, count)?;
    let behind = from.map(|from| number(from).ok_or_else(|| no_end(queue))).transpose()?;
    let node = queues.node(queue).await.map_err(failed)?;
    let in_sessions = queues.requires_session(queue, Operation::Peek).await?;
    let is_dead = Place::of(queue).is_dead_letters;
    let seeks_active = behind.is_none() && state == Some(LoggedState::Active) && !is_dead;
    let start = behind.unwrap_or(if seeks_active { node.walk_start.load(Ordering::Relaxed) } else { 0 });
    let size = i32::try_from(count).unwrap_or(PAGE_SIZE).min(PAGE_SIZE);
    if behind.is_some() {
        let _turn = queues.pace.lock().await;
        sleep(PAUSE_PER_MESSAGE * size.unsigned_abs()).await;
    }
    let mut page = manage::peek(&node, start, size).await.map_err(failed)?;
    let shows_partition =
        is_of_partition(start) || page.iter().any(|content| is_of_partition(content.sequence));
    // A partition may have the number 0.
    let mut is_partial = shows_partition || queues.may_be_partitioned(queue).await;
    // A partitioned queue may answer with messages of another partition, and the walk must come to an end.
    page.retain(|content| content.sequence >= start);
    let mut next = page.iter().map(|content| content.sequence.saturating_add(1)).max();
    if seeks_active && !shows_partition {
        let active = page.iter().find(|content| content.is_active).map(|content| content.sequence);
        node.walk_start.store(active.or(next).unwrap_or(start), Ordering::Relaxed);
    }
    // An answer has a limit in bytes, so a short page need not be the last one.
    if let Some(end) = next
        && i32::try_from(page.len()).is_ok_and(|length| length < size)
    {
        let further = manage::peek(&node, end, 1).await.map_err(failed)?;
        next = next.filter(|end| further.iter().any(|content| content.sequence >= *end));
    }
    let now = queues.links.clock.now();
    page.retain(|content| may_be(content, state, is_dead, now));
    let give_up = Instant::now() + BLOBS_TIMEOUT;
    let reads = page.into_iter().map(|content| logged(queues, queue, content, in_sessions, give_up));
    let reads = stream::iter(reads.collect::<Vec<_>>()).buffered(CONCURRENT_READS);
    let (mut messages, are_read): (Vec<LoggedMessage>, Vec<bool>) = reads.unzip().await;
    is_partial |= are_read.contains(&false);
    messages.retain(|logged| state.is_none_or(|state| logged.state == state));
    Ok(LogPage::new(messages).with_next(next.map(|next| next.to_string())).with_partial(is_partial))
}

/// Reads the end of a page.
fn number(from: &str) -> Option<i64> {
    from.parse::<i64>().ok().filter(|number| *number > 0)
}

fn no_end(queue: &QueueName) -> StoreError {
    StoreError::new(Kind::InvalidInput, PEEK, queue).with_detail("no page ended there")
}

/// Returns whether the list may have a message, without the data of its blob. Leaves out messages that have
/// expired, and messages that another program has deferred: no worker receives these.
fn may_be(content: &Content, state: Option<LoggedState>, is_dead: bool, now: SystemTime) -> bool {
    match state {
        // A letter is neither scheduled nor held, and never expires.
        _ if is_dead => state.is_none_or(|state| state == LoggedState::Active),
        Some(LoggedState::Delayed) => content.is_scheduled,
        Some(LoggedState::Active) if content.is_scheduled => false,
        _ if content.is_scheduled => true,
        _ => content.is_active && content.expires.is_none_or(|expires| now < expires),
    }
}

/// Returns a message with its state, and whether the data of its blob could be read until `give_up`. A
/// message that was put back is a scheduled copy with a count of deliveries, or is active and held by the
/// time in its blob.
async fn logged(
    queues: &ServiceBusQueues,
    queue: &QueueName,
    mut content: Content,
    in_sessions: bool,
    give_up: Instant,
) -> (LoggedMessage, bool) {
    let (scheduled, enqueued) = (content.is_scheduled.then_some(content.scheduled_for), content.enqueued);
    let adding = add_saved(queues, queue, &mut content, in_sessions && scheduled.is_none());
    let added = timeout_at(give_up, adding).await.unwrap_or_else(|_| {
        Err(StoreError::new(Kind::Timeout, PEEK, queue).with_detail("the blobs do not answer"))
    });
    if let Err(error) = &added {
        log::debug!(%queue, message = %content.id, %error, "a list shows a message without the data of its blob");
    }
    let (is_read, held_until) = (added.is_ok(), added.ok().flatten());
    let message = content.into_peeked(Place::of(queue).is_dead_letters);
    let (state, due) = match (scheduled, held_until) {
        (Some(due), _) if message.dequeue_count > 0 => (LoggedState::BackingOff, due),
        (Some(due), _) => (LoggedState::Delayed, due),
        (None, Some(until)) => (LoggedState::BackingOff, Some(until)),
        (None, None) => (LoggedState::Active, Some(enqueued)),
    };
    (LoggedMessage::new(message, state, due), is_read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_pages_are_numbers_behind_a_message() {
        assert_eq!(number("17"), Some(17));
        for wrong in ["", "?", "0", "-3", "1.5", "9223372036854775808"] {
            assert_eq!(number(wrong), None, "{wrong}");
        }
    }
}
