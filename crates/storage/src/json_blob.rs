//! A JSON document in a blob that many processes change: optimistic concurrency with the blob's tag. The
//! document is read, changed and written conditionally, and again if another process was faster.
//!
//! ```text
//!           ┌───────────── another process was faster, or no answer came ─────────────┐
//!           ▼                                                                         │
//! read (document, tag, marks) ──► change ──► keep: done                               │
//!                                     └────► write if the tag is still the same ──────┤
//!                                                                                     └──► written: done
//! ```
//!
//! Every write leaves a random mark in the blob's metadata, and carries the marks of the 31 writes before it.
//! After a write without an answer, the next read looks for the mark, which decides whether the write was
//! applied; the condition on the tag excludes that it is applied later. After 32 other
//! writes the mark is gone, and the change is made again.
//!
//! [`create_once`] writes a record in any format that never changes afterwards.
//!
//! The module knows blobs and conditions. It does not know the meaning of the documents.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::name::BlobName;
use crate::runtime::Runtime;
use crate::{
    Blob, BlobProperties, BlobStore, ETag, Metadata, PutBlob, StoreError, StoreErrorKind as Kind, Tries,
    get_if_present, put_creating,
};

#[cfg(test)]
mod tests;

/// The metadata entry that holds the marks of the latest writes, newest last.
const MARKS_ENTRY: &str = "writes";
/// The maximum number of marks in a blob, the mark of the latest write included.
const MAX_MARKS: usize = 32;
/// The maximum number of attempts while other processes are faster or answers are lost.
const MAX_TRIES: u32 = 40;
/// The maximum number of attempts that end in another retryable failure.
const MAX_REFUSED_TRIES: u32 = 5;
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// A document of type `T` in a blob.
#[derive(Debug, Clone)]
pub struct JsonBlob<T> {
    blobs: Arc<dyn BlobStore>,
    runtime: Runtime,
    name: BlobName,
    max_bytes: u64,
    metadata: fn(&T) -> Metadata,
    document: PhantomData<fn() -> T>,
}

/// A document as read or written.
#[derive(Debug, Clone)]
pub struct Version<T> {
    /// The document.
    pub value: T,
    /// The time of its last write, by the storage's clock.
    pub modified: SystemTime,
    tag: ETag,
    marks: Vec<String>,
}

impl<T> Version<T> {
    /// Returns the tag of the blob.
    pub fn tag(&self) -> &ETag {
        &self.tag
    }
}

/// The caller's knowledge of the document before a change.
#[derive(Debug)]
pub enum Known<T> {
    /// The caller knows nothing: the document is read first.
    Nothing,
    /// There was no document; by now there may be a document.
    Absent,
    /// The document was this version; by now it may be another.
    Version(Version<T>),
}

/// The result of a change.
#[derive(Debug)]
pub enum Edit<T, R> {
    /// The document stays as it is.
    Keep(R),
    /// The document is replaced by this value.
    Write(T, R),
}

/// The outcome of a change: its result and the document.
#[derive(Debug)]
pub struct Changed<T, R> {
    /// The result of the change that was kept or written.
    pub result: R,
    /// The document as last found or written; `None` if there is none.
    pub version: Option<Version<T>>,
    /// True if `version` is the document to which `result` belongs. False if the answer to the write was lost
    /// and another process has changed the document since.
    pub is_latest: bool,
}

impl<T, R> Changed<T, R> {
    fn latest(result: R, version: Option<Version<T>>) -> Self {
        Self { result, version, is_latest: true }
    }
}

impl<T> JsonBlob<T> {
    /// Returns the document in `name`, of at most `max_bytes`.
    pub fn new(blobs: &Arc<dyn BlobStore>, runtime: &Runtime, name: BlobName, max_bytes: u64) -> Self {
        let (blobs, runtime) = (Arc::clone(blobs), runtime.clone());
        Self { blobs, runtime, name, max_bytes, metadata: |_| Metadata::new(), document: PhantomData }
    }

    /// Returns the runtime of the document's storage.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    setters! {
        /// Makes every write set the metadata that `of` computes from the document.
        with_metadata(of: fn(&T) -> Metadata) => metadata;
    }

    /// Returns the blob's name.
    pub fn name(&self) -> &BlobName {
        &self.name
    }
}

impl<T: DeserializeOwned> JsonBlob<T> {
    /// Reads the document; returns `None` if there is none.
    ///
    /// # Errors
    /// The errors of the storage; [`Corrupt`](Kind::Corrupt) if the blob is not JSON of the type.
    pub async fn read(&self) -> Result<Option<Version<T>>, StoreError> {
        let found = get_if_present(&*self.blobs, &self.name, self.max_bytes).await?;
        found.map(|blob| self.parse(&blob)).transpose()
    }

