//! The messages that this process holds under locks. A handle shares them with its detached copies.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use fe2o3_amqp::types::messaging::{ApplicationProperties, Body, Properties};
use fe2o3_amqp::types::primitives::Value;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::amqp::OpenLink;
use super::amqp::receiver::ReceiveLink;
use super::session::Session;
use jobqueue_storage::sync::lock;
use jobqueue_storage::{ETag, MessageId, QueueName};

/// The time that a message is remembered after its lock was granted or renewed: long enough for the lock, of
/// at most five minutes, and for late answers.
const RETENTION: Duration = Duration::from_secs(900);

#[derive(Debug, Clone)]
pub(super) struct HeldMessage {
    pub(super) queue: QueueName,
    pub(super) id: MessageId,
    /// The id that the message has in its queue. For a dead letter, it differs from `id`.
    pub(super) first_id: MessageId,
    /// The sequence number of the message in its queue; for a dead letter, its number in the queue that it
    /// comes from.
    pub(super) sequence: i64,
    /// The number of a dead letter in the dead-letter queue. Its text may be saved under this number, because
    /// a message that was delayed has had two numbers in its queue.
    pub(super) letter_sequence: Option<i64>,
    pub(super) text: Arc<Result<String, String>>,
    /// The text with which the message was sent, or the text of the dead letter that a tool has resent. It is
    /// valid while no other text is saved.
    pub(super) sent_text: Arc<Result<String, String>>,
    /// The digest of the body, if the text of a dead letter replaces it.
    pub(super) body_digest: Option<String>,
    /// The body, if it is not a text.
    pub(super) other: Option<Arc<Body<Value>>>,
    pub(super) dequeue_count: u32,
    /// The fencing token of the delivery: a later delivery that writes the text of the message has a greater
    /// one.
    pub(super) fence: u32,
    /// The link over which the message was received, in a queue without sessions. `None` once the lock, held
    /// or lost, no longer depends on it.
    pub(super) link: Option<OpenLink>,
    pub(super) session: Option<Arc<Session>>,
    /// Fires when the lock is found to be lost early.
    pub(super) lost: CancellationToken,
    /// True once the message was given back in its session. The session may hold its lock for a while, but no
    /// further change is allowed.
    pub(super) is_given_back: bool,
    /// True once a copy has replaced the message in the queue. The message is still to be completed, and must
    /// not be copied again.
    pub(super) is_copied: bool,
    /// The copies that were sent without an answer, any of which may be in the queue.
    pub(super) copies_in_doubt: u32,
    /// True once the message is dead-lettered while its text is still to be written.
    pub(super) is_settled: bool,
    pub(super) inserted: SystemTime,
    /// The time at which the message became visible, by the service's clock.
    pub(super) enqueued: SystemTime,
    pub(super) expires: Option<SystemTime>,
    /// The end of the lock by the service's clock.
    pub(super) locked_until: SystemTime,
    /// The tag of the blob that was written under a lock of this message.
    pub(super) saved: Option<ETag>,
    pub(super) properties: Option<Properties>,
    pub(super) application_properties: Option<ApplicationProperties>,
}

impl HeldMessage {
    /// Drops the content of a message that will not be copied any more, because it was given back or
    /// dead-lettered.
    pub(super) fn shed_content(&mut self) {
        let none = Arc::new(Ok(String::new()));
        (self.text, self.sent_text) = (Arc::clone(&none), none);
        (self.other, self.properties, self.application_properties) = (None, None, None);
    }

    /// Returns a dead letter with the other of the two numbers that its message may have had; `None` if there
    /// is only one.
    pub(super) fn other_number(&self) -> Option<Self> {
        let other = self.letter_sequence.filter(|other| *other != self.sequence)?;
        Some(Self { sequence: other, ..self.clone() })
    }
}

#[derive(Debug)]
struct Entry {
    held: Arc<HeldMessage>,
    forget_at: Instant,
}

/// All messages under locks, by lock token.
#[derive(Debug, Default)]
pub(super) struct HeldMessages {
    entries: Mutex<BTreeMap<Uuid, Entry>>,
}

impl HeldMessages {
    pub(super) fn insert(&self, token: Uuid, held: HeldMessage) {
        let mut entries = lock(&self.entries);
        let now = Instant::now();
        // Removes expired entries, at doubling sizes: messages that were neither settled nor renewed.
        if entries.len().is_power_of_two() {
            entries.retain(|_, entry| now < entry.forget_at);
        }
        entries.insert(token, Entry { held: Arc::new(held), forget_at: now + RETENTION });
    }

    pub(super) fn get(&self, queue: &QueueName, id: &MessageId, token: Uuid) -> Option<Arc<HeldMessage>> {
        let entries = lock(&self.entries);
        let held = &entries.get(&token)?.held;
        (held.queue == *queue && held.id == *id).then(|| Arc::clone(held))
    }

    /// Returns the messages that were received over the link and may still be locked, with their lock tokens.
    pub(super) fn of(&self, link: &ReceiveLink) -> Vec<(Uuid, Arc<HeldMessage>)> {
        let entries = lock(&self.entries);
        let now = Instant::now();
        let came = |entry: &Entry| entry.held.link.as_ref().is_some_and(|of| of.is(link));
        let of_link = entries.iter().filter(|(_, entry)| now < entry.forget_at && came(entry));
        of_link.map(|(token, entry)| (*token, Arc::clone(&entry.held))).collect()
    }

    pub(super) fn change(&self, token: Uuid, change: impl FnOnce(&mut HeldMessage)) {
        if let Some(entry) = lock(&self.entries).get_mut(&token) {
            change(Arc::make_mut(&mut entry.held));
            entry.forget_at = Instant::now() + RETENTION;
        }
    }

    pub(super) fn remove(&self, token: Uuid) {
        lock(&self.entries).remove(&token);
    }
}
