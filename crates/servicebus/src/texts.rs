//! Texts that were saved under a lock. They are stored in blobs, because Service Bus cannot change a message.
//!
//! The blob begins with the number of the delivery that wrote it. An earlier delivery never overwrites the
//! text of a later one: a write requires that the blob is unchanged since it was read, and that its number is
//! not greater.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use tokio::sync::OnceCell;

use super::amqp::instant;
use super::connection_string::Namespace;
use super::held::HeldMessage;
use super::place::Place;
use jobqueue_storage::fast::hex::to_hex;
use jobqueue_storage::json_blob::is_raced;
use jobqueue_storage::runtime::Runtime;
use jobqueue_storage::{
    BlobName, BlobStore, Condition, ContainerName, ETag, Intercepted, MAX_TEXT_BYTES, OfPart, Operation,
    PutBlob, QueueName, StoreError, StoreErrorKind as Kind, get_if_present, has_any, log, put_creating,
};

const CONTAINER: &str = "jobqueue-servicebus";
/// The text is preceded by a number of up to ten digits, an optional time and a line break.
const MAX_TEXT_BLOB_BYTES: u64 = MAX_TEXT_BYTES as u64 + 60;
/// The time for which the note that texts are saved is valid. It is renewed while texts are saved.
const NOTE_TTL: Duration = Duration::from_secs(86_400);
/// The maximum number of rounds while other processes write the same blob.
pub(super) const MAX_ROUNDS: u32 = 5;

/// The blobs in which this adapter stores texts, metadata and its secret. Clones share the store.
#[derive(Clone)]
pub(super) struct QueueBlobs {
    pub(super) blobs: Arc<dyn BlobStore>,
    pub(super) runtime: Runtime,
    /// The namespace's part of its blob names.
    namespace: Arc<str>,
    /// The secret with which the framework seals what it writes into messages; set once it is known.
    pub(super) key: Arc<OnceCell<String>>,
}

jobqueue_storage::debug_fields! {
    QueueBlobs {}
}

/// A saved text, with the number of the delivery that saved it.
#[derive(Debug)]
pub(super) struct SavedText {
    /// The text, or why it cannot be read: damaged, or from a later version. `None` if the delivery was only
    /// counted.
    pub(super) text: Option<Result<String, String>>,
    pub(super) delivery: u32,
    /// The time before which the message must not be delivered, in milliseconds since 1970.
    not_before: Option<i64>,
    pub(super) tag: ETag,
}

impl SavedText {
    /// Reads `number[ time][\ntext]`.
    fn parse(data: &[u8], tag: ETag) -> Option<Self> {
        let data = std::str::from_utf8(data).ok()?;
        let (head, text) =
            data.split_once('\n').map_or((data, None), |(head, text)| (head, Some(Ok(text.to_owned()))));
        let mut numbers = head.split(' ');
        let delivery = numbers.next()?.parse().ok()?;
        let not_before = numbers.next().map(str::parse).transpose().ok()?;
        numbers.next().is_none().then_some(Self { text, delivery, not_before, tag })
    }

    /// Returns the time until which the message is held, if that time has not come yet.
    pub(super) fn held_until(&self, now: SystemTime) -> Option<SystemTime> {
        self.not_before.map(instant).filter(|until| now < *until)
    }
}

impl QueueBlobs {
    pub(super) fn new(blobs: Arc<dyn BlobStore>, runtime: Runtime, namespace: &Namespace) -> Self {
        // A throttled blob storage does not mean that the queues are throttled.
        let blobs = Intercepted::blobs(blobs, &Arc::new(OfPart));
        Self { blobs, runtime, namespace: namespace.name().into(), key: Arc::default() }
    }

    pub(super) fn with_store(&self, blobs: Arc<dyn BlobStore>) -> Self {
        Self { blobs, ..self.clone() }
    }

    /// Returns the common prefix of the names of this namespace's texts.
    pub(super) fn texts(&self) -> String {
        self.folder("texts")
    }

    fn folder(&self, kind: &str) -> String {
        format!("{kind}/{}/", self.namespace)
    }

    /// Returns the name of a blob of this namespace. The same storage may have blobs of another namespace
    /// with a queue of the same name.
    pub(super) fn blob(&self, kind: &str, name: impl fmt::Display) -> Result<BlobName, StoreError> {
        blob_name(&format!("{}{name}", self.folder(kind)))
    }

    pub(super) fn metadata_blob(&self, queue: &QueueName) -> Result<BlobName, StoreError> {
        self.blob("queues", queue)
    }

    fn note_of(&self, queue: &QueueName) -> Result<BlobName, StoreError> {
        self.blob("saves", Place::of(queue).queue)
    }

    /// Returns the name of the blob for a message. It contains the id as well, because numbers restart when a
    /// queue is recreated.
    pub(super) fn name_of(&self, held: &HeldMessage) -> Result<BlobName, StoreError> {
        let queue = Place::of(&held.queue).queue;
        let id = Sha256::digest(held.first_id.as_str());
        self.blob("texts", format_args!("{queue}/{}-{}", held.sequence, to_hex(&id[..16])))
    }

