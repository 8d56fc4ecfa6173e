//! Gets messages under locks, and peeks at them.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use futures_util::future::{join_all, try_join_all};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::super::amqp::OpenLink;
use super::super::amqp::receiver::{LockedMessage, ReleaseGuard};
use super::super::deliveries::DeliveryStart;
use super::super::error::Fault;
use super::super::held::HeldMessage;
use super::super::place::Place;
use super::manage::PAGE_SIZE;
use super::message::{Content, is_of_partition};
use super::put::before_request;
use super::receipt::Receipt;
use super::{ServiceBusQueues, in_session, lost_locks, manage, replaced};
use jobqueue_storage::rules::limits;
use jobqueue_storage::{
    GetMessages, LeasedMessage, MessageRef, Operation, PeekedMessage, QueueName, Received, StoreError,
    StoreErrorKind as Kind, log,
};

/// The most messages that a peek reads, with their bodies. Delayed messages count, because the service shows
/// them too.
pub(super) const PEEK_REACH: u64 = 400;
/// The time for which a message is kept back if its saved text or its delivery count cannot be read. Locks of
/// the service last at least five seconds.
pub(super) const BLOB_RETRY_PAUSE: Duration = Duration::from_secs(4);
/// The minimum time for reading a message's blob. A lock may seem to be over only because this machine's
/// clock is wrong.
const MIN_READ_TIME: Duration = Duration::from_secs(1);

pub(super) async fn get(
    queues: &ServiceBusQueues,
    queue: &QueueName,
    options: GetMessages,
) -> Result<Received, StoreError> {
    let requested = Instant::now();
    let failed = |fault: Fault| fault.of_change(Operation::Get.as_str(), queue);
    limits::check_get(queue, &options)?;
    queues.read_settings(queue).await;
    queues.read_clock(queue).await;
    if queues.requires_session(queue, Operation::Get).await? {
        return in_session::get(queues, queue, options.count, requested).await;
    }
    let link = queues.receiver(queue).await.map_err(|fault| {
        if fault.is_not_allowed() {
            // The queue was recreated with sessions.
            queues.forget_sessions(queue);
        }
        before_request(failed)(fault)
    })?;
    let is_keeping_back = queues.is_keeping_back(queue);
    let taken = link.get(options.count).await.map_err(failed)?;
    let came = taken.len();
    let leases = taken.into_iter().map(|taken| leased(queues, queue, &link, taken, requested));
    // If this future is dropped, the guards release the messages.
    let leases = join_all(leases).await.into_iter().flatten();
    let messages: Vec<_> = leases.map(|granted| granted.hand_out(queues, ReleaseGuard::keep)).collect();
    if link.is_gone() {
        lost_locks::watch(queues, queue, &link);
    }
    // The messages that are left out become visible again.
    let is_uncertain = messages.is_empty() && (came > 0 || is_keeping_back);
    // There may be ready messages behind those whose delay is not over. The delayed messages stay locked for
    // a while, so the next get does not receive them.
    let may_have_more = messages.is_empty() && came > 0 && !queues.is_keeping_back(queue);
    let next_visible_in = may_have_more.then_some(Duration::ZERO);
    Ok(Received::new(messages).with_uncertainty(is_uncertain).with_next_visible_in(next_visible_in))
}

/// A message that is ready for the caller of a get.
pub(super) struct GrantedMessage<G> {
    pub(super) message: LeasedMessage,
    pub(super) lock: Uuid,
    pub(super) held: HeldMessage,
    /// Releases the message if the get is dropped before it returns.
    pub(super) guard: G,
}

impl<G> GrantedMessage<G> {
    /// Records the message as held, and returns it.
    pub(super) fn hand_out(mut self, queues: &ServiceBusQueues, keep: impl FnOnce(G)) -> LeasedMessage {
        if Place::of(&self.held.queue).is_dead_letters {
            // A pass may hold a whole dead-letter queue, so the content is not kept in memory.
            self.held.shed_content();
        }
        queues.held.insert(self.lock, self.held);
        keep(self.guard);
        self.message
    }
}

