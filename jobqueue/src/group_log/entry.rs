//! The entries of a group log, and the types that refer to them. Plain data.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::envelope::Identity;
use crate::undelivered::UndeliveredRef;

/// The number of group logs of a queue. Keys with the same hash prefix share a log. More logs mean smaller
/// blobs and less contention.
pub(super) const LOGS: u16 = 4096;
/// The number of entries of a group at which the head of its log, or a page, takes no more sends. A list may
/// add this number more.
pub(super) const PAGE: usize = 32;
/// The number of sends of a job that an entry distinguishes: the latest ones.
pub(super) const MAX_NONCES: usize = 8;

/// The first twelve bytes of a hash: 16 characters in a log, whatever the length of the hashed value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct KeyHash([u8; 12]);

impl KeyHash {
    fn of(bytes: &[u8]) -> Self {
        let mut prefix = [0; 12];
        prefix.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        Self(prefix)
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl Serialize for KeyHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{self:?}"))
    }
}

impl<'de> Deserialize<'de> for KeyHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        let bytes = URL_SAFE_NO_PAD.decode(&*text).ok().and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self).ok_or_else(|| serde::de::Error::custom("not a short hash"))
    }
}

/// Identifies an entry: by its group (the key) and its job (source, id and key). The kind and the payload do
/// not count: after a deploy, or with a codec that encrypts, a repeated send writes others for the same job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct EntryRef {
    /// The number of the group's log.
    pub(super) log: u16,
    pub(super) key: KeyHash,
    pub(super) job: KeyHash,
    /// The page in which the send entered the job, if its key had too many entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) page: Option<u64>,
}

impl EntryRef {
    pub(crate) fn new(key: &str, identity: &Identity) -> Self {
        let hash = Sha256::digest(key.as_bytes());
        // The digest has a fixed length, so no other pair of job and key yields the same text.
        let job = Sha256::digest(format!("{}{key}", identity.digest()));
        let log = u16::from_be_bytes([hash[0], hash[1]]) % LOGS;
        Self { log, key: KeyHash::of(&hash[2..]), job: KeyHash::of(&job), page: None }
    }
}

/// A point in time by two clocks. The monotonic clock may stand still with a suspended machine, and the
/// storage's clock is known by this process's wall clock, which may be set back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moment {
    /// In milliseconds since 1970.
    pub(super) by_storage: u64,
    pub(super) by_process: Instant,
}

/// A send's request for a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Announcement {
    pub(crate) entry: EntryRef,
    pub(super) nonce: u64,
    pub(super) delay: Duration,
    /// The time before its position was written.
    pub(super) announced_at: Option<Moment>,
}

/// A delivery of a message that asks for its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Turn {
    /// The copy number. Every message that a sender stores for the job has another number; all deliveries of
    /// a message share it.
    #[serde(rename = "c")]
    pub(crate) copy: u64,
    /// The dequeue count, which grows with every delivery of the copy; 0 if it is unknown whether the copy
    /// was delivered.
    #[serde(rename = "n")]
    pub(crate) delivery: u32,
    /// The end of the delivery's lock, in milliseconds since 1970, as the storage gave it with the message;
    /// 0 if the storage counts all deliveries. Otherwise two deliveries may have the same dequeue count, and
    /// the later one has the later lock.
    #[serde(rename = "l", default, skip_serializing_if = "is_default")]
    pub(crate) lock: u64,
}

impl Turn {
    /// Returns the turn of a copy whose first delivery may run without a record of it.
    pub(super) fn assumed(copy: u64) -> Self {
        Self { copy, delivery: 0, lock: 0 }
    }

    pub(super) fn is_assumed(self) -> bool {
        self.delivery == 0
    }

