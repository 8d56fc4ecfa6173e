//! Finds ended jobs in the journals of all workers, the newest first.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::record::HistoryRecord;
use super::{CONTAINER, MAX_BYTES};
use crate::clock::rfc3339;
use crate::error::Error;
use crate::name::ContainerName;
use crate::storage::{Storage, StoreErrorKind, list_all};

/// The most blobs that a search reads.
const MOST_BLOBS: usize = 500;
/// The time after the beginning of a blob at which its last line may have ended, and a little more.
const SPAN: Duration = Duration::from_secs(2 * 3600);

/// The ended jobs that are meant.
#[derive(Debug, Clone, Default)]
pub(crate) struct Query {
    pub(crate) queue: Option<String>,
    pub(crate) id: Option<String>,
    pub(crate) kind: Option<String>,
    pub(crate) outcome: Option<String>,
    pub(crate) since: Option<SystemTime>,
    pub(crate) until: Option<SystemTime>,
    pub(crate) limit: usize,
}

impl Query {
    /// Returns the texts that the line of each selected job has, as the journal writes them. To look for them costs far less than to
    /// read a line.
    fn marks(&self) -> Vec<String> {
        let wanted = [&self.id, &self.kind, &self.outcome, &self.queue];
        wanted.into_iter().flatten().filter_map(|text| serde_json::to_string(text).ok()).collect()
    }

    fn selects(&self, record: &HistoryRecord, since: &str, until: &str) -> bool {
        let is =
            |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|wanted| wanted == found);
        is(&self.queue, &record.queue)
            && is(&self.id, &record.id)
            && is(&self.kind, &record.kind)
            && is(&self.outcome, &record.outcome)
            && *record.ended >= *since
            && *record.ended <= *until
    }
}

/// Returns the newest ended jobs that the query selects, and whether all blobs that may hold such were read.
pub(crate) async fn search(storage: &Storage, query: &Query) -> Result<(Vec<HistoryRecord>, bool), Error> {
    let (since, until) = (query.since.unwrap_or(SystemTime::UNIX_EPOCH), query.until);
    let first = stamp(since.checked_sub(SPAN).unwrap_or(SystemTime::UNIX_EPOCH));
    let last = until.map_or_else(|| "9".repeat(20), stamp);
    let (since, until) =
        (rfc3339(since).unwrap_or_default(), until.and_then(rfc3339).unwrap_or_else(|| "9".repeat(4)));
    let container = ContainerName::new(CONTAINER)?;
    let mut blobs = list_all(&**storage.blobs(), &container, "").await?;
    blobs.retain(|(blob, _)| *blob.name() >= *first && *blob.name() <= *format!("{last}~"));
    blobs.reverse();
    let marks = query.marks();
    let (mut found, mut complete) = (Vec::new(), blobs.len() <= MOST_BLOBS);
    for (read, (blob, _)) in blobs.iter().take(MOST_BLOBS).enumerate() {
        let data = match storage.blobs().get_blob(blob, MAX_BYTES).await {
            Ok(blob) => blob.data,
            Err(e) if matches!(e.kind(), StoreErrorKind::BlobNotFound | StoreErrorKind::TooLarge) => continue,
            Err(e) => return Err(e.into()),
        };
        let text = String::from_utf8_lossy(&data);
        let may_be_in = |text: &str| marks.iter().all(|mark| text.contains(mark.as_str()));
        if !may_be_in(&text) {
            continue;
        }
        let lines = text.split('\n').filter(|line| may_be_in(line));
        let records = lines.filter_map(|line| serde_json::from_str(line).ok());
        found.extend(records.filter(|record: &HistoryRecord| query.selects(record, &since, &until)));
        // Blobs of several workers overlap: enough are read once the next begins well before those that were found end.
        let is_enough = found.len() >= query.limit.saturating_mul(2).saturating_add(1_000);
        if is_enough && read + 1 < blobs.len() {
            complete = false;
            break;
        }
    }
    found.sort_by(|one: &HistoryRecord, two| two.ended.cmp(&one.ended));
    complete &= found.len() <= query.limit;
    found.truncate(query.limit);
    Ok((found, complete))
}

/// Returns the text with which the name of a blob begins: day and time in UTC.
pub(super) fn stamp(time: SystemTime) -> String {
    zoned(time).strftime("%Y%m%d/%H%M%S%3f").to_string()
}

fn zoned(time: SystemTime) -> jiff::Zoned {
    Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH).to_zoned(TimeZone::UTC)
}
