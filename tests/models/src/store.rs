//! The storage of a model as a value: queues and blobs with the semantics of Azure Storage.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use jobqueue::storage::StoreErrorKind;

/// The length of a leap of the clock in minutes: longer than any time that the library waits for, and than
/// the minimum age of a sweep.
pub const LEAP: u32 = 30 * 24 * 60;

/// Bytes with a hash that is computed once. Equal bytes have equal hashes.
#[derive(Clone, PartialEq, Eq)]
pub struct Content {
    bytes: Bytes,
    hash: u64,
}

impl Content {
    /// Returns the bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

impl<B: Into<Bytes>> From<B> for Content {
    fn from(bytes: B) -> Self {
        let bytes = bytes.into();
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        Self { bytes, hash: hasher.finish() }
    }
}

impl Hash for Content {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl Deref for Content {
    type Target = str;

    fn deref(&self) -> &str {
        std::str::from_utf8(&self.bytes).unwrap_or_default()
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.200}", &**self)
    }
}

/// A request of a process.
#[allow(missing_docs, reason = "the fields are those of the port")]
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Request {
    /// Put a message.
    Put { queue: Arc<str>, text: Content },
    /// Lease messages.
    Get { queue: Arc<str> },
    /// Read messages without a lease.
    Peek { queue: Arc<str> },
    /// Count messages.
    Count { queue: Arc<str> },
    /// Change a leased message.
    Update { message: Receipt, text: Option<Content>, ends_lease: bool },
    /// Delete a leased message.
    Delete { message: Receipt },
    /// Write a blob.
    PutBlob { name: Arc<str>, data: Content, metadata: Fields, condition: Condition },
    /// Read a blob.
    GetBlob { name: Arc<str> },
    /// Delete a blob.
    DeleteBlob { name: Arc<str> },
    /// List the blobs whose names have this prefix.
    ListBlobs { prefix: Arc<str> },
    /// Not a storage request: an application asks whether a job fails permanently.
    Fails { job: u8 },
    /// Not a storage request: an application notes a fact.
    Note(Fact),
}

/// An answer to a [`Request`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Answer {
    /// The change was made. Contains the new version of the blob or receipt.
    Changed(u16),
    /// A message was put.
    Put(Receipt),
    /// Messages, leased or not.
    Messages(Vec<Message>),
    /// The number of messages.
    Count(u64),
    /// A blob.
    Blob(Blob),
    /// The names and contents of blobs.
    Listed(Vec<(Arc<str>, Blob)>),
    /// The answer to [`Request::Fails`].
    Fails(bool),
    /// The request failed and has changed nothing.
    Refused(StoreErrorKind),
    /// No answer arrived; the request may have been applied.
    Lost,
}

/// A fact that an application has noted: a word and the number of a job.
pub type Fact = (&'static str, u8);

/// The metadata of a blob.
pub type Fields = Vec<(String, String)>;

/// A message and the number of its last change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Receipt {
    /// The number of the message, in the order of puts.
    pub id: u16,
    /// The number of leases and changes up to then.
    pub number: u16,
}

/// The condition of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Condition {
    /// No condition.
    Always,
    /// The blob does not exist.
    Absent,
    /// The blob has this version.
    Version(u16),
}

/// A stored message.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Message {
    /// Its number and the number of its last change.
    pub receipt: Receipt,
    /// Its queue.
    pub queue: Arc<str>,
    /// Its text.
    pub text: Content,
    /// The number of its deliveries.
    pub deliveries: u16,
    /// The receipt with which the current lease began, if there is one.
    pub lease: Option<u16>,
    /// The time of its put; see [`Store::minute`].
    pub minute: u32,
}

/// A stored blob.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Blob {
    /// The number of writes of this name.
    pub version: u16,
    /// Its content.
    pub data: Content,
    /// Its metadata.
    pub metadata: Fields,
    /// The time of the write; see [`Store::minute`].
    pub minute: u32,
}

