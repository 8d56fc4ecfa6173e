//! Counts messages.
//!
//! Messages that are received by their numbers have no index, so that many of them are counted in samples.

use std::collections::BinaryHeap;
use std::ops::Range;

use rusqlite::{params, params_from_iter};

use super::admin::{Found, find};
use crate::clock::LEASED_TIME;
use crate::error::Applied;
use crate::metadata;
use crate::reader::View;
use crate::row_id;
use jobqueue_storage::{Operation, QueueName, QueueProperties, StateCounts};

/// The messages of the index of times: delayed, put back, or visible again. Leased ones are behind all times.
pub(crate) const BY_TIME: &str = "SELECT count(*) FROM jobqueue_message
    WHERE queue = ?1 AND waiting = 0 AND visible_at < ?3";
/// Those that wait for another of their group.
pub(crate) const WAITING: &str =
    "SELECT count(*) FROM jobqueue_message WHERE queue = ?1 AND waiting = 1 AND group_name IS NOT NULL";
/// Those that have expired. Without statistics SQLite would take the index of the queue, and read every message.
pub(crate) const EXPIRED: &str = "SELECT count(*) FROM jobqueue_message INDEXED BY jobqueue_message_expiry
    WHERE expires_at <= ?2 AND queue = ?1";
/// The hidden messages of the index of times: never received, leased by the receipt of a put, and put back.
pub(crate) const HIDDEN: &str =
    "SELECT coalesce(sum(leased = 0), 0), coalesce(sum(leased = 1), 0), coalesce(sum(leased = 2), 0)
    FROM jobqueue_message WHERE queue = ?1 AND waiting = 0 AND visible_at > ?2 AND visible_at < ?3";
/// Those of them that have expired: few, since expired messages are removed all the time.
pub(crate) const HIDDEN_EXPIRED: &str =
    "SELECT coalesce(sum(leased = 0), 0), coalesce(sum(leased = 1), 0), coalesce(sum(leased = 2), 0)
    FROM jobqueue_message INDEXED BY jobqueue_message_expiry
    WHERE expires_at <= ?2 AND queue = ?1 AND waiting = 0 AND visible_at > ?2 AND visible_at < ?3";

const LEASED: &str = "SELECT count(*) FROM jobqueue_lease WHERE id >= ?1 AND id < ?2";
/// The unexpired messages with a lease in force.
pub(crate) const RUNNING: &str =
    "SELECT count(*) FROM jobqueue_lease l CROSS JOIN jobqueue_message m ON m.id = l.id
    WHERE l.id >= ?1 AND l.id < ?2 AND l.until > ?3 AND (m.expires_at IS NULL OR m.expires_at > ?3)";

/// Reads the first rows of a range: their number, the number of messages that are received by their numbers, and the last row.
const FIRST_ROWS: &str = "SELECT count(*), coalesce(sum(by_number), 0), coalesce(max(id), 0) FROM
    (SELECT m.id AS id, m.visible_at IS NULL AND l.id IS NULL AS by_number
     FROM jobqueue_message m LEFT JOIN jobqueue_lease l ON l.id = m.id
     WHERE m.id >= ?1 AND m.id < ?2 ORDER BY m.id LIMIT ?3)";

/// The number of rows up to which the count is exact.
const EXACT: i64 = 65_536;
/// The number of parts in which the rest of a longer queue is counted, and the rows that are read at the beginning of each.
const PARTS: usize = 8_192;
const ROWS: i64 = 8;
/// The factor by which an estimate of rows that do not all follow each other is raised.
const MARGIN: f64 = 1.0625;

/// Returns metadata and count.
pub(super) fn properties(view: &View<'_>, name: &QueueName) -> Applied<QueueProperties> {
    let queue = find(view, Operation::QueueProperties, name)?;
    let count = u64::try_from(all(view, &queue)?).unwrap_or(0);
    Ok(QueueProperties::new(metadata::from_text(&queue.metadata)?, count))
}

