//! The journal of ended jobs in a table.
//!
//! A search reads the table or one of its indexes from the newest row on, and tests each row. It reads a
//! limited number of rows at a time, because one thread answers all long reads.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Row, params};

use super::clock::to_instant;
use super::error::Applied;
use super::reader::View;
use super::store::Store;
use jobqueue_storage::rules::micros::{from_micros, to_micros};
use jobqueue_storage::{JournalEntry, JournalPage, JournalQuery, JournalStore, Operation, StoreError};

/// The number of rows that a transaction adds or removes.
const ROWS_PER_TRANSACTION: usize = 500;
/// The approximate size of a row in bytes, including its indexes.
const ROW_BYTES: usize = 512;
/// The number of rows after which a search lets other reads go first.
const SLICE_ROWS: usize = 10_000;

const INSERT: &str = "INSERT OR IGNORE INTO jobqueue_journal
    (ended, number, queue, id, source, kind, key, outcome, reason, attempt, inserted, ran, error, worker, trace)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)";

const DELETE: &str = "DELETE FROM jobqueue_journal WHERE (ended, number) IN
    (SELECT ended, number FROM jobqueue_journal WHERE ended < ?1 ORDER BY ended LIMIT ?2)";

/// Builds a query of the newest rows; `?1` to `?2` is the range of `ended`.
macro_rules! newest {
    ($where:literal) => {
        concat!(
            "SELECT ended, number, queue, id, source, kind, key, outcome, reason, attempt, inserted, ran, error, worker, trace
             FROM jobqueue_journal ", $where, " ended BETWEEN ?1 AND ?2 ORDER BY ended DESC"
        )
    };
}

pub(super) const BY_ID: &str = newest!("WHERE id = ?3 AND");
pub(super) const BY_KEY: &str = newest!("WHERE key = ?3 AND");
pub(super) const FAILURES: &str =
    newest!("INDEXED BY jobqueue_journal_failure WHERE outcome <> 'completed' AND");
pub(super) const ALL: &str = newest!("WHERE");

#[async_trait]
impl JournalStore for Store {
    async fn append(&self, entries: Arc<[JournalEntry]>) -> Result<(), StoreError> {
        for start in (0..entries.len()).step_by(ROWS_PER_TRANSACTION) {
            let (entries, end) = (Arc::clone(&entries), entries.len().min(start + ROWS_PER_TRANSACTION));
            self.write(Operation::AppendJournal, &"", ROW_BYTES * (end - start), move |batch, _| {
                for entry in &entries[start..end] {
                    batch.statement(INSERT)?.execute(params![
                        to_micros(entry.ended),
                        entry.number.cast_signed(),
                        entry.queue,
                        entry.id,
                        entry.source,
                        entry.kind,
                        entry.key,
                        entry.outcome,
                        entry.reason,
                        entry.attempt,
                        to_micros(entry.inserted),
                        i64::try_from(entry.ran.as_micros()).unwrap_or(i64::MAX),
                        entry.error,
                        entry.worker,
                        entry.trace,
                    ])?;
                }
                batch.note_change();
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    async fn search(&self, query: &JournalQuery) -> Result<JournalPage, StoreError> {
        query
            .search_by_slices(|rest| {
                self.read(Operation::SearchJournal, &"", move |view, _| slice(view, &rest))
            })
            .await
    }

    async fn expire(&self, kept: Duration) -> Result<(), StoreError> {
        loop {
            let removed = self
                .write(Operation::ExpireJournal, &"", ROW_BYTES * ROWS_PER_TRANSACTION, move |batch, _| {
                    let before = to_instant(batch.now()).checked_sub(kept).map_or(i64::MIN, to_micros);
                    let removed =
                        batch.statement(DELETE)?.execute(params![before, ROWS_PER_TRANSACTION as i64])?;
                    if removed > 0 {
                        batch.note_change();
                    }
                    Ok(removed)
                })
                .await?;
            if removed < ROWS_PER_TRANSACTION {
                return Ok(());
            }
        }
    }
}

/// Reads rows until the page is full, or the slice is used up. All rows of one moment are read together.
fn slice(view: &View<'_>, query: &JournalQuery) -> Applied<JournalPage> {
    let range = (query.since.map_or(i64::MIN, to_micros), query.until.map_or(i64::MAX, to_micros));
    let (sql, value) = match (&query.id, &query.key) {
        (Some(id), _) => (BY_ID, Some(id)),
        (None, Some(key)) => (BY_KEY, Some(key)),
        (None, None) if query.selects_only_failures() => (FAILURES, None),
        (None, None) => (ALL, None),
    };
    let mut statement = view.connection.prepare_cached(sql)?;
    let mut rows = match value {
        Some(value) => statement.query(params![range.0, range.1, value])?,
        None => statement.query(params![range.0, range.1])?,
    };
    let (mut entries, mut last) = (Vec::new(), None);
    let mut read = 0;
    while let Some(row) = rows.next()? {
        let ended = row.get(0)?;
        if last != Some(ended) && (entries.len() >= query.limit || read >= SLICE_ROWS) {
            return Ok(JournalPage::new(entries).with_searched_to(from_micros(ended)));
        }
        (last, read) = (Some(ended), read + 1);
        let entry = entry(row)?;
        if query.selects(&entry) {
            entries.push(entry);
        }
    }
    Ok(JournalPage::new(entries))
}

fn entry(row: &Row<'_>) -> rusqlite::Result<JournalEntry> {
    Ok(JournalEntry {
        ended: from_micros(row.get(0)?),
        number: row.get::<_, i64>(1)?.cast_unsigned(),
        queue: row.get(2)?,
        id: row.get(3)?,
        source: row.get(4)?,
        kind: row.get(5)?,
        key: row.get(6)?,
        outcome: row.get(7)?,
        reason: row.get(8)?,
        attempt: row.get(9)?,
        inserted: from_micros(row.get(10)?),
        ran: Duration::from_micros(u64::try_from(row.get::<_, i64>(11)?).unwrap_or(0)),
        error: row.get(12)?,
        worker: row.get(13)?,
        trace: row.get(14)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use jobqueue_storage::clock::{Clock, ManualClock};
    use jobqueue_storage::runtime::Runtime;

    /// A clock that a test sets, and that counts as possibly wrong.
    #[derive(Debug, Default)]
    struct SettableClock(ManualClock);

    impl Clock for SettableClock {
        fn now(&self) -> std::time::SystemTime {
            self.0.now()
        }

        fn may_be_set_wrong(&self) -> bool {
            true
        }
    }

    #[tokio::test]
    async fn clock_that_was_set_ahead_expires_no_entry() {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(SettableClock::default());
        let runtime = Runtime::new().with_clock(Arc::<SettableClock>::clone(&clock));
        let options = Options::new(folder.path().join("jobs.db")).runtime(runtime);
        let store = Store::open(options).await.unwrap();
        let text = || Arc::from("a");
        let entry = JournalEntry {
            ended: clock.now(),
            number: 1,
            queue: text(),
            id: text(),
            source: text(),
            kind: text(),
            key: None,
            outcome: Arc::from(JournalEntry::COMPLETED),
            reason: None,
            attempt: 1,
            inserted: clock.now(),
            ran: Duration::ZERO,
            error: None,
            worker: text(),
            trace: None,
        };
        store.append([entry.clone()].into()).await.unwrap();
        let day = Duration::from_secs(86_400);
        clock.0.advance(366 * day);
        store.expire(day).await.unwrap();
        let mut query = JournalQuery::default();
        query.limit = 10;
        assert_eq!(store.search(&query).await.unwrap().entries, [entry]);
    }
}