    fn parse(&self, blob: &Blob) -> Result<Version<T>, StoreError> {
        let value = serde_json::from_slice(&blob.data).map_err(|e| {
            StoreError::new(Kind::Corrupt, "read record", &self.name)
                .with_detail(format!(
                    "a newer version of jobqueue wrote the record, or it is damaged at column {}: update this program, or delete the record",
                    e.column()
                ))
        })?;
        let marks = blob.properties.metadata.get(MARKS_ENTRY).unwrap_or_default();
        let marks = marks.split(' ').filter(|mark| !mark.is_empty()).map(str::to_owned).collect();
        let BlobProperties { modified, etag: tag, .. } = blob.properties.clone();
        Ok(Version { value, modified, tag, marks })
    }
}

impl<T: Serialize> JsonBlob<T> {
    /// Writes the document if there is none, without a mark, as [`create_once`] does.
    ///
    /// # Errors
    /// The errors of the storage; `TooLarge` if the document is larger than the maximum.
    pub async fn create(&self, value: &T, tries: Tries) -> Result<bool, StoreError> {
        let (data, metadata) = self.encode(value, &[])?;
        create_once(&*self.blobs, &self.name, data, metadata, tries).await
    }

    /// Writes the document unconditionally and without a mark: for a document that every writer would write
    /// the same, or whose last version counts. Returns the time of the write, by the storage's clock.
    ///
    /// # Errors
    /// The errors of the storage; `TooLarge` if the document is larger than the maximum.
    pub async fn replace(&self, value: &T, tries: Tries) -> Result<SystemTime, StoreError> {
        let (data, metadata) = self.encode(value, &[])?;
        let options = PutBlob::new().with_metadata(metadata);
        let put = || put_creating(&*self.blobs, &self.name, data.clone(), options.clone());
        Ok(tries.run(put).await?.modified)
    }

    fn encode(&self, value: &T, marks: &[String]) -> Result<(Bytes, Metadata), StoreError> {
        let data = serde_json::to_vec(value)
            .map_err(|e| StoreError::new(Kind::InvalidInput, "write record", &self.name).with_source(e))?;
        if data.len() as u64 > self.max_bytes {
            return Err(StoreError::new(Kind::TooLarge, "write record", &self.name));
        }
        let mut metadata = (self.metadata)(value);
        if !marks.is_empty() {
            metadata = metadata.with(MARKS_ENTRY, marks.join(" "));
        }
        Ok((Bytes::from(data), metadata))
    }

    async fn write(
        &self,
        value: &T,
        before: Option<ETag>,
        marks: &[String],
    ) -> Result<BlobProperties, StoreError> {
        let (data, metadata) = self.encode(value, marks)?;
        put_creating(&*self.blobs, &self.name, data, if_unchanged(before, metadata)).await
    }
}

impl<T: Serialize + DeserializeOwned + Clone> JsonBlob<T> {
    /// Changes the document, starting from the caller's version. The write is conditional on that version; if
    /// the document has changed since, it is read again and the change retried. A change that
    /// [keeps](Edit::Keep) the document does not check whether the known version is still current.
    ///
    /// `change` is called once for each attempt. It sees its own effect only if the answer to a write was
    /// lost and the document was changed 32 times or more before it was read again.
    ///
    /// # Errors
    /// The errors of the storage, from the last attempt; the error [is ambiguous](StoreError::is_ambiguous)
    /// if the change may have been applied. `ConditionNotMet` if other processes were faster every time.
    ///
    /// # Cancel safety
    /// If the future is dropped, the change is applied or not applied.
    pub async fn change<R>(
        &self,
        known: Known<T>,
        mut change: impl FnMut(Option<T>) -> Edit<T, R>,
    ) -> Result<Changed<T, R>, StoreError> {
        let mut known = match known {
            Known::Nothing => None,
            Known::Absent => Some(None),
            Known::Version(version) => Some(Some(version)),
        };
        let mut unanswered: Vec<(String, R)> = Vec::new();
        let mut attempts = Attempts::default();
        loop {
            let guessed = known.is_some();
            let before = match known.take() {
                Some(version) => version,
                None => match self.read().await {
                    Ok(version) => version,
                    Err(e) => {
                        attempts.again(e, !unanswered.is_empty(), &self.runtime).await?;
                        continue;
                    }
                },
            };
            if let Some((result, is_latest)) = take_applied(&mut unanswered, before.as_ref()) {
                return Ok(Changed { result, version: before, is_latest });
            }
            let (value, result) = match change(before.as_ref().map(|version| version.value.clone())) {
                Edit::Keep(result) => return Ok(Changed::latest(result, before)),
                Edit::Write(value, result) => (value, result),
            };
            let (mark, marks) = next_marks(before.as_ref(), &self.runtime);
            match self.write(&value, before.map(|version| version.tag), &marks).await {
                Ok(BlobProperties { modified, etag: tag, .. }) => {
                    let version = Some(Version { value, modified, tag, marks });
                    return Ok(Changed::latest(result, version));
                }
                Err(e) if guessed && is_raced(e.kind()) => {}
                Err(e) => {
                    if e.is_ambiguous() {
                        unanswered.push((mark, result));
                        // Read at once, before many other writes push the mark out.
                        if let Ok(version) = self.read().await
                            && let Some((result, is_latest)) = take_applied(&mut unanswered, version.as_ref())
                        {
                            return Ok(Changed { result, version, is_latest });
                        }
                    }
                    attempts.again(e, !unanswered.is_empty(), &self.runtime).await?;
                }
            }
        }
    }
}

