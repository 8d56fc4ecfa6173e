//! Finds ended jobs in the journals of all workers, the newest first.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::time::Instant;

use super::MAX_BYTES;
use super::chunk::time;
use super::names::{Segment, parse_stamp, segments, stamp};
use super::query::{Hit, Query};
use super::record::HistoryRecord;
use super::summary::may_hold;
use crate::error::Error;
use crate::name::BlobName;
use crate::storage::{BlobStore, Storage, StoreErrorKind};

/// The most segments that a search reads.
const MOST_SEGMENTS: usize = 1_000;
/// The time after which a search stops, and tells how far it has come.
const MOST_TIME: Duration = Duration::from_secs(5);
/// The number of summaries that are read at once.
const SUMMARIES: usize = 32;
/// The number of segments that are read at once.
const SEGMENTS: usize = 4;
/// The number by which clocks of senders and workers may differ: a job may have ended so long before its id says that it was made.
const SKEW: Duration = Duration::from_secs(86_400);

/// The jobs that a search has found.
#[derive(Debug)]
pub(crate) struct Found {
    /// The jobs, the newest first.
    pub(crate) jobs: Vec<HistoryRecord>,
    /// The time after which these are all, and until which a search finds the others; `None` if there are no others.
    pub(crate) until: Option<SystemTime>,
}

/// Returns the newest ended jobs that the query selects. Nothing that ended at `until` or earlier is among them, so that the next search
/// does not find it again; unless it has the id that is wanted.
pub(crate) async fn search(storage: &Storage, query: &Query) -> Result<Found, Error> {
    let blobs = &**storage.blobs();
    let mut segments = segments(blobs).await?;
    segments.retain(|segment| is_in_span(query, segment));
    segments.sort_by(|one, two| (&two.last, &two.blob.name()).cmp(&(&one.last, &one.blob.name())));
    let mut search = Search { blobs, query, hits: Vec::new(), is_cut: false, read: 0, began: Instant::now() };
    let mut unread = None;
    for group in segments.chunks(SUMMARIES) {
        unread = match &group[0].last {
            last if search.is_over(last) => Some(last.clone()),
            _ => search.read(group).await?,
        };
        if unread.is_some() {
            break;
        }
    }
    Ok(search.found(unread.as_deref().and_then(parse_stamp)))
}

/// Returns whether a segment may hold jobs of the times that are meant.
fn is_in_span(query: &Query, segment: &Segment) -> bool {
    let made = query.id().and_then(|id| id.made()).and_then(|made| made.checked_sub(SKEW));
    let is_new_enough = |since: SystemTime| segment.last >= stamp(since);
    query.since.is_none_or(is_new_enough)
        && made.is_none_or(is_new_enough)
        && query.until.is_none_or(|until| segment.first() <= &*stamp(until))
}

struct Search<'a> {
    blobs: &'a dyn BlobStore,
    query: &'a Query,
    /// The newest, at most as many as are wanted.
    hits: Vec<Hit>,
    /// True if some were found that are older.
    is_cut: bool,
    read: usize,
    began: Instant,
}

impl Search<'_> {
    /// Reads those of these segments that may hold something. Returns the last moment of the first that was not read, if the search ends.
    async fn read(&mut self, segments: &[Segment]) -> Result<Option<String>, Error> {
        let candidates = self.candidates(segments).await?;
        let reads: Vec<_> = candidates.into_iter().map(|segment| read(self.blobs, segment)).collect();
        let mut reads = std::pin::pin!(stream::iter(reads).buffered(SEGMENTS));
        while let Some(read) = reads.next().await {
            let (segment, data) = read?;
            if self.is_over(&segment.last) {
                return Ok(Some(segment.last.clone()));
            }
            self.read += 1;
            self.add(&data.unwrap_or_default());
        }
        Ok(None)
    }

    /// Returns the segments that may hold something, as their summaries tell.
    async fn candidates<'s>(&self, segments: &'s [Segment]) -> Result<Vec<&'s Segment>, Error> {
        if !self.query.is_narrow() {
            return Ok(segments.iter().collect());
        }
        let looks: Vec<_> = segments.iter().map(|segment| self.look(segment)).collect();
        let looks: Vec<_> = stream::iter(looks).buffered(SUMMARIES).collect().await;
        looks.into_iter().filter_map(Result::transpose).collect()
    }

    async fn look<'s>(&self, segment: &'s Segment) -> Result<Option<&'s Segment>, Error> {
        let Some(summary) = &segment.summary else { return Ok(Some(segment)) };
        let summary = get(self.blobs, summary).await?;
        let may_hold = summary.is_none_or(|summary| may_hold(&summary, self.query));
        Ok(may_hold.then_some(segment))
    }

    /// Returns whether the search ends before a segment with this last moment.
    fn is_over(&self, last: &str) -> bool {
        let is_full = self.least().is_some_and(|least| *stamp(time(least)) > *last);
        // The next search would begin with the same segments.
        let goes_on = self.query.until.is_none_or(|until| *stamp(until) > *last);
        is_full || (goes_on && (self.read >= MOST_SEGMENTS || self.began.elapsed() >= MOST_TIME))
    }

    /// Returns the end of the oldest job that is wanted, if enough were found.
    fn least(&self) -> Option<i64> {
        self.hits.get(self.query.limit.saturating_sub(1)).map(|(ended, _)| *ended)
    }

    /// Adds the jobs of a segment that are meant.
    fn add(&mut self, data: &[u8]) {
        let (hits, is_cut) = self.query.select(data, self.least().unwrap_or(i64::MIN));
        self.hits.extend(hits);
        self.hits.sort_by_key(|(ended, _)| std::cmp::Reverse(*ended));
        let wanted = self
            .least()
            .map_or(self.hits.len(), |least| self.hits.partition_point(|(ended, _)| *ended >= least));
        self.is_cut |= is_cut || wanted < self.hits.len();
        self.hits.truncate(wanted);
    }

    /// Returns the result of a search that has not read what ended at `unread` or earlier.
    fn found(mut self, unread: Option<SystemTime>) -> Found {
        let cut = self.hits.last().filter(|_| self.is_cut).map(|(ended, _)| time(ended.saturating_sub(1)));
        let until = cut.max(unread);
        if let Some(until) = until.filter(|_| self.query.id.is_none()) {
            self.hits.retain(|(ended, _)| time(*ended) > until);
        }
        Found { jobs: self.hits.into_iter().map(|(_, record)| record).collect(), until }
    }
}

async fn read<'s>(
    blobs: &dyn BlobStore,
    segment: &'s Segment,
) -> Result<(&'s Segment, Option<Bytes>), Error> {
    Ok((segment, get(blobs, &segment.blob).await?))
}

/// Returns the content of a blob; `None` if it was removed meanwhile.
async fn get(blobs: &dyn BlobStore, blob: &BlobName) -> Result<Option<Bytes>, Error> {
    match blobs.get_blob(blob, MAX_BYTES).await {
        Ok(blob) => Ok(Some(blob.data)),
        Err(e) if matches!(e.kind(), StoreErrorKind::BlobNotFound | StoreErrorKind::TooLarge) => Ok(None),
        Err(e) => Err(e.into()),
    }
}