/// Returns a message with its receipt; `None` for a message whose delay is not over, or whose saved text
/// cannot be read within a third of its lock. Such a message is released later, which counts no delivery.
async fn leased(
    queues: &ServiceBusQueues,
    queue: &QueueName,
    link: &OpenLink,
    taken: LockedMessage,
    requested: Instant,
) -> Option<GrantedMessage<ReleaseGuard>> {
    let LockedMessage { lock, message, guard } = taken;
    let mut content = Content::read(message);
    let waited = requested.elapsed();
    let now = queues.links.clock.now();
    let locked_until = content.locked_until.unwrap_or(now);
    let left = lock_left(queues, queue, locked_until.duration_since(now).unwrap_or_default());
    // A lock may seem to be over only because this machine's clock is wrong.
    let share_of_lock = |parts| if left.is_zero() { BLOB_RETRY_PAUSE } else { left / parts };
    let reading = with_saved_text(queues, queue, &mut content, locked_until);
    let mut held = match within_third_of_lock(left, queue, reading).await {
        Ok((held, DeliveryStart::Now)) => held,
        Ok((_, DeliveryStart::NotBefore(at))) => {
            let wait = at.duration_since(queues.links.clock.now()).unwrap_or_default();
            release_later(queues, link.clone(), guard, share_of_lock(2).min(wait), ());
            return None;
        }
        Err(error) => {
            log::warn!(%queue, message = %content.id, %error, "the saved state of a message cannot be read");
            let kept_back = queues.facts(queue, |facts| Arc::clone(&facts.kept_back));
            release_later(queues, link.clone(), guard, share_of_lock(3).min(BLOB_RETRY_PAUSE), kept_back);
            return None;
        }
    };
    held.link = Some(link.clone());
    let is_dead = Place::of(queue).is_dead_letters;
    let receipt = Receipt::Lock(lock).write(lock);
    let message = MessageRef { id: held.id.clone(), receipt };
    let text = (*held.text).clone();
    let lease = LeasedMessage::new(message, text, held.dequeue_count, held.inserted, locked_until)
        .with_expires(held.expires)
        .with_dead(content.cause.filter(|_| is_dead))
        .with_group(content.properties.and_then(|properties| properties.group_id).filter(|_| is_dead))
        .with_original_id(Some(content.id).filter(|_| is_dead))
        .with_granted(Some(waited + left));
    Some(GrantedMessage { message: lease, lock, held, guard })
}

async fn with_saved_text(
    queues: &ServiceBusQueues,
    queue: &QueueName,
    content: &mut Content,
    locked_until: SystemTime,
) -> Result<(HeldMessage, DeliveryStart), StoreError> {
    replaced::count(&queues.queue_blobs, queue, content).await?;
    let mut held = HeldMessage::of(queue, content, locked_until);
    if Place::of(queue).is_dead_letters {
        if let Some(text) = content.letter.take() {
            held.text = Arc::new(Ok(text));
        } else if let Some((text, tag)) = queues.queue_blobs.saved_text(&mut held).await? {
            (held.text, held.saved) = (Arc::new(text), Some(tag));
        }
    } else if content.delivered_here > 0 || queues.saves_texts(queue).await? {
        let start = queues.queue_blobs.begin_delivery(&mut held, queues.links.clock.now()).await?;
        return Ok((held, start));
    }
    Ok((held, DeliveryStart::Now))
}

/// Waits for `reading` for at most a third of `left`, the rest of the lock as returned by [`lock_left`].
///
/// # Errors
/// `Timeout` if `reading` takes longer, and its own errors.
pub(super) async fn within_third_of_lock<T>(
    left: Duration,
    queue: &QueueName,
    reading: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    timeout((left / 3).max(MIN_READ_TIME), reading).await.unwrap_or_else(|_| {
        let error = StoreError::new(Kind::Timeout, Operation::Get.as_str(), queue);
        Err(error.with_detail("the blobs do not answer in a third of the lock"))
    })
}