/// Writes a blob in any format, once. Returns true if an answer confirms that this call wrote the blob. On
/// false, this call may still have written it: a write whose answer was lost may have left the blob that the
/// next attempt found.
///
/// # Errors
/// The errors of the storage.
pub async fn create_once(
    blobs: &dyn BlobStore,
    name: &BlobName,
    data: Bytes,
    metadata: Metadata,
    tries: Tries,
) -> Result<bool, StoreError> {
    let options = if_unchanged(None, metadata);
    match tries.run(|| put_creating(blobs, name, data.clone(), options.clone())).await {
        Ok(_) => Ok(true),
        Err(e) if matches!(e.kind(), Kind::BlobAlreadyExists | Kind::ConditionNotMet) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Returns the options of a write conditional on the version found, or on the blob's absence.
fn if_unchanged(before: Option<ETag>, metadata: Metadata) -> PutBlob {
    before.map_or_else(PutBlob::if_absent, PutBlob::if_match).with_metadata(metadata)
}

/// Returns the result of the unanswered write whose mark `version` has, and whether that write is the latest.
fn take_applied<T, R>(unanswered: &mut Vec<(String, R)>, version: Option<&Version<T>>) -> Option<(R, bool)> {
    let version = version?;
    let at = unanswered.iter().position(|(mark, _)| version.marks.contains(mark))?;
    let (mark, result) = unanswered.swap_remove(at);
    Some((result, version.marks.last() == Some(&mark)))
}

/// Returns a new mark, and all the marks that the next write carries.
fn next_marks<T>(before: Option<&Version<T>>, runtime: &Runtime) -> (String, Vec<String>) {
    let mark = format!("{:012x}", runtime.random_u64() >> 16);
    let former = before.map(|version| &*version.marks).unwrap_or_default();
    let kept = former.len().saturating_sub(MAX_MARKS - 1);
    let marks = former[kept..].iter().chain([&mark]).cloned().collect();
    (mark, marks)
}

/// Counts the attempts of one change, and waits between them.
#[derive(Debug, Default)]
struct Attempts {
    all: u32,
    refused: u32,
}

impl Attempts {
    /// Waits before the next attempt.
    ///
    /// # Errors
    /// Returns `error` if no further attempt follows; it is ambiguous if any write was not answered.
    async fn again(
        &mut self,
        error: StoreError,
        unanswered: bool,
        runtime: &Runtime,
    ) -> Result<(), StoreError> {
        self.all += 1;
        let raced = is_raced(error.kind());
        let raced_or_lost = raced || error.is_ambiguous();
        self.refused += u32::from(!raced_or_lost);
        let retryable = raced_or_lost || error.is_retryable();
        if !retryable || self.all >= MAX_TRIES || self.refused >= MAX_REFUSED_TRIES {
            return Err(if unanswered { error.with_ambiguous(true) } else { error });
        }
        let longest = Duration::from_millis(2 << self.all.min(8)).min(MAX_PAUSE);
        let pause = runtime.jitter(longest, 0.2..=1.0);
        let asked = error.retry_after().filter(|_| !raced).unwrap_or_default().min(MAX_PAUSE * 4);
        tokio::time::sleep(pause.max(asked)).await;
        Ok(())
    }
}

/// Returns whether an error means that another process was faster, or briefly holds the blob.
pub fn is_raced(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::ConditionNotMet | Kind::BlobAlreadyExists | Kind::BlobNotFound | Kind::LeaseIdMissing
    )
}