    /// Returns the text that was saved for a dead letter, and the tag of its blob; `None` if there is none.
    /// If it was saved under the other number of the message, changes `held` to that number.
    pub(super) async fn saved_text(
        &self,
        held: &mut HeldMessage,
    ) -> Result<Option<(Result<String, String>, ETag)>, StoreError> {
        let mut saved = self.read_saved(held).await?;
        if let (None, Some(other)) = (&saved, held.other_number()) {
            saved = self.read_saved(&other).await?;
            if saved.is_some() {
                *held = other;
            }
        }
        Ok(saved.and_then(|saved| Some((saved.text?, saved.tag))))
    }

    /// Returns the names of the blobs that a message may have.
    pub(super) fn names_of(&self, held: &HeldMessage) -> impl Iterator<Item = BlobName> + use<> {
        let other = held.other_number().map(|other| self.name_of(&other));
        [Some(self.name_of(held)), other].into_iter().flatten().flatten()
    }

    /// Writes a note, for all processes, that texts are saved for messages of a queue.
    pub(super) async fn note_saving(&self, queue: &QueueName) -> Result<(), StoreError> {
        put_creating(&*self.blobs, &self.note_of(queue)?, Bytes::new(), PutBlob::new()).await.map(drop)
    }

    /// Returns whether texts are saved for messages of a queue. Does not rely on the texts alone: there may
    /// be none now, and one for the next message. The note therefore outlives the texts.
    pub(super) async fn saves_texts(&self, queue: &QueueName) -> Result<bool, StoreError> {
        let note = self.note_of(queue)?;
        match self.blobs.blob_properties(&note).await {
            Ok(noted) if self.runtime.now().duration_since(noted.modified).unwrap_or_default() < NOTE_TTL => {
                Ok(true)
            }
            Ok(_) => {
                let prefix = format!("{}{}/", self.texts(), Place::of(queue).queue);
                has_any(&*self.blobs, note.container(), &prefix).await
            }
            Err(error) if matches!(error.kind(), Kind::BlobNotFound | Kind::ContainerNotFound) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn read_saved(&self, held: &HeldMessage) -> Result<Option<SavedText>, StoreError> {
        let name = self.name_of(held)?;
        let (tag, saved) = match get_if_present(&*self.blobs, &name, MAX_TEXT_BLOB_BYTES).await {
            Ok(Some(blob)) => {
                let tag = blob.properties.etag;
                (tag.clone(), SavedText::parse(&blob.data, tag))
            }
            Ok(None) => return Ok(None),
            // Written by another version. That is no outage, because it does not pass.
            Err(error) if error.kind() == Kind::TooLarge => {
                (self.blobs.blob_properties(&name).await?.etag, None)
            }
            Err(error) => return Err(error),
        };
        Ok(Some(saved.unwrap_or_else(|| {
            let unreadable = format!("the text in the blob {name} is not of this framework's form");
            SavedText { text: Some(Err(unreadable)), delivery: 0, not_before: None, tag }
        })))
    }

    /// Writes the blob of a message whose lock is held, unless a later delivery has written it.
    ///
    /// # Errors
    /// `LeaseExpired` if a later delivery has written it, `Unavailable` after repeated conflicts with other
    /// processes, and the errors of the blob storage.
    pub(super) async fn write(&self, held: &HeldMessage, data: &str) -> Result<ETag, StoreError> {
        let name = self.name_of(held)?;
        let data = Bytes::from(data.to_owned());
        let mut tag = held.saved.clone();
        for _ in 0..MAX_ROUNDS {
            let condition = tag.take().map_or(Condition::IfAbsent, Condition::IfMatch);
            match put_creating(&*self.blobs, &name, data.clone(), PutBlob::new().with_condition(condition))
                .await
            {
                Ok(properties) => return Ok(properties.etag),
                Err(error) if !is_raced(error.kind()) => return Err(error),
                Err(_) => {}
            }
            let present = self.read_saved(held).await?;
            if present.as_ref().is_some_and(|present| present.delivery > held.fence) {
                return Err(StoreError::new(Kind::LeaseExpired, "update message", &held.queue));
            }
            tag = present.map(|present| present.tag);
        }
        Err(StoreError::new(Kind::Unavailable, "update message", &held.queue)
            .with_detail("gave up after repeated conflicts: other processes keep updating this text"))
    }

    /// Deletes the text of a deleted message. A failure leaves an orphaned blob.
    pub(super) async fn forget(&self, held: &HeldMessage) {
        let Ok(name) = self.name_of(held) else { return };
        if held.saved.is_some()
            && let Err(error) = self.blobs.delete_blob(&name, None).await
        {
            log::debug!(queue = %held.queue, %error, "the saved text of a message was not removed");
        }
    }
}

/// Returns the name of the container of this adapter's blobs.
pub(super) fn container() -> Result<ContainerName, StoreError> {
    ContainerName::new(CONTAINER).map_err(refused)
}

/// Returns the name of a blob in [`container`].
pub(super) fn blob_name(name: &str) -> Result<BlobName, StoreError> {
    BlobName::new(container()?, name).map_err(refused)
}

fn refused(error: jobqueue_storage::NameError) -> StoreError {
    StoreError::new(Kind::InvalidInput, Operation::PutBlob.as_str(), CONTAINER).with_source(error)
}
