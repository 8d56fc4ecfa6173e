//! The journal in blobs, for storages without their own journal.
//!
//! A segment is a blob of JSON lines that one worker writes. The worker rewrites the blob with more lines
//! until the segment is full, an hour old, or the day ends, and then begins another segment. The name of a
//! segment begins with the day, in UTC, on which all of its jobs ended. A search lists the days of its range,
//! newest first, and stops when it has enough entries; the removal of old segments lists only the old days.
//! The metadata of the blob contains the end times of the first and the last job, and the number of jobs by
//! outcome: a listing is enough to find the segments that a search must read. No other field is indexed: a
//! search by id, key or kind reads all segments in its time range. An id of this framework contains its
//! creation time, which limits that range.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use tokio::time::Instant;

use super::line::{parse_lines, write_line};
use super::search::{JOURNAL_CLOCK_SKEW, Search, range};
use super::writer::refuses_entries;
use crate::runtime::Runtime;
use crate::storage::rules::micros::{from_micros, to_micros};
use crate::storage::{
    BlobName, BlobPages, BlobProperties, BlobStore, ContainerName, JournalEntry, JournalPage, JournalQuery,
    JournalStore, Metadata, Operation, PutBlob, StoreError, StoreErrorKind, delete_if_present, list_all,
    put_creating,
};

const CONTAINER: &str = "jobqueue-history";
/// The size in bytes from which a segment is full.
const FULL_SEGMENT_BYTES: usize = 4 * 1024 * 1024;
/// The maximum size in bytes of a segment, unless a single append is larger.
const MAX_SEGMENT_BYTES: usize = 8 * 1024 * 1024;
/// The maximum size in bytes of a segment that a search reads.
const MAX_READ_BYTES: u64 = 32 * 1024 * 1024;
/// The age at which a worker begins another segment.
const MAX_SEGMENT_AGE: Duration = Duration::from_secs(3_600);
/// The number of segments that a search reads concurrently.
const CONCURRENT_READS: usize = 4;
/// The number of days up to which a search lists them at once. For more days, it first checks whether one
/// page lists the whole journal.
const DAYS_LISTED_FIRST: i64 = 2;
const DAY_MICROS: i64 = 86_400 * 1_000_000;

