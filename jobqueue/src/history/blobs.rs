//! The journal in blobs, for storages without one of their own.
//!
//! A segment is a blob of JSON lines that one worker writes: it rewrites the blob with more lines until it is full or an hour old,
//! and then begins another. The metadata of the blob has the first and the last end, and the number of jobs by outcome, so that a
//! listing is enough to find the segments that a search must read. Nothing else is indexed: a search by id, key or kind reads
//! all segments in its range of time. An id of this framework has the time at which it was made, which limits that range.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use tokio::time::Instant;
use uuid::Uuid;

use super::line::{parse_lines, write_line};
use super::writer::refuses_entries;
use crate::runtime::Runtime;
use crate::storage::rules::micros::{from_micros, to_micros};
use crate::storage::{
    BlobName, BlobProperties, BlobStore, ContainerName, JournalEntry, JournalPage, JournalQuery,
    JournalStore, MAX_JOURNAL_SEARCH, Metadata, Operation, PutBlob, StoreError, StoreErrorKind, list_all,
    put_creating,
};

/// The container of the segments.
const CONTAINER: &str = "jobqueue-history";
/// The number of bytes from which a segment is full.
const FULL: usize = 4 * 1024 * 1024;
/// The most bytes of a segment, if one append does not have more.
const MOST: usize = 8 * 1024 * 1024;
/// The most bytes of a segment that is read.
const MAX_BYTES: u64 = 32 * 1024 * 1024;
/// The time after which a worker begins another segment.
const LIFE: Duration = Duration::from_secs(3_600);
/// The most segments that a search reads.
const MAX_SEGMENTS: usize = 500;
/// The number of segments that are read at once.
const PARALLEL: usize = 4;
/// The number by which clocks may differ: a job may have ended so long before the time at which its id was made.
const SKEW: Duration = Duration::from_secs(3_600);

/// The metadata of a segment: its first and last end in microseconds since 1970, and before the names of outcomes the number of jobs.
const FIRST: &str = "first";
const LAST: &str = "last";
const COUNT: &str = "jobs_";

/// The journal in the blobs of a storage, and the segment that this worker writes.
#[derive(Debug)]
pub(super) struct BlobJournal {
    blobs: Arc<dyn BlobStore>,
    runtime: Runtime,
    open: tokio::sync::Mutex<Option<OpenSegment>>,
}

impl BlobJournal {
    pub(super) fn new(blobs: Arc<dyn BlobStore>, runtime: Runtime) -> Self {
        Self { blobs, runtime, open: tokio::sync::Mutex::default() }
    }

    async fn segments(&self) -> Result<Vec<Segment>, StoreError> {
        let listed = list_all(&*self.blobs, &container(Operation::ListBlobs)?, "").await?;
        Ok(listed.into_iter().map(|(blob, properties)| Segment::new(blob, properties)).collect())
    }