fn all(view: &View<'_>, queue: &Found) -> rusqlite::Result<i64> {
    let rows = row_id::all(queue.id);
    let mut statement = view.connection.prepare_cached(LEASED)?;
    let leased: i64 = statement.query_row([rows.start, rows.end], |row| row.get(0))?;
    let count = |sql| count(view, sql, queue.id);
    let present = by_number(view, queue)? + count(BY_TIME)? + leased + count(WAITING)?;
    Ok(present - count(EXPIRED)?)
}

/// Returns the number of messages in each state.
pub(super) fn by_state(view: &View<'_>, name: &QueueName) -> Applied<StateCounts> {
    let queue = find(view, Operation::QueueProperties, name)?;
    let rows = row_id::all(queue.id);
    let mut statement = view.connection.prepare_cached(RUNNING)?;
    let running: i64 = statement.query_row([rows.start, rows.end, view.now], |row| row.get(0))?;
    let hidden = |sql| -> rusqlite::Result<[i64; 3]> {
        let mut statement = view.connection.prepare_cached(sql)?;
        statement
            .query_row([queue.id, view.now, LEASED_TIME], |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?]))
    };
    let (present, expired) = (hidden(HIDDEN)?, hidden(HIDDEN_EXPIRED)?);
    let [delayed, hidden, backing_off] = std::array::from_fn(|state| present[state] - expired[state]);
    let number = |count: i64| u64::try_from(count).unwrap_or(0);
    let waiting = all(view, &queue)? - delayed - hidden - running - backing_off;
    Ok(StateCounts {
        waiting: number(waiting),
        delayed: number(delayed),
        backing_off: number(backing_off),
        running: number(hidden + running),
    })
}

/// Counts messages of a queue by a statement that takes the queue's row, and perhaps the time and that of leased messages.
fn count(view: &View<'_>, sql: &str, queue: i64) -> rusqlite::Result<i64> {
    let mut statement = view.connection.prepare_cached(sql)?;
    let parameters = statement.parameter_count();
    let values = [queue, view.now, LEASED_TIME].into_iter().take(parameters);
    statement.query_row(params_from_iter(values), |row| row.get(0))
}

/// Counts the messages that are received by their numbers; estimates them if they are many.
///
/// Numbers belong to all queues of the file, so that the rows of one may be far apart, or stand in heaps. So the widest part of the range is
/// halved again and again, until each has few rows or there are many parts. They begin at even distances, wherever the heaps are: that some
/// begin in a heap and others before one makes up for each other.
fn by_number(view: &View<'_>, queue: &Found) -> rusqlite::Result<i64> {
    let rows = row_id::from_head(queue.id, queue.head);
    let exact = Sample::read(view, rows.clone(), EXACT)?;
    if exact.rows < EXACT {
        return Ok(exact.by_number);
    }
    let last = "SELECT coalesce(max(id), 0) FROM jobqueue_message WHERE id >= ?1 AND id < ?2";
    let last: i64 =
        view.connection.prepare_cached(last)?.query_row([rows.start, rows.end], |row| row.get(0))?;
    let mut parts = Parts { count: exact.by_number, estimates: BinaryHeap::new() };
    parts.add(view, exact.last + 1..last + 1)?;
    while parts.estimates.len() < PARTS
        && let Some((width, first, _)) = parts.estimates.pop()
    {
        let middle = first + width / 2;
        parts.add(view, first..middle)?;
        parts.add(view, middle..first + width)?;
    }
    Ok(parts.count + parts.estimates.iter().map(|(_, _, estimate)| estimate).sum::<i64>())
}

/// The parts of the rows of a queue.
struct Parts {
    /// The number of messages in those that were read completely.
    count: i64,
    /// The others: the width, the first row, and the estimated number of messages.
    estimates: BinaryHeap<(i64, i64, i64)>,
}