/// A rule that a storage with a planted defect breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// Puts into this queue store nothing.
    LosesPuts(&'static str),
    /// Puts into this queue store two messages.
    DoublesPuts(&'static str),
    /// Writes of blobs whose names contain this text store nothing.
    LosesBlobs(&'static str),
    /// Deletions of blobs delete nothing.
    KeepsBlobs,
    /// A receipt of a former lease is accepted.
    AcceptsAnyReceipt,
}

/// Queues and blobs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Store {
    /// All messages, in the order of their puts.
    pub messages: Vec<Message>,
    /// The blobs by container and name, including deleted ones, each with the number of its writes.
    blobs: BTreeMap<Arc<str>, (u16, Option<Blob>)>,
    /// The number of the last message.
    last: u16,
    /// The time, in minutes.
    pub minute: u32,
    /// The number of puts into each queue.
    pub puts: BTreeMap<Arc<str>, u8>,
}

impl Store {
    /// Returns whether the queue holds a message that contains `part`.
    pub fn holds(&self, queue: &str, part: &str) -> bool {
        self.of_queue(queue).any(|message| message.text.contains(part))
    }

    /// Returns the messages of a queue.
    pub fn of_queue(&self, queue: &str) -> impl Iterator<Item = &Message> {
        self.messages.iter().filter(move |message| &*message.queue == queue)
    }

    /// Returns the blobs whose names begin with `prefix`.
    pub fn blobs(&self, prefix: &str) -> impl Iterator<Item = (&Arc<str>, &Blob)> {
        let present = self.blobs.iter().filter_map(|(name, (_, blob))| Some((name, blob.as_ref()?)));
        present.filter(move |(name, _)| name.starts_with(prefix))
    }

    /// Leases a free message.
    pub fn lease(&mut self, id: u16) -> Option<Message> {
        let message = self.messages.iter_mut().find(|message| message.receipt.id == id)?;
        message.receipt.number += 1;
        message.deliveries += 1;
        message.lease = Some(message.receipt.number);
        Some(message.clone())
    }

    /// Applies a request.
    pub fn apply(&mut self, request: &Request, broken: Option<Broken>) -> Answer {
        match request {
            Request::Put { queue, text } => self.put(queue, text, broken),
            Request::Get { queue } => {
                let free: Vec<u16> = self
                    .of_queue(queue)
                    .filter(|message| message.lease.is_none())
                    .map(|message| message.receipt.id)
                    .collect();
                Answer::Messages(free.into_iter().filter_map(|id| self.lease(id)).collect())
            }
            Request::Peek { queue } => {
                let free = self.of_queue(queue).filter(|message| message.lease.is_none());
                Answer::Messages(free.cloned().collect())
            }
            Request::Count { queue } => Answer::Count(self.of_queue(queue).count() as u64),
            Request::Update { message, text, ends_lease } => {
                let message = match self.authorized(*message, broken) {
                    Ok(place) => &mut self.messages[place],
                    Err(kind) => return Answer::Refused(kind),
                };
                message.receipt.number += 1;
                if let Some(text) = text {
                    message.text = text.clone();
                }
                if *ends_lease {
                    message.lease = None;
                } else if message.lease.is_none() {
                    message.lease = Some(message.receipt.number);
                }
                Answer::Changed(message.receipt.number)
            }
            Request::Delete { message } => match self.authorized(*message, broken) {
                Ok(place) => {
                    self.messages.remove(place);
                    Answer::Changed(0)
                }
                Err(kind) => Answer::Refused(kind),
            },
            Request::PutBlob { .. } | Request::DeleteBlob { .. } => self.write(request, broken),
            Request::GetBlob { name } => match self.blobs.get(name) {
                Some((_, Some(blob))) => Answer::Blob(blob.clone()),
                _ => Answer::Refused(StoreErrorKind::BlobNotFound),
            },
            Request::ListBlobs { prefix } => {
                let found = self.blobs(prefix).map(|(name, blob)| (Arc::clone(name), blob.clone()));
                Answer::Listed(found.collect())
            }
            Request::Fails { .. } => Answer::Fails(false),
            Request::Note(_) => Answer::Changed(0),
        }
    }

    fn put(&mut self, queue: &Arc<str>, text: &Content, broken: Option<Broken>) -> Answer {
        self.last += 1;
        let puts = self.puts.entry(Arc::clone(queue)).or_default();
        *puts = puts.saturating_add(1);
        let receipt = Receipt { id: self.last, number: 0 };
        if broken.is_some_and(|rule| matches!(rule, Broken::LosesPuts(of) if of == &**queue)) {
            return Answer::Put(receipt);
        }
        let (queue, text) = (Arc::clone(queue), text.clone());
        let message = Message { receipt, queue, text, deliveries: 0, lease: None, minute: self.minute };
        if broken.is_some_and(|rule| matches!(rule, Broken::DoublesPuts(of) if of == &*message.queue)) {
            self.last += 1;
            let receipt = Receipt { id: self.last, number: 0 };
            self.messages.push(Message { receipt, ..message.clone() });
        }
        self.messages.push(message);
        Answer::Put(receipt)
    }

    fn authorized(&self, receipt: Receipt, broken: Option<Broken>) -> Result<usize, StoreErrorKind> {
        let place = self.messages.iter().position(|message| message.receipt.id == receipt.id);
        let place = place.ok_or(StoreErrorKind::MessageNotFound)?;
        if self.messages[place].receipt != receipt && broken != Some(Broken::AcceptsAnyReceipt) {
            return Err(StoreErrorKind::PopReceiptMismatch);
        }
        Ok(place)
    }

    fn write(&mut self, request: &Request, broken: Option<Broken>) -> Answer {
        let minute = self.minute;
        match request {
            Request::PutBlob { name, data, metadata, condition } => {
                let (version, blob) = self.blobs.entry(Arc::clone(name)).or_default();
                let present = blob.as_ref().map(|blob| blob.version);
                let refusal = match (condition, present) {
                    (Condition::Absent, Some(_)) => Some(StoreErrorKind::BlobAlreadyExists),
                    (Condition::Version(wanted), present) if present != Some(*wanted) => {
                        Some(StoreErrorKind::ConditionNotMet)
                    }
                    _ => None,
                };
                if let Some(kind) = refusal {
                    return Answer::Refused(kind);
                }
                *version += 1;
                if !broken.is_some_and(|rule| matches!(rule, Broken::LosesBlobs(of) if name.contains(of))) {
                    let (data, metadata) = (data.clone(), metadata.clone());
                    *blob = Some(Blob { version: *version, data, metadata, minute });
                }
                Answer::Changed(*version)
            }
            Request::DeleteBlob { name } => match self.blobs.get_mut(name) {
                Some((_, blob)) if blob.is_some() => {
                    if broken != Some(Broken::KeepsBlobs) {
                        *blob = None;
                    }
                    Answer::Changed(0)
                }
                _ => Answer::Refused(StoreErrorKind::BlobNotFound),
            },
            _ => Answer::Changed(0),
        }
    }
}

impl Request {
    /// Returns whether the request may change the storage.
    pub fn changes(&self) -> bool {
        matches!(
            self,
            Self::Put { .. }
                | Self::Update { .. }
                | Self::Delete { .. }
                | Self::PutBlob { .. }
                | Self::DeleteBlob { .. }
        )
    }

    /// Returns whether the application, and not the storage, answers the request.
    pub fn is_of_application(&self) -> bool {
        matches!(self, Self::Note(_) | Self::Fails { .. })
    }
}
