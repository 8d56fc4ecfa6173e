//! The journal of ended jobs in a table.
//!
//! A search reads the table, or one of its indexes, from the newest row on in slices, and tests each row.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::database::{Call, Parameter};
use crate::store::Store;
use jobqueue_storage::rules::micros::{from_micros, to_micros};
use jobqueue_storage::{JournalEntry, JournalPage, JournalQuery, JournalStore, Operation, StoreError};

/// The maximum number of rows that a statement adds or removes, and the size of a slice.
const ROWS_PER_STATEMENT: usize = 500;

const INSERT: &str = "INSERT INTO jobqueue.journal
        (ended, number, attempt, inserted, ran, queue, id, source, kind, key, outcome, reason, error, worker, trace)
    SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[], $7::text[], $8::text[],
        $9::text[], $10::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[])
    ON CONFLICT (ended, number) DO NOTHING";

/// $3 is the newest time that the statement before removed. The rows removed so far stay in the index until
/// they are vacuumed.
const DELETE: &str =
    "DELETE FROM jobqueue.journal WHERE ctid = ANY (ARRAY(SELECT ctid FROM jobqueue.journal
    WHERE ended >= $3 AND ended < (SELECT jobqueue.now()) * 1000 - $1 ORDER BY ended LIMIT $2)) RETURNING ended";

/// Builds a query for the newest rows, with `ended` from $1 to $2. The condition and the order of each query
/// match a single index: where `ANALYZE` saw an empty table, the planner would otherwise read all rows by
/// another index.
macro_rules! newest {
    ($where:literal, $order:literal) => {
        concat!(
            "SELECT ended, number, attempt, inserted, ran, queue, id, source, kind, key, outcome, reason, error, worker, trace
             FROM jobqueue.journal WHERE ", $where, " ORDER BY ", $order, " LIMIT $3"
        )
    };
}

const BY_ID: &str = newest!("(id, ended) >= ($4, $1) AND (id, ended) <= ($4, $2)", "id DESC, ended DESC");
const BY_KEY: &str = newest!(
    "key IS NOT NULL AND (key, ended) >= ($4, $1) AND (key, ended) <= ($4, $2)",
    "key DESC, ended DESC"
);
const FAILURES: &str = newest!("outcome <> 'completed' AND ended BETWEEN $1 AND $2", "ended DESC");
const ALL: &str = newest!("ended BETWEEN $1 AND $2", "ended DESC");

#[async_trait]
impl JournalStore for Store {
    async fn append(&self, entries: Arc<[JournalEntry]>) -> Result<(), StoreError> {
        for entries in entries.chunks(ROWS_PER_STATEMENT) {
            self.insert(entries).await?;
        }
        Ok(())
    }

    async fn search(&self, query: &JournalQuery) -> Result<JournalPage, StoreError> {
        query.search_by_slices(|rest| async move { self.slice(&rest, ROWS_PER_STATEMENT).await }).await
    }

    async fn expire(&self, kept: Duration) -> Result<(), StoreError> {
        let call = Call::of_database(Operation::ExpireJournal, &self.database);
        let kept = i64::try_from(kept.as_micros()).unwrap_or(i64::MAX / 2);
        let mut from = i64::MIN;
        loop {
            let values = [
                (&kept as _, Type::INT8),
                (&(ROWS_PER_STATEMENT as i64) as _, Type::INT8),
                (&from as _, Type::INT8),
            ];
            let removed = self.database.query(call, DELETE, &values).await?;
            for row in &removed {
                from = from.max(call.get(row, 0)?);
            }
            if removed.len() < ROWS_PER_STATEMENT {
                return Ok(());
            }
        }
    }
}

