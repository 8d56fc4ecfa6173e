//! The form of a journal entry in a blob: a line of JSON.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::storage::rules::micros::{from_micros, to_micros};
use crate::storage::{JournalEntry, JournalQuery};

/// A journal entry as JSON. Times are in microseconds, and timestamps count from 1970.
#[derive(Serialize, Deserialize)]
struct Line<'a> {
    ended: i64,
    number: u64,
    #[serde(borrow)]
    queue: Cow<'a, str>,
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    source: Cow<'a, str>,
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    key: Option<Cow<'a, str>>,
    #[serde(borrow)]
    outcome: Cow<'a, str>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    reason: Option<Cow<'a, str>>,
    attempt: u32,
    inserted: i64,
    ran: u64,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    error: Option<Cow<'a, str>>,
    #[serde(borrow)]
    worker: Cow<'a, str>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    trace: Option<Cow<'a, str>>,
}

pub(super) fn write_line(entry: &JournalEntry, to: &mut Vec<u8>) {
    let line = Line {
        ended: to_micros(entry.ended),
        number: entry.number,
        queue: Cow::Borrowed(&entry.queue),
        id: Cow::Borrowed(&entry.id),
        source: Cow::Borrowed(&entry.source),
        kind: Cow::Borrowed(&entry.kind),
        key: optional(&entry.key),
        outcome: Cow::Borrowed(&entry.outcome),
        reason: optional(&entry.reason),
        attempt: entry.attempt,
        inserted: to_micros(entry.inserted),
        ran: u64::try_from(entry.ran.as_micros()).unwrap_or(u64::MAX),
        error: optional(&entry.error),
        worker: Cow::Borrowed(&entry.worker),
        trace: optional(&entry.trace),
    };
    // Cannot fail: numbers and texts are always valid JSON, and a vector accepts all bytes.
    if serde_json::to_writer(&mut *to, &line).is_ok() {
        to.push(b'\n');
    }
}

fn optional(text: &Option<Arc<str>>) -> Option<Cow<'_, str>> {
    text.as_deref().map(Cow::Borrowed)
}

/// Returns the entries of a blob that the query selects. Skips damaged lines.
pub(super) fn parse_lines(data: &[u8], query: &JournalQuery) -> Vec<JournalEntry> {
    data.split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice(line).ok())
        .filter(|line| may_select(query, line))
        .map(entry)
        .filter(|entry| query.selects(entry))
        .collect()
}

/// Excludes most lines in a search by id, key or kind before an entry is allocated.
fn may_select(query: &JournalQuery, line: &Line<'_>) -> bool {
    let is = |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|wanted| wanted == found);
    is(&query.id, &line.id)
        && is(&query.key, line.key.as_deref().unwrap_or_default())
        && is(&query.kind, &line.kind)
}

fn entry(line: Line<'_>) -> JournalEntry {
    JournalEntry {
        ended: from_micros(line.ended),
        number: line.number,
        queue: Arc::from(line.queue),
        id: Arc::from(line.id),
        source: Arc::from(line.source),
        kind: Arc::from(line.kind),
        key: line.key.map(Arc::from),
        outcome: Arc::from(line.outcome),
        reason: line.reason.map(Arc::from),
        attempt: line.attempt,
        inserted: from_micros(line.inserted),
        ran: Duration::from_micros(line.ran),
        error: line.error.map(Arc::from),
        worker: Arc::from(line.worker),
        trace: line.trace.map(Arc::from),
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    fn entry_of(number: u64) -> JournalEntry {
        let ended = SystemTime::UNIX_EPOCH + Duration::from_micros(1_800_000_000_000_007 + number);
        let error = number.is_multiple_of(2).then(|| Arc::from("no such \"address\"\u{1f600}"));
        JournalEntry {
            ended,
            number: u64::MAX - number,
            queue: Arc::from("letters"),
            id: Arc::from(format!("größer-{number}")),
            source: Arc::from("//shop"),
            kind: Arc::from("letter"),
            key: error.clone(),
            outcome: Arc::from("dead_lettered"),
            reason: error.clone(),
            attempt: 3,
            inserted: ended - Duration::from_secs(5),
            ran: Duration::from_micros(1_700),
            error,
            worker: Arc::from("w"),
            trace: None,
        }
    }

    fn written(entries: &[JournalEntry]) -> Vec<u8> {
        let mut data = Vec::new();
        entries.iter().for_each(|entry| write_line(entry, &mut data));
        data
    }

    #[test]
    fn entries_are_read_as_they_were_written() {
        let entries: Vec<_> = (0..20).map(entry_of).collect();
        assert_eq!(parse_lines(&written(&entries), &JournalQuery::default()), entries);
    }

    #[test]
    fn damaged_segments_lose_only_damaged_lines_and_never_panic() {
        let entries: Vec<_> = (0..20).map(entry_of).collect();
        let data = written(&entries);
        for end in 0..data.len() - 1 {
            assert!(parse_lines(&data[..end], &JournalQuery::default()).len() < entries.len());
        }
        for at in 0..data.len() {
            let mut damaged = data.clone();
            damaged[at] ^= 0xff;
            assert!(parse_lines(&damaged, &JournalQuery::default()).len() >= entries.len() - 2);
        }
        assert!(parse_lines(b"jqh1\x00\xff\x07", &JournalQuery::default()).is_empty());
    }
}