impl Parts {
    fn add(&mut self, view: &View<'_>, part: Range<i64>) -> rusqlite::Result<()> {
        let sample = Sample::read(view, part.clone(), ROWS + 1)?;
        if sample.rows <= ROWS {
            self.count += sample.by_number;
        } else {
            self.estimates.push((part.end - part.start, part.start, sample.estimate(&part)));
        }
        Ok(())
    }
}

/// Some rows that follow each other.
struct Sample {
    rows: i64,
    by_number: i64,
    last: i64,
}

impl Sample {
    /// Reads the first rows of a part.
    fn read(view: &View<'_>, part: Range<i64>, limit: i64) -> rusqlite::Result<Self> {
        let mut statement = view.connection.prepare_cached(FIRST_ROWS)?;
        statement.query_row(params![part.start, part.end, limit], |row| {
            Ok(Self { rows: row.get(0)?, by_number: row.get(1)?, last: row.get(2)? })
        })
    }

    /// Returns the number of messages of the part that are received by their numbers, if all of it is like its beginning. Too many are
    /// better than too few: a sender may wait until there are few.
    fn estimate(&self, part: &Range<i64>) -> i64 {
        let dense = (self.rows - 1) as f64 / (self.last - part.start) as f64;
        let share = (dense * MARGIN).min(1.0) * self.by_number as f64 / self.rows as f64;
        (share * (part.end - part.start) as f64).ceil() as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::file;

    /// Returns the count of a queue with messages of these numbers: each first number, the count, and the distance of two.
    fn counted(runs: &[(i64, i64, i64)]) -> i64 {
        let mut connection = file(&[]);
        let rows = "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?2)
            INSERT OR IGNORE INTO jobqueue_message (id, queue, inserted_at, dequeue_count, leased, waiting, receipt, text)
            SELECT (1 << 42) + (1 << 41) + ?1 + i * ?3, 1, 0, 0, 0, 0, x'', '' FROM n";
        for run in runs {
            connection.execute(rows, *run).unwrap();
        }
        let view = View { connection: connection.transaction().unwrap(), now: 1 };
        by_number(&view, &Found { id: 1, metadata: String::new(), head: 0 }).unwrap()
    }

    #[test]
    fn few_messages_are_counted_exactly() {
        assert_eq!(counted(&[(1, 20_000, 1), (90_000_000, 45_535, 7)]), 65_535);
    }

    /// Wherever the numbers of a long queue are, its count is at most an eighth too high, and not too low.
    #[test]
    fn long_queues_are_counted_from_row_to_row() {
        for (runs, real) in [
            (&[(1, 100_000, 1)][..], 100_000),
            (&[(10_000_000, 70_000, 1)], 70_000),
            (&[(100_000_000, 200_000, 1)], 200_000),
            (&[(1, 80_000, 1), (80_001, 80_000, 2)], 160_000),
            (&[(1, 100_000, 1), (100_100_000, 10, 1)], 100_010),
            (&[(1, 100_000, 1_000), (30_000_500, 100_000, 50)], 200_000),
            (&[(1, 10, 10_000_000), (50_000_001, 100_000, 3)], 100_009),
        ] {
            let counted = counted(runs);
            assert!((real..=real * 9 / 8).contains(&counted), "{counted} of {real}: {runs:?}");
        }
    }

    /// Lists of messages in turn with those of other queues, and longer ones far from each other.
    #[test]
    fn lists_of_queues_in_turn_are_counted() {
        for (lists, length, distance) in [(150, 1_000, 2_000), (150, 1_025, 2_050), (100, 2_000, 100_000)] {
            let runs: Vec<_> = (0..lists).map(|list| (1 + list * distance, length, 1)).collect();
            let (counted, real) = (counted(&runs), lists * length);
            assert!(
                (real * 19 / 20..=real * 9 / 8).contains(&counted),
                "{counted} of {real}: every {distance} {length}"
            );
        }
    }
}