    /// Returns the entries of a segment that the query selects, none if it was removed meanwhile; `None` if it is too large to be read.
    async fn read(
        &self,
        segment: &Segment,
        query: &JournalQuery,
    ) -> Result<Option<Vec<JournalEntry>>, StoreError> {
        match self.blobs.get_blob(&segment.blob, MAX_BYTES).await {
            Ok(blob) => Ok(Some(parse_lines(&blob.data, query))),
            Err(e) if e.kind() == StoreErrorKind::BlobNotFound => Ok(Some(Vec::new())),
            Err(e) if e.kind() == StoreErrorKind::TooLarge => {
                tracing::warn!(segment = %segment.blob, "a segment of the journal is too large to be searched");
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }
}

#[async_trait]
impl JournalStore for BlobJournal {
    async fn append(&self, entries: Arc<[JournalEntry]>) -> Result<(), StoreError> {
        let mut lines = Vec::new();
        entries.iter().for_each(|entry| write_line(entry, &mut lines));
        let mut open = self.open.lock().await;
        open.take_if(|segment| segment.is_full(lines.len()));
        // A segment keeps its name when a write fails: what it wrote is overwritten.
        let segment = match &mut *open {
            Some(segment) => segment,
            none => none.insert(OpenSegment::begin(&entries, &self.runtime)?),
        };
        let summary = segment.summary.with(&entries);
        let data = segment.with_lines(&lines);
        let options = PutBlob::new().with_metadata(summary.metadata());
        match put_creating(&*self.blobs, &segment.blob, data, options).await {
            Ok(_) => {
                segment.written = segment.data.len();
                segment.summary = summary;
                Ok(())
            }
            Err(error) => {
                if refuses_entries(&error) {
                    *open = None;
                }
                Err(error)
            }
        }
    }

    async fn search(&self, query: &JournalQuery) -> Result<JournalPage, StoreError> {
        let range = range(query);
        let mut segments = self.segments().await?;
        segments.retain(|segment| segment.may_hold(query, &range));
        segments.sort_by_key(|segment| std::cmp::Reverse(segment.last));
        let mut search = Search {
            query,
            entries: Vec::new(),
            is_cut: false,
            unread: None,
            read: 0,
            began: Instant::now(),
        };
        let reads: Vec<_> = segments.iter().map(|segment| self.read(segment, query)).collect();
        let mut reads = stream::iter(reads).buffered(PARALLEL);
        for segment in &segments {
            if search.is_over(segment.last) {
                return Ok(search.page(Some(segment.last)));
            }
            match reads.next().await.transpose()?.flatten() {
                Some(entries) => search.add(entries),
                None => search.skip(segment),
            }
        }
        Ok(search.page(None))
    }

    async fn expire(&self, before: SystemTime) -> Result<(), StoreError> {
        for segment in self.segments().await? {
            if segment.last < to_micros(before) {
                match self.blobs.delete_blob(&segment.blob, None).await {
                    Err(e) if e.kind() != StoreErrorKind::BlobNotFound => return Err(e),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

fn container(operation: Operation) -> Result<ContainerName, StoreError> {
    ContainerName::new(CONTAINER).map_err(|e| {
        StoreError::new(StoreErrorKind::InvalidInput, operation.as_str(), CONTAINER).with_source(e)
    })
}

/// The segment to which a worker adds entries.
#[derive(Debug)]
struct OpenSegment {
    blob: BlobName,
    began: Instant,
    /// The lines. The storage has acknowledged the first `written` bytes, which `summary` describes.
    data: Bytes,
    written: usize,
    summary: Summary,
}

impl OpenSegment {
    /// Returns an empty segment. Its name begins with a day, for people who look at the container.
    fn begin(entries: &[JournalEntry], runtime: &Runtime) -> Result<Self, StoreError> {
        let ended =
            entries.first().map(|entry| entry.ended).and_then(|ended| jiff::Timestamp::try_from(ended).ok());
        let day = ended.unwrap_or_default().strftime("%Y%m%d");
        let name = format!("{day}/{}", runtime.uuid_v4().simple());
        let blob = BlobName::new(container(Operation::PutBlob)?, name).map_err(|e| {
            StoreError::new(StoreErrorKind::InvalidInput, Operation::PutBlob.as_str(), CONTAINER)
                .with_source(e)
        })?;
        let summary = Summary { first: i64::MAX, last: i64::MIN, counts: BTreeMap::new() };
        Ok(Self { blob, began: Instant::now(), data: Bytes::new(), written: 0, summary })
    }

    /// Returns whether further lines of this length begin another segment.
    fn is_full(&self, further: usize) -> bool {
        let has_room = self.written == 0 || self.written + further <= MOST;
        self.written >= FULL || !has_room || self.began.elapsed() >= LIFE
    }

    /// Adds lines in place of those that were not acknowledged, and returns all. Copies the others only if the storage still holds
    /// them.
    fn with_lines(&mut self, lines: &[u8]) -> Bytes {
        let mut data = BytesMut::from(std::mem::take(&mut self.data));
        data.truncate(self.written);
        data.extend_from_slice(lines);
        self.data = data.freeze();
        self.data.clone()
    }
}

/// The metadata of a segment: facts about its lines.
#[derive(Debug, Clone)]
struct Summary {
    first: i64,
    last: i64,
    counts: BTreeMap<Arc<str>, u64>,
}

impl Summary {
    fn with(&self, entries: &[JournalEntry]) -> Self {
        let mut grown = self.clone();
        for entry in entries {
            let ended = to_micros(entry.ended);
            grown.first = grown.first.min(ended);
            grown.last = grown.last.max(ended);
            *grown.counts.entry(Arc::clone(&entry.outcome)).or_default() += 1;
        }
        grown
    }

    fn metadata(&self) -> Metadata {
        let range = Metadata::new().with(FIRST, self.first.to_string()).with(LAST, self.last.to_string());
        self.counts
            .iter()
            .fold(range, |all, (outcome, jobs)| all.with(format!("{COUNT}{outcome}"), jobs.to_string()))
    }
}

/// A segment in the storage.
struct Segment {
    blob: BlobName,
    first: i64,
    last: i64,
    metadata: Metadata,
}

impl Segment {
    /// Returns the segment in a blob. A blob without the metadata of a segment counts as old as its last write.
    fn new(blob: BlobName, properties: BlobProperties) -> Self {
        let metadata = properties.metadata;
        let time = |name| metadata.get(name).and_then(|micros| micros.parse().ok());
        let (first, last) = (time(FIRST), time(LAST));
        let last = last.unwrap_or_else(|| to_micros(properties.modified));
        Self { blob, first: first.unwrap_or(i64::MIN), last, metadata }
    }

    fn may_hold(&self, query: &JournalQuery, range: &RangeInclusive<i64>) -> bool {
        let has_outcome = |outcome: &String| self.metadata.get(&format!("{COUNT}{outcome}")).is_some();
        self.last >= *range.start()
            && self.first <= *range.end()
            && self.metadata.get(LAST).is_some()
            && query.outcome.as_ref().is_none_or(has_outcome)
    }
}

/// Returns the range of ends of a query, in microseconds since 1970.
fn range(query: &JournalQuery) -> RangeInclusive<i64> {
    let made = query.id.as_deref().and_then(made).and_then(|made| made.checked_sub(SKEW));
    let since = query.since.max(made);
    since.map_or(i64::MIN, to_micros)..=query.until.map_or(i64::MAX, to_micros)
}

/// Returns the time at which an id was made, if it is a UUID of version 7.
fn made(id: &str) -> Option<SystemTime> {
    let uuid = Uuid::try_parse(id).ok().filter(|uuid| uuid.get_version_num() == 7)?;
    let (seconds, nanos) = uuid.get_timestamp()?.to_unix();
    SystemTime::UNIX_EPOCH.checked_add(Duration::new(seconds, nanos))
}

struct Search<'a> {
    query: &'a JournalQuery,
    /// The newest, the newest first: as many as are wanted, and those that ended at the same time as the last of them.
    entries: Vec<JournalEntry>,
    /// True if there are older ones.
    is_cut: bool,
    /// The time before the earliest end of a segment that could not be read.
    unread: Option<i64>,
    read: usize,
    began: Instant,
}

impl Search<'_> {
    /// Returns whether the search ends before a segment with this last end.
    fn is_over(&self, last: i64) -> bool {
        // The next search begins with the segments of this moment, so it must come past them.
        let comes_further = self.query.until.is_none_or(|until| to_micros(until) > last);
        let is_full = self.oldest().is_some_and(|oldest| oldest > last);
        is_full || comes_further && (self.read >= MAX_SEGMENTS || self.began.elapsed() >= MAX_JOURNAL_SEARCH)
    }

    /// Returns the end of the oldest entry that is wanted, if there are enough.
    fn oldest(&self) -> Option<i64> {
        self.entries.get(self.query.limit.saturating_sub(1)).map(|entry| to_micros(entry.ended))
    }

    fn add(&mut self, entries: Vec<JournalEntry>) {
        self.read += 1;
        self.entries.extend(entries);
        self.entries.sort_by_key(|entry| std::cmp::Reverse((entry.ended, entry.number)));
        // A write that was repeated under another name.
        self.entries.dedup_by_key(|entry| (entry.ended, entry.number));
        if let Some(oldest) = self.oldest() {
            let wanted = self.entries.partition_point(|entry| to_micros(entry.ended) >= oldest);
            self.is_cut |= wanted < self.entries.len();
            self.entries.truncate(wanted);
        }
    }

    /// Ends the page before a segment that cannot be read. A further search continues behind it.
    fn skip(&mut self, segment: &Segment) {
        self.read += 1;
        self.unread = self.unread.max(Some(segment.first.saturating_sub(1)));
    }

    /// Returns the page of a search that has not read what ended at `unread` or earlier.
    fn page(mut self, unread: Option<i64>) -> JournalPage {
        let cut = self.oldest().filter(|_| self.is_cut).map(|oldest| oldest.saturating_sub(1));
        let searched_to = cut.max(unread).max(self.unread);
        if let Some(searched_to) = searched_to {
            self.entries.retain(|entry| to_micros(entry.ended) > searched_to);
        }
        JournalPage::new(self.entries).with_searched_to(searched_to.map(from_micros))
    }
}