/// The metadata key of the end time of a segment's first job, in microseconds since 1970.
const FIRST_END: &str = "first";
/// The metadata key of the end time of its last job.
const LAST_END: &str = "last";
/// The prefix of the metadata keys of the numbers of jobs; the name of an outcome follows.
const COUNT_PREFIX: &str = "jobs_";

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

    /// Returns the segments of a part of the journal that may hold entries for the query, newest first.
    async fn segments(
        &self,
        part: JournalPart,
        query: &JournalQuery,
        range: &RangeInclusive<i64>,
    ) -> Result<Vec<Segment>, StoreError> {
        let container = container(Operation::ListBlobs)?;
        let mut found = match part {
            JournalPart::Whole(segments) => segments,
            JournalPart::Day { prefix, .. } => {
                segments_of(list_all(&*self.blobs, &container, &prefix).await?.blobs)
            }
        };
        found.retain(|segment| segment.may_hold(query, range));
        found.sort_by_key(|segment| std::cmp::Reverse(segment.last));
        Ok(found)
    }

    /// Returns the parts of the journal that may contain jobs of a time range, newest first: its days, or the
    /// whole journal if one page lists it.
    async fn parts(&self, range: &RangeInclusive<i64>) -> Result<Vec<JournalPart>, StoreError> {
        let now = self.runtime.now();
        // No job has ended later than this, by any clock.
        let last = to_micros(now.checked_add(JOURNAL_CLOCK_SKEW).unwrap_or(now)).min(*range.end());
        let (oldest, newest) = (range.start().div_euclid(DAY_MICROS).max(0), last.div_euclid(DAY_MICROS));
        if newest - oldest < DAYS_LISTED_FIRST {
            return Ok(days(oldest..=newest, ""));
        }
        let container = container(Operation::ListBlobs)?;
        let mut pages = BlobPages::new(&*self.blobs, &container, "");
        loop {
            let page = pages.next(None).await?.unwrap_or_default();
            if page.next.is_none() {
                let named =
                    |(name, found)| BlobName::new(container.clone(), name).ok().map(|blob| (blob, found));
                let segments = segments_of(page.blobs.into_iter().filter_map(named).collect());
                return Ok(vec![JournalPart::Whole(segments)]);
            }
            if let Some((first, _)) = page.blobs.first() {
                return Ok(days(oldest..=newest, first));
            }
        }
    }

    /// Returns the entries of a segment that the query selects. Returns no entries if the segment has been
    /// removed, and `None` if it is too large to be read.
    async fn read(
        &self,
        segment: &Segment,
        query: &JournalQuery,
    ) -> Result<Option<Vec<JournalEntry>>, StoreError> {
        match self.blobs.get_blob(&segment.blob, MAX_READ_BYTES).await {
            Ok(blob) => Ok(Some(parse_lines(&blob.data, query))),
            Err(e) if e.kind() == StoreErrorKind::BlobNotFound => Ok(Some(Vec::new())),
            Err(e) if e.kind() == StoreErrorKind::TooLarge => {
                crate::log::warn!(segment = %segment.blob, "a segment of the journal is too large to be searched");
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }
}

#[async_trait]
impl JournalStore for BlobJournal {
    async fn append(&self, entries: Arc<[JournalEntry]>) -> Result<(), StoreError> {
        let mut open = self.open.lock().await;
        for of_day in entries.chunk_by(|entry, next| day(entry.ended) == day(next.ended)) {
            self.append_to(&mut open, of_day).await?;
        }
        Ok(())
    }

    async fn search(&self, query: &JournalQuery) -> Result<JournalPage, StoreError> {
        let range = range(query);
        let mut search = Search::new(query);
        for part in self.parts(&range).await? {
            if let JournalPart::Day { last, .. } = part
                && search.is_over(last)
            {
                return Ok(search.page(Some(last)));
            }
            let segments = self.segments(part, query, &range).await?;
            let reads: Vec<_> = segments.iter().map(|segment| self.read(segment, query)).collect();
            let mut reads = stream::iter(reads).buffered(CONCURRENT_READS);
            for segment in &segments {
                if search.is_over(segment.last) {
                    return Ok(search.page(Some(segment.last)));
                }
                match reads.next().await.transpose()?.flatten() {
                    Some(entries) => search.add(entries),
                    None => search.skip(segment.first),
                }
            }
        }
        Ok(search.page(None))
    }

    async fn expire(&self, kept: Duration) -> Result<(), StoreError> {
        let container = container(Operation::ListBlobs)?;
        let mut pages = BlobPages::new(&*self.blobs, &container, "");
        while let Some(page) = pages.next(None).await? {
            let now = page.now.unwrap_or_else(|| self.runtime.now());
            let Some(before) = now.checked_sub(kept) else { return Ok(()) };
            // A listing is in order of names, and thus of days.
            let is_over = page.blobs.last().is_some_and(|(name, _)| *name > format!("{}/~", day(before)));
            for (name, properties) in page.blobs {
                let Ok(blob) = BlobName::new(container.clone(), name) else { continue };
                let segment = Segment::new(blob, properties);
                if segment.last < to_micros(before) {
                    delete_if_present(&*self.blobs, &segment.blob).await?;
                }
            }
            if is_over {
                break;
            }
        }
        Ok(())
    }
}

impl BlobJournal {
    /// Writes entries of one day.
    async fn append_to(
        &self,
        open: &mut Option<OpenSegment>,
        entries: &[JournalEntry],
    ) -> Result<(), StoreError> {
        let mut lines = Vec::new();
        entries.iter().for_each(|entry| write_line(entry, &mut lines));
        let day = entries.first().map(|entry| day(entry.ended)).unwrap_or_default();
        open.take_if(|segment| segment.day != day || segment.is_full(lines.len()));
        // A segment keeps its name when a write fails, so that the next write overwrites a partial success.
        let segment = match &mut *open {
            Some(segment) => segment,
            none => none.insert(OpenSegment::begin(day, &self.runtime)?),
        };
        let summary = segment.summary.with(entries);
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
}

fn container(operation: Operation) -> Result<ContainerName, StoreError> {
    ContainerName::new(CONTAINER).map_err(|e| {
        StoreError::new(StoreErrorKind::InvalidInput, operation.as_str(), CONTAINER).with_source(e)
    })
}

/// The segment that a worker currently writes.
#[derive(Debug)]
struct OpenSegment {
    blob: BlobName,
    /// The day in its name, on which its jobs ended.
    day: String,
    began: Instant,
    /// The lines. The storage has acknowledged the first `written` bytes; `summary` describes these.
    data: Bytes,
    written: usize,
    summary: Summary,
}

impl OpenSegment {
    /// Returns an empty segment for jobs that ended on `day`.
    fn begin(day: String, runtime: &Runtime) -> Result<Self, StoreError> {
        let name = format!("{day}/{}", runtime.uuid_v4().simple());
        let blob = BlobName::new(container(Operation::PutBlob)?, name).map_err(|e| {
            StoreError::new(StoreErrorKind::InvalidInput, Operation::PutBlob.as_str(), CONTAINER)
                .with_source(e)
        })?;
        let summary = Summary { first: i64::MAX, last: i64::MIN, counts: BTreeMap::new() };
        Ok(Self { blob, day, began: Instant::now(), data: Bytes::new(), written: 0, summary })
    }

    /// Returns whether `further` more bytes of lines must begin another segment.
    fn is_full(&self, further: usize) -> bool {
        let has_room = self.written == 0 || self.written + further <= MAX_SEGMENT_BYTES;
        self.written >= FULL_SEGMENT_BYTES || !has_room || self.began.elapsed() >= MAX_SEGMENT_AGE
    }

    /// Replaces the unacknowledged lines, and returns the whole segment. Copies the acknowledged lines only
    /// if the storage still holds a reference to them.
    fn with_lines(&mut self, lines: &[u8]) -> Bytes {
        let mut data = BytesMut::from(std::mem::take(&mut self.data));
        data.truncate(self.written);
        data.extend_from_slice(lines);
        self.data = data.freeze();
        self.data.clone()
    }
}

/// A summary of a segment's lines, for its metadata.
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
        let range =
            Metadata::new().with(FIRST_END, self.first.to_string()).with(LAST_END, self.last.to_string());
        self.counts.iter().fold(range, |all, (outcome, jobs)| {
            all.with(format!("{COUNT_PREFIX}{outcome}"), jobs.to_string())
        })
    }
}

