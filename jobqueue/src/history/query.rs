//! The ended jobs that a search is for.

use std::time::SystemTime;

use super::chunk::{OUTCOMES, micros};
use super::id::Id;
use super::record::HistoryRecord;
use super::segment::{Chunk, Entry, chunks};

/// The ended jobs that are meant: those for which all that is set here holds.
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

/// A job that was found, and its end in microseconds since 1970.
pub(super) type Hit = (i64, HistoryRecord);

impl Query {
    pub(super) fn id(&self) -> Option<Id<'_>> {
        self.id.as_deref().map(Id::new)
    }

    /// Returns whether a summary can tell that a segment has none of these jobs.
    pub(super) fn is_narrow(&self) -> bool {
        [&self.queue, &self.id, &self.kind, &self.outcome].iter().any(|wanted| wanted.is_some())
    }

    /// Returns whether jobs of this queue and kind that ended so may be meant.
    pub(super) fn is_group(&self, queue: &str, kind: &str, outcome: &str) -> bool {
        let is = |wanted: &Option<String>, found| wanted.as_deref().is_none_or(|wanted| wanted == found);
        is(&self.queue, queue) && is(&self.kind, kind) && is(&self.outcome, outcome)
    }

    /// Returns the newest jobs of a segment that are meant and ended at `least` or later, and whether there are older ones. Of jobs that
    /// ended at the same time, it returns all or none.
    pub(super) fn select(&self, segment: &[u8], least: i64) -> (Vec<Hit>, bool) {
        let span = (self.since.map_or(i64::MIN, micros), self.until.map_or(i64::MAX, micros));
        let mut ends = Vec::new();
        self.each(segment, span, |_, entry| ends.push(entry.ended));
        let least = match ends.len().checked_sub(self.limit) {
            Some(beyond) if beyond < ends.len() => least.max(*ends.select_nth_unstable(beyond).1),
            _ => least,
        };
        let is_cut = ends.iter().any(|ended| *ended < least);
        (self.records(segment, (least.max(span.0), span.1)), is_cut)
    }

    fn records(&self, segment: &[u8], span: (i64, i64)) -> Vec<Hit> {
        let mut hits = Vec::new();
        self.each(segment, span, |chunk, entry| {
            hits.extend(HistoryRecord::of(chunk, entry).map(|record| (entry.ended, record)));
        });
        hits
    }

    /// Calls `found` with each job that is meant and ended in this span.
    fn each(&self, segment: &[u8], (least, most): (i64, i64), mut found: impl FnMut(&Chunk<'_>, &Entry<'_>)) {
        let id = self.id();
        for mut chunk in chunks(segment) {
            while let Some(entry) = chunk.next() {
                if entry.ended < least || entry.ended > most || id.is_some_and(|id| id != entry.id) {
                    continue;
                }
                let origin = chunk.origins[entry.origin];
                if self.is_group(origin.queue, origin.kind, OUTCOMES[entry.outcome]) {
                    found(&chunk, &entry);
                }
            }
        }
    }
}