    /// Returns whether this delivery of the copy came after the other one.
    pub(super) fn is_after(self, other: Self) -> bool {
        (self.delivery, self.lock) > (other.delivery, other.lock)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) enum EntryState {
    /// The sender is about to store the message.
    #[serde(rename = "a")]
    Announced,
    /// The message is stored; its sender or a worker has confirmed that.
    #[default]
    #[serde(rename = "s")]
    Stored,
    /// The jobs behind it have abandoned the message; it blocks no job. If the message arrives later, the
    /// entry moves to the tail.
    #[serde(rename = "x")]
    Skipped,
    /// Not a job: stands for the entries that are in pages.
    #[serde(rename = "p")]
    Paged,
}

/// The position of one job in its group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    #[serde(rename = "k")]
    pub(super) key: KeyHash,
    #[serde(rename = "j")]
    pub(super) job: KeyHash,
    /// The nonces of the sends that have announced this entry.
    #[serde(rename = "n", default, skip_serializing_if = "Vec::is_empty")]
    pub(super) nonces: Vec<u64>,
    #[serde(rename = "s", default, skip_serializing_if = "is_default")]
    pub(super) state: EntryState,
    /// True if several messages of the job may exist.
    #[serde(rename = "c", default, skip_serializing_if = "is_default")]
    pub(super) copies: bool,
    /// The end of the time in which the sender may store the message, or the message may stay away:
    /// milliseconds since 1970.
    #[serde(rename = "d")]
    pub(super) due: u64,
    /// The delivery that has the turn. It is recorded only where several deliveries could claim the turn.
    #[serde(rename = "t", default, skip_serializing_if = "Option::is_none")]
    pub(super) turn: Option<Turn>,
    /// Present while the message is overdue.
    #[serde(rename = "o", default, skip_serializing_if = "Option::is_none")]
    pub(super) overdue: Option<Overdue>,
    /// Present while a cancellation is in progress.
    #[serde(rename = "x", default, skip_serializing_if = "Option::is_none")]
    pub(super) cancelling: Option<Cancelling>,
    /// Present while the turn is assumed for a message whose cancellation was in progress when the job was
    /// sent again.
    #[serde(rename = "w", default, skip_serializing_if = "Option::is_none")]
    pub(super) cancelled_first: Option<CancelledFirst>,
    /// The pages for which the entry stands.
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    pub(super) pages: Option<Range<u64>>,
}

impl Entry {
    pub(super) fn new(entry: EntryRef, state: EntryState, due: u64) -> Self {
        let EntryRef { key, job, .. } = entry;
        Self {
            key,
            job,
            nonces: Vec::new(),
            state,
            copies: false,
            due,
            turn: None,
            overdue: None,
            cancelling: None,
            cancelled_first: None,
            pages: None,
        }
    }

    /// Returns the entry that stands for pages of a group.
    pub(super) fn of_pages(key: KeyHash, pages: Range<u64>) -> Self {
        let entry = EntryRef { log: 0, key, job: KeyHash::of(&[]), page: None };
        Self { pages: Some(pages), ..Self::new(entry, EntryState::Paged, u64::MAX) }
    }

    /// Returns whether the delivery belongs to the only message that a send has certainly stored, by a single
    /// request. Messages of former sends under the same id do not count: the log knows nothing of them.
    pub(super) fn is_alone(&self, turn: Turn) -> bool {
        !self.copies && self.nonces == [turn.copy]
    }

    /// Returns the number of jobs for which the entry stands: an estimate for pages.
    pub(super) fn jobs(&self) -> usize {
        self.pages
            .as_ref()
            .map_or(1, |pages| (pages.end.saturating_sub(pages.start) as usize).saturating_mul(PAGE))
    }

    /// Records that the job is sent again: a second message of it may exist, behind all others in the queue.
    /// The first message may already run without a record of its turn, unless its cancellation is in
    /// progress, which then still decides about that message.
    pub(super) fn send_again(&mut self, nonces: &[u64], due: u64) {
        let cancelling = self.cancelling.take();
        if let (EntryState::Stored, None, false, [copy]) =
            (self.state, self.turn, self.copies, self.nonces.as_slice())
        {
            self.turn = Some(Turn::assumed(*copy));
        }
        if let Some(first) = &mut self.cancelled_first {
            first.due = first.due.max(due);
        } else if self.turn.is_some_and(Turn::is_assumed) {
            self.cancelled_first = cancelling.map(|mark| CancelledFirst { mark, due, stored: false });
        }
        self.nonces.extend(nonces);
        self.nonces.drain(..self.nonces.len().saturating_sub(MAX_NONCES));
        (self.copies, self.overdue, self.due) = (true, None, self.due.max(due));
    }