#[derive(Debug)]
struct Segment {
    blob: BlobName,
    first: i64,
    last: i64,
    metadata: Metadata,
}

impl Segment {
    /// Returns the segment in a blob. If the metadata of a segment is missing, the time of the last write
    /// counts as the end of its last job.
    fn new(blob: BlobName, properties: BlobProperties) -> Self {
        let metadata = properties.metadata;
        let time = |name| metadata.get(name).and_then(|micros| micros.parse().ok());
        let (first, last) = (time(FIRST_END), time(LAST_END));
        let last = last.unwrap_or_else(|| to_micros(properties.modified));
        Self { blob, first: first.unwrap_or(i64::MIN), last, metadata }
    }

    fn may_hold(&self, query: &JournalQuery, range: &RangeInclusive<i64>) -> bool {
        let has_outcome = |outcome: &String| self.metadata.get(&format!("{COUNT_PREFIX}{outcome}")).is_some();
        self.last >= *range.start()
            && self.first <= *range.end()
            && self.metadata.get(LAST_END).is_some()
            && query.outcome.as_ref().is_none_or(has_outcome)
    }
}

/// Returns the day of a time in UTC, as in the names of segments: `20261122`.
fn day(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time).unwrap_or_default().strftime("%Y%m%d").to_string()
}

/// A part of the journal that one listing returns.
#[derive(Debug)]
enum JournalPart {
    Whole(Vec<Segment>),
    Day {
        prefix: String,
        /// The last microsecond of the day.
        last: i64,
    },
}

fn segments_of(listed: Vec<(BlobName, BlobProperties)>) -> Vec<Segment> {
    listed.into_iter().map(|(blob, properties)| Segment::new(blob, properties)).collect()
}

/// Returns the days with these numbers since 1970, newest first, back to the day of the journal's first name.
fn days(numbers: RangeInclusive<i64>, first_name: &str) -> Vec<JournalPart> {
    let first_day = first_name.split('/').next().unwrap_or_default();
    let days = numbers.rev().map(|number| (number, day(from_micros(number * DAY_MICROS))));
    days.take_while(|(_, day)| **day >= *first_day)
        .map(|(number, day)| JournalPart::Day {
            prefix: format!("{day}/"),
            last: (number + 1).saturating_mul(DAY_MICROS) - 1,
        })
        .collect()
}