/// Returns the rest of a lock that was just taken, by this machine's clock, capped at the length of a lock.
pub(super) fn lock_left(queues: &ServiceBusQueues, queue: &QueueName, left: Duration) -> Duration {
    if left.is_zero() {
        log::warn!(%queue, "received a message whose lock is already over: this machine's clock may be ahead of the service's, and then no job runs");
    }
    left.min(queues.lock_length(queue))
}

/// Releases a message after a pause, and then drops `kept_back`. Until then, the message's blob is not read
/// again and again. No delivery is counted.
fn release_later(
    queues: &ServiceBusQueues,
    link: OpenLink,
    guard: ReleaseGuard,
    pause: Duration,
    kept_back: impl Send + 'static,
) {
    drop(queues.links.runtime().spawn(async move {
        sleep(pause).await;
        guard.release(&link).await;
        drop(kept_back);
    }));
}

/// Returns visible messages.
///
/// The walk begins at the first active message that the previous walk found, or where that walk ended. No
/// message before that number can become active, because the service renumbers a delayed message when its
/// delay is over. After the page with the first active message, the walk continues where a previous walk
/// stopped at its limit. A walk through dead letters begins at the first message: it is not documented
/// whether a message keeps its number when it is dead-lettered, and if it does, a message that was
/// dead-lettered later may precede it.
pub(super) async fn peek(
    queues: &ServiceBusQueues,
    queue: &QueueName,
    wanted: u32,
) -> Result<Vec<PeekedMessage>, StoreError> {
    let failed = |fault: Fault| fault.of_read(Operation::Peek.as_str(), queue);
    limits::check_peek(queue, wanted)?;
    let node = queues.node(queue).await.map_err(failed)?;
    let is_dead = Place::of(queue).is_dead_letters;
    let in_sessions = queues.requires_session(queue, Operation::Peek).await?;
    let recalled = |number: &AtomicI64| if is_dead { 0 } else { number.load(Ordering::Relaxed) };
    let (mut from, mut is_seeking) = (recalled(&node.walk_start), !is_dead);
    let (mut reached, mut is_partitioned) = (recalled(&node.reached), false);
    let (mut found, mut seen) = (Vec::new(), 0);
    // Reads as many as wanted, and whole pages only behind delayed messages, because each message that a peek
    // returns costs credits. A walk that will skip ahead after the first page takes a whole page first.
    let mut size = if reached > 0 { PAGE_SIZE } else { wanted.try_into().unwrap_or(PAGE_SIZE) };
    while found.len() < wanted as usize && seen < PEEK_REACH {
        let page = manage::peek(&node, from, size).await.map_err(failed)?;
        size = PAGE_SIZE;
        seen += page.len() as u64;
        reached = if page.is_empty() { 0 } else { reached };
        let Some(last) = page.last() else { break };
        from = last.sequence.saturating_add(1);
        is_partitioned |= page.iter().any(|content| is_of_partition(content.sequence));
        if is_seeking && !is_partitioned {
            let active = page.iter().find(|content| content.is_active);
            is_seeking = active.is_none();
            node.walk_start.store(active.map_or(from, |active| active.sequence), Ordering::Relaxed);
        }
        if !is_seeking {
            from = from.max(reached);
        }
        let now = queues.links.clock.now();
        let mut active = page.into_iter().filter(|content| {
            is_dead || content.is_active && content.expires.is_none_or(|expires| now < expires)
        });
        while found.len() < wanted as usize {
            let next = active.by_ref().take(wanted as usize - found.len());
            let peeks = next.map(|content| peeked(queues, queue, content, in_sessions)).collect::<Vec<_>>();
            if peeks.is_empty() {
                break;
            }
            let peeks = try_join_all(peeks).await?.into_iter();
            found.extend(peeks.filter_map(|(message, held_until)| held_until.is_none().then_some(message)));
        }
    }
    if seen >= PEEK_REACH && found.len() < wanted as usize {
        reached = from;
    }
    if !is_partitioned && !is_dead {
        node.reached.store(reached, Ordering::Relaxed);
    }
    Ok(found)
}