    /// Returns the mark of the cancellation in progress: of the whole job, or of its first message.
    pub(super) fn mark(&self) -> Option<&Cancelling> {
        self.cancelling.as_ref().or(self.cancelled_first.as_ref().map(|first| &first.mark))
    }

    /// Forgets the cancellation in progress.
    pub(super) fn forget_mark(&mut self) {
        (self.cancelling, self.cancelled_first) = (None, None);
    }

    pub(super) fn mark_mut(&mut self) -> Option<&mut Cancelling> {
        self.cancelling.as_mut().or(self.cancelled_first.as_mut().map(|first| &mut first.mark))
    }

    /// Returns whether this is a redelivery of the only message, and the entry has not recorded it yet.
    pub(super) fn needs_record(&self, turn: Turn) -> bool {
        let is_single = self.state == EntryState::Stored && self.is_alone(turn);
        is_single && self.turn.map_or(1 < turn.delivery, |held| turn.is_after(held))
    }

    pub(super) fn is_of(&self, entry: &EntryRef) -> bool {
        self.job == entry.job && self.key == entry.key
    }
}

/// The mark of an overdue message, or of pages behind overdue messages: the first and the latest time at
/// which waiting deliveries found it overdue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Overdue {
    #[serde(rename = "t")]
    pub(super) since: u64,
    #[serde(rename = "l")]
    pub(super) last: u64,
    /// For pages: the first page from which a message has come since then, or the number behind the last
    /// page.
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    pub(super) page: Option<u64>,
    #[serde(rename = "r", default, skip_serializing_if = "Round::is_not_begun")]
    pub(super) round: Round,
}

/// The round of the queue since an overdue message can no longer be hidden. It is done when a delivery that
/// found the message overdue comes again: every message that waited in the queue then was delivered before
/// it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Round {
    #[default]
    NotBegun,
    /// This delivery found the message overdue, and was put back.
    #[serde(rename = "b")]
    Begun(Turn),
    #[serde(rename = "d")]
    Done,
}

impl Round {
    fn is_not_begun(&self) -> bool {
        *self == Self::NotBegun
    }

    /// Returns the round after a delivery that finds the message overdue.
    pub(super) fn after(self, turn: Turn) -> Self {
        match self {
            Self::NotBegun => Self::Begun(turn),
            Self::Begun(by) if by.copy == turn.copy && by.delivery < turn.delivery => Self::Done,
            round => round,
        }
    }
}

/// A cancellation in progress, with the data that another process needs to complete it, and the time until
/// which others wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cancelling {
    #[serde(rename = "n")]
    pub(super) nonce: u64,
    #[serde(rename = "t")]
    pub(super) until: u64,
    #[serde(rename = "m")]
    pub(super) message: UndeliveredRef,
}

/// The first message of a job that was sent again while it was being cancelled. Its deletion proves that no
/// worker has received it. Kept apart from `cancelling`, which ends the whole job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CancelledFirst {
    #[serde(rename = "x")]
    pub(super) mark: Cancelling,
    /// The end of the time in which the messages of later sends may stay away: milliseconds since 1970.
    #[serde(rename = "d")]
    pub(super) due: u64,
    /// True if a message of a later send is certainly stored.
    #[serde(rename = "s", default, skip_serializing_if = "is_default")]
    pub(super) stored: bool,
}

/// The outcome with which a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum EndState {
    /// Completed. Messages of the job that arrive later are duplicates.
    #[serde(rename = "d")]
    Done,
    /// Cancelled. No copy of the job runs.
    #[serde(rename = "c")]
    Cancelled,
    /// Dead-lettered. The job can be redriven.
    #[serde(rename = "l")]
    DeadLettered,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EndedJob(pub(super) KeyHash, pub(super) EndState);

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
