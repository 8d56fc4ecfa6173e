//! Names of segments and summaries. They begin with a time, so that a storage lists them in order of time.
//!
//! ```text
//! segment:  20261122/150102333-2f1c…                        the time of its first end
//! summary:  20261122/150102333-2f1c…-20261122/150117345     and that of its last
//! ```

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::{CONTAINER, LIFE};
use crate::clock::parse_rfc3339;
use crate::entropy;
use crate::error::Error;
use crate::name::{BlobName, ContainerName};
use crate::storage::{BlobStore, list_all};

/// The length of a time in a name.
const STAMP: usize = "20261122/150102333".len();
/// The length of the name of a segment.
const NAME: usize = STAMP + 1 + 32;
/// The length of the name of a summary.
const SUMMARY: usize = NAME + 1 + STAMP;
/// The time after the life of a segment in which its worker may still add to it.
const LATE: Duration = Duration::from_secs(60);

/// A segment in the storage.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) blob: BlobName,
    /// The time at which the last of its jobs ended, or might have: a stamp.
    pub(super) last: String,
    /// The summary; `None` while the segment is open, and if its worker was killed then.
    pub(super) summary: Option<BlobName>,
}

impl Segment {
    /// Returns the time at which the first of its jobs ended: a stamp.
    pub(super) fn first(&self) -> &str {
        self.blob.name().get(..STAMP).unwrap_or_default()
    }
}

/// Lists all segments, in order of their first ends.
pub(super) async fn segments(blobs: &dyn BlobStore) -> Result<Vec<Segment>, Error> {
    let mut segments = Vec::<Segment>::new();
    for (blob, _) in list_all(blobs, &ContainerName::new(CONTAINER)?, "").await? {
        let summary = segments.last_mut().and_then(|segment| {
            let last = blob.name().strip_prefix(segment.blob.name())?.strip_prefix('-')?;
            Some((segment, last.to_owned()))
        });
        if let Some((segment, last)) = summary {
            (segment.last, segment.summary) = (last, Some(blob));
        } else if blob.name().len() == SUMMARY {
            // Its segment was removed before it was written: it is removed as an empty segment is.
            let last = blob.name().get(NAME + 1..).unwrap_or_default().to_owned();
            segments.push(Segment { blob, last, summary: None });
        } else if blob.name().len() == NAME {
            let first = blob.name().get(..STAMP).and_then(parse_stamp).unwrap_or(SystemTime::UNIX_EPOCH);
            let last = stamp(first.checked_add(LIFE + LATE).unwrap_or(first));
            segments.push(Segment { blob, last, summary: None });
        }
    }
    Ok(segments)
}

/// Returns a new name for a segment whose first job ended at this time.
pub(super) fn segment(first: SystemTime) -> Result<BlobName, Error> {
    let id = entropy::uuid_v4().simple();
    Ok(BlobName::new(ContainerName::new(CONTAINER)?, format!("{}-{id}", stamp(first)))?)
}

/// Returns the name of the summary of a segment whose last job ended at this time.
pub(super) fn summary(segment: &BlobName, last: SystemTime) -> Result<BlobName, Error> {
    // A stamp is rounded down.
    let last = last.checked_add(Duration::from_millis(1)).unwrap_or(last);
    Ok(BlobName::new(segment.container().clone(), format!("{}-{}", segment.name(), stamp(last)))?)
}

/// Returns a time as names have it: day and time in UTC with milliseconds. Stamps are in the order of their times.
pub(super) fn stamp(time: SystemTime) -> String {
    let time = Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH).to_zoned(TimeZone::UTC);
    time.strftime("%Y%m%d/%H%M%S%3f").to_string()
}

/// Returns the time of a stamp.
pub(super) fn parse_stamp(stamp: &str) -> Option<SystemTime> {
    let part = |from: usize, to: usize| stamp.get(from..to);
    let (year, month, day) = (part(0, 4)?, part(4, 6)?, part(6, 8)?);
    let (hour, minute, second, millis) = (part(9, 11)?, part(11, 13)?, part(13, 15)?, part(15, STAMP)?);
    parse_rfc3339(&format!("{year}-{month}-{day}T{hour}:{minute}:{second}.{millis}Z"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_read_as_they_were_written() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1_800_000_000_007);
        assert_eq!(parse_stamp(&stamp(time)), Some(time));
        assert!(stamp(time) < stamp(time + Duration::from_millis(1)));
        assert_eq!((parse_stamp(""), parse_stamp("20261322/150102333")), (None, None));
        let name = segment(time).unwrap();
        assert_eq!(name.name().len(), NAME);
        assert_eq!(summary(&name, time).unwrap().name().len(), SUMMARY);
    }
}