/// Returns a message with the data of its blob, and the time until which it is held, if it is.
async fn peeked(
    queues: &ServiceBusQueues,
    queue: &QueueName,
    mut content: Content,
    is_in_session: bool,
) -> Result<(PeekedMessage, Option<SystemTime>), StoreError> {
    let held_until = add_saved(queues, queue, &mut content, is_in_session).await?;
    Ok((content.into_peeked(Place::of(queue).is_dead_letters), held_until))
}

/// Adds the data of a message's blob: for a dead letter the text that was saved for it, otherwise its
/// delivery count and its text. Returns the time until which the message is held, if it is.
///
/// # Errors
/// The errors of the blob storage. The content lacks the data then.
pub(super) async fn add_saved(
    queues: &ServiceBusQueues,
    queue: &QueueName,
    content: &mut Content,
    is_in_session: bool,
) -> Result<Option<SystemTime>, StoreError> {
    replaced::count(&queues.queue_blobs, queue, content).await?;
    let mut held = HeldMessage::of(queue, content, SystemTime::UNIX_EPOCH);
    if Place::of(queue).is_dead_letters {
        if content.letter.is_none()
            && let Some((text, _)) = queues.queue_blobs.saved_text(&mut held).await?
        {
            content.text = text;
        }
        return Ok(None);
    }
    // A message that is put back in a session, or checkpointed, is itself unchanged.
    let may_have_blob = is_in_session || content.delivered_here > 0 && queues.saves_texts(queue).await?;
    let saved = if may_have_blob { queues.queue_blobs.read_saved(&held).await? } else { None };
    let Some(saved) = saved else { return Ok(None) };
    let held_until = saved.held_until(queues.links.clock.now());
    // The service does not count deliveries that end with their session, and may not count those that end
    // with their link.
    content.delivered = content.delivered.max(saved.delivery);
    if let Some(text) = saved.text {
        content.text = text;
    }
    Ok(held_until)
}

impl Content {
    /// Returns the message as lists and peeks show it.
    pub(super) fn into_peeked(self, is_dead: bool) -> PeekedMessage {
        let id = self.port_id(is_dead);
        if is_dead {
            let text = self.letter.map_or(self.text, Ok);
            let letter = PeekedMessage::new(id, text, self.delivered, self.inserted);
            return letter.with_dead(self.cause).with_original_id(self.id);
        }
        PeekedMessage::new(id, self.text, self.delivered, self.inserted).with_expires(self.expires)
    }
}

impl HeldMessage {
    pub(super) fn of(queue: &QueueName, content: &Content, locked_until: SystemTime) -> Self {
        let is_dead = Place::of(queue).is_dead_letters;
        let text = Arc::new(content.text.clone());
        Self {
            queue: queue.clone(),
            id: content.port_id(is_dead),
            first_id: content.id.clone(),
            sequence: content.first_sequence.filter(|_| is_dead).unwrap_or(content.sequence),
            letter_sequence: is_dead.then_some(content.sequence),
            sent_text: Arc::clone(&text),
            body_digest: content.body_digest.clone(),
            other: content.other.clone(),
            text,
            dequeue_count: content.delivered.saturating_add(1),
            fence: content.delivered.saturating_add(1),
            link: None,
            session: None,
            lost: CancellationToken::new(),
            is_given_back: false,
            is_copied: false,
            copies_in_doubt: 0,
            is_settled: false,
            inserted: content.inserted,
            enqueued: content.enqueued,
            // Dead letters never expire.
            expires: content.expires.filter(|_| !is_dead),
            locked_until,
            saved: None,
            properties: content.properties.clone(),
            application_properties: content.application_properties.clone(),
        }
    }
}