impl Store {
    async fn insert(&self, entries: &[JournalEntry]) -> Result<(), StoreError> {
        let call = Call::of_database(Operation::AppendJournal, &self.database);
        let numbers = |value: fn(&JournalEntry) -> i64| entries.iter().map(value).collect::<Vec<_>>();
        let texts = |value: fn(&JournalEntry) -> Option<&Arc<str>>| {
            entries.iter().map(|entry| value(entry).map(|text| to_column(text))).collect::<Vec<_>>()
        };
        let numbers = [
            numbers(|entry| to_micros(entry.ended)),
            numbers(|entry| entry.number.cast_signed()),
            numbers(|entry| entry.attempt.into()),
            numbers(|entry| to_micros(entry.inserted)),
            numbers(|entry| i64::try_from(entry.ran.as_micros()).unwrap_or(i64::MAX)),
        ];
        let texts = [
            texts(|entry| Some(&entry.queue)),
            texts(|entry| Some(&entry.id)),
            texts(|entry| Some(&entry.source)),
            texts(|entry| Some(&entry.kind)),
            texts(|entry| entry.key.as_ref()),
            texts(|entry| Some(&entry.outcome)),
            texts(|entry| entry.reason.as_ref()),
            texts(|entry| entry.error.as_ref()),
            texts(|entry| Some(&entry.worker)),
            texts(|entry| entry.trace.as_ref()),
        ];
        let numbers = numbers.iter().map(|column| -> Parameter<'_> { (column, Type::INT8_ARRAY) });
        let texts = texts.iter().map(|column| -> Parameter<'_> { (column, Type::TEXT_ARRAY) });
        let values: Vec<_> = numbers.chain(texts).collect();
        self.database.query(call, INSERT, &values).await.map(drop)
    }

    /// Reads `max_rows` rows, or fewer if the page is full. Rows with the same `ended` are always read
    /// together.
    async fn slice(&self, query: &JournalQuery, max_rows: usize) -> Result<JournalPage, StoreError> {
        let call = Call::of_database(Operation::SearchJournal, &self.database);
        let (from, to) = (query.since.map_or(i64::MIN, to_micros), query.until.map_or(i64::MAX, to_micros));
        let (sql, wanted) = match (&query.id, &query.key) {
            (Some(id), _) => (BY_ID, Some(to_column(id))),
            (None, Some(key)) => (BY_KEY, Some(to_column(key))),
            (None, None) if query.selects_only_failures() => (FAILURES, None),
            (None, None) => (ALL, None),
        };
        let limit = max_rows as i64 + 1;
        let mut values: Vec<Parameter<'_>> =
            vec![(&from, Type::INT8), (&to, Type::INT8), (&limit, Type::INT8)];
        if let Some(wanted) = &wanted {
            values.push((wanted, Type::TEXT));
        }
        let rows = self.database.query(call, sql, &values).await?;
        let ended = |row: &Row| call.get::<i64>(row, 0);
        // There may be more rows with the time of the last row.
        let cut = match rows.last() {
            Some(last) if rows.len() > max_rows => Some(ended(last)?),
            _ => None,
        };
        if let (Some(cut), Some(first)) = (cut, rows.first())
            && ended(first)? == cut
        {
            return Box::pin(self.slice(query, max_rows * 2)).await;
        }
        let (mut entries, mut moment) = (Vec::new(), None);
        for row in &rows {
            let now = ended(row)?;
            if Some(now) == cut || (moment != Some(now) && entries.len() >= query.limit) {
                return Ok(JournalPage::new(entries).with_searched_to(from_micros(now)));
            }
            moment = Some(now);
            let entry = read(call, row)?;
            if query.selects(&entry) {
                entries.push(entry);
            }
        }
        Ok(JournalPage::new(entries))
    }
}

fn read(call: Call<'_>, row: &Row) -> Result<JournalEntry, StoreError> {
    let text = |column| call.get::<&str>(row, column).map(|text| Arc::from(from_column(text)));
    let optional = |column| {
        call.get::<Option<&str>>(row, column).map(|text| text.map(|text| Arc::from(from_column(text))))
    };
    Ok(JournalEntry {
        ended: from_micros(call.get(row, 0)?),
        number: call.get::<i64>(row, 1)?.cast_unsigned(),
        attempt: u32::try_from(call.get::<i64>(row, 2)?).unwrap_or(u32::MAX),
        inserted: from_micros(call.get(row, 3)?),
        ran: Duration::from_micros(u64::try_from(call.get::<i64>(row, 4)?).unwrap_or(0)),
        queue: text(5)?,
        id: text(6)?,
        source: text(7)?,
        kind: text(8)?,
        key: optional(9)?,
        outcome: text(10)?,
        reason: optional(11)?,
        error: optional(12)?,
        worker: text(13)?,
        trace: optional(14)?,
    })
}

/// Escapes U+0000, which PostgreSQL's texts cannot contain, as `\0`, and a backslash as `\\`.
fn to_column(text: &str) -> Cow<'_, str> {
    if !text.contains(['\0', '\\']) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.replace('\\', "\\\\").replace('\0', "\\0"))
}

fn from_column(column: &str) -> String {
    let (mut text, mut characters) = (String::with_capacity(column.len()), column.chars());
    while let Some(character) = characters.next() {
        if character == '\\' {
            text.extend(characters.next().map(|next| if next == '0' { '\0' } else { next }));
        } else {
            text.push(character);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_fits_a_column() {
        for text in ["", "plain", "\0", "a\\0b", "\\", "\\\\\0\\0", "ü\0€"] {
            let column = to_column(text);
            assert!(!column.contains('\0'), "{text:?}");
            assert_eq!(from_column(&column), text);
        }
    }
}
