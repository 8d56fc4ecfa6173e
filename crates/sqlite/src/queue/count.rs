//! Counts messages.
//!
//! Messages that are received by their numbers have no index. Up to [`EXACT_ROWS`] the rows of a queue are
//! counted; in a longer queue the number of these messages is estimated from samples.

use std::ops::Range;
use std::time::SystemTime;

use rusqlite::params_from_iter;
use rusqlite::types::FromSql;

use super::admin::{FoundQueue, find};
use crate::clock::{LEASED_TIME, to_instant};
use crate::error::Applied;
use crate::metadata;
use crate::reader::View;
use crate::row_id;
use jobqueue_storage::{Operation, QueueName, QueueProperties, StateCounts};

/// The messages in the index of times: delayed, put back, or visible again. Leased ones sort after all times.
pub(crate) const BY_TIME: &str = "SELECT count(*) FROM jobqueue_message
    WHERE queue = ?1 AND waiting = 0 AND visible_at < ?3";
/// The messages that wait for another message of their group.
pub(crate) const WAITING: &str =
    "SELECT count(*) FROM jobqueue_message WHERE queue = ?1 AND waiting = 1 AND group_name IS NOT NULL";
/// The expired messages.
pub(crate) const ALL_EXPIRED: &str =
    "SELECT count(*) FROM jobqueue_message INDEXED BY jobqueue_message_expiry
    WHERE expires_at <= ?2 AND queue = ?1";
/// The expired messages among these three kinds and the leased messages. Without statistics SQLite would use
/// the index of the queue, and read every message.
pub(crate) const EXPIRED: &str = "SELECT count(*) FROM jobqueue_message m INDEXED BY jobqueue_message_expiry
    WHERE m.expires_at <= ?2 AND m.queue = ?1
        AND (m.visible_at IS NOT NULL OR EXISTS (SELECT 1 FROM jobqueue_lease l WHERE l.id = m.id))";
/// The hidden messages in the index of times: never received, leased by the receipt of a put, and put back.
pub(crate) const HIDDEN: &str =
    "SELECT coalesce(sum(leased = 0), 0), coalesce(sum(leased = 1), 0), coalesce(sum(leased = 2), 0)
    FROM jobqueue_message WHERE queue = ?1 AND waiting = 0 AND visible_at > ?2 AND visible_at < ?3";
/// The expired messages among these. They are few, because expired messages are removed continually.
pub(crate) const HIDDEN_EXPIRED: &str =
    "SELECT coalesce(sum(leased = 0), 0), coalesce(sum(leased = 1), 0), coalesce(sum(leased = 2), 0)
    FROM jobqueue_message INDEXED BY jobqueue_message_expiry
    WHERE expires_at <= ?2 AND queue = ?1 AND waiting = 0 AND visible_at > ?2 AND visible_at < ?3";
/// The first of those that were put back, by its number and by whether it could be received at once: numbers
/// grow with time, and stand in the index.
pub(crate) const FIRST_BACKING_OFF: &str = "SELECT min(((id & 2199023255551) << 1) | ((id >> 41) & 1)) FROM jobqueue_message
    WHERE queue = ?1 AND waiting = 0 AND visible_at > ?2 AND visible_at < ?3 AND leased = 2 AND id NOT IN
        (SELECT id FROM jobqueue_message INDEXED BY jobqueue_message_expiry WHERE expires_at <= ?2 AND queue = ?1)";
/// The first of the messages that wait for another message of their group and are not delayed, in the same
/// form.
pub(crate) const FIRST_HELD_UP: &str = "SELECT min(((id & 2199023255551) << 1) | ((id >> 41) & 1)) FROM jobqueue_message
    WHERE queue = ?1 AND waiting = 1 AND group_name IS NOT NULL AND id NOT IN
        (SELECT id FROM jobqueue_message INDEXED BY jobqueue_message_expiry WHERE expires_at <= ?2 AND queue = ?1)
    AND NOT coalesce(leased = 0 AND visible_at > ?2 AND visible_at < ?3, 0)";
const INSERTED: &str = "SELECT inserted_at FROM jobqueue_message WHERE id = ?1";

const LEASED: &str = "SELECT count(*) FROM jobqueue_lease WHERE id >= ?1 AND id < ?2";
/// The unexpired messages with a lease in force.
pub(crate) const RUNNING: &str =
    "SELECT count(*) FROM jobqueue_lease l CROSS JOIN jobqueue_message m ON m.id = l.id
    WHERE l.id >= ?1 AND l.id < ?2 AND l.until > ?3 AND (m.expires_at IS NULL OR m.expires_at > ?3)";

/// The condition that a message is received by its number and has not expired.
macro_rules! is_by_number {
    () => {
        "m.visible_at IS NULL AND l.id IS NULL AND (m.expires_at IS NULL OR m.expires_at > ?3)"
    };
}

/// Reads the first rows of a range: their number, the number of messages among them that are received by
/// their numbers, and the last row. An expired message counts only as a row: if the exact number of expired
/// messages were subtracted from an estimate, nothing might be left for the others.
const FIRST_ROWS: &str = concat!(
    "SELECT count(*), coalesce(sum(by_number), 0), coalesce(max(id), 0) FROM (SELECT m.id AS id, ",
    is_by_number!(),
    " AS by_number FROM jobqueue_message m LEFT JOIN jobqueue_lease l ON l.id = m.id
     WHERE m.id >= ?1 AND m.id < ?2 ORDER BY m.id LIMIT ?4)"
);
/// Returns whether any message is received by its number.
const HAS_ANY: &str = concat!(
    "SELECT EXISTS (SELECT 1 FROM jobqueue_message m LEFT JOIN jobqueue_lease l ON l.id = m.id WHERE m.id >= ?1 AND m.id < ?2 AND ",
    is_by_number!(),
    ")"
);

/// Counts the rows of a range, up to a number.
const ROWS: &str =
    "SELECT count(*) FROM (SELECT 1 FROM jobqueue_message WHERE id >= ?1 AND id < ?2 LIMIT ?3)";
/// The number of rows of a queue up to which the count is exact. SQLite counts rows several times as fast as
/// it looks up whether each is leased.
const EXACT_ROWS: i64 = 131_072;
/// The number of rows at the head of a longer queue that are read one by one.
const FIRST_READ: i64 = 16_384;
/// The number of rows behind these that should be read in windows; at most twice as many are read.
const SAMPLED_ROWS: i64 = 32_768;
/// The number of windows.
const WINDOWS: i64 = 8_192;
/// A first pass reads fewer and narrower windows, and few rows of each, to determine the width of the others.
const FIRST_WINDOWS: i64 = 2_048;
const FIRST_SHARE: f64 = 1.0 / 64.0;
const FIRST_LIMIT: i64 = 64;
/// The golden ratio, whose multiples are far from every period.
const GOLDEN_RATIO: f64 = 0.618_033_988_749_894_9;

/// Returns metadata and count.
pub(super) fn properties(view: &View<'_>, name: &QueueName) -> Applied<QueueProperties> {
    let queue = find(view, Operation::QueueProperties, name)?;
    let count = u64::try_from(all(view, &queue)?).unwrap_or(0);
    Ok(QueueProperties::new(metadata::from_text(&queue.metadata)?, count).with_now(to_instant(view.now)))
}

/// Counts the unexpired messages, or estimates a large number of them.
fn all(view: &View<'_>, queue: &FoundQueue) -> rusqlite::Result<i64> {
    let rows = row_id::all(queue.id);
    let count = |sql| number::<i64>(view, sql, queue.id);
    let mut statement = view.connection.prepare_cached(ROWS)?;
    let present: i64 = statement.query_row([rows.start, rows.end, EXACT_ROWS], |row| row.get(0))?;
    if present < EXACT_ROWS {
        return Ok(present - count(ALL_EXPIRED)?);
    }
    let mut statement = view.connection.prepare_cached(LEASED)?;
    let leased: i64 = statement.query_row([rows.start, rows.end], |row| row.get(0))?;
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
    let positive = |count: i64| u64::try_from(count).unwrap_or(0);
    let waiting = all(view, &queue)? - delayed - hidden - running - backing_off;
    Ok(StateCounts {
        now: Some(to_instant(view.now)),
        waiting: positive(waiting),
        delayed: positive(delayed),
        backing_off: positive(backing_off),
        running: positive(hidden + running),
        oldest_backing_off: if backing_off > 0 { inserted(view, FIRST_BACKING_OFF, &queue)? } else { None },
        oldest_held_up: inserted(view, FIRST_HELD_UP, &queue)?,
    })
}

/// Returns the time at which the first message that a statement finds was inserted.
fn inserted(view: &View<'_>, first: &str, queue: &FoundQueue) -> rusqlite::Result<Option<SystemTime>> {
    let Some(first) = number::<Option<i64>>(view, first, queue.id)? else { return Ok(None) };
    let row = row_id::of(queue.id, first >> 1, first & 1 == 1);
    view.connection.prepare_cached(INSERTED)?.query_row([row], |row| Ok(Some(to_instant(row.get(0)?))))
}

/// Reads a number with a statement that takes the queue's id, and optionally the time and the time of leased
/// messages.
fn number<N: FromSql>(view: &View<'_>, sql: &str, queue: i64) -> rusqlite::Result<N> {
    let mut statement = view.connection.prepare_cached(sql)?;
    let parameters = statement.parameter_count();
    let values = [queue, view.now, LEASED_TIME].into_iter().take(parameters);
    statement.query_row(params_from_iter(values), |row| row.get(0))
}

/// Counts the messages that are received by their numbers, or estimates a large number of them. Returns 0
/// only if there are none.
///
/// All queues of the file share the numbers, so the rows of a queue may be far apart or in clusters. The rows
/// after the exactly counted ones are therefore sampled in windows of equal width. The content of a window
/// must not decide where it ends, or clusters would count for more than gaps.
fn by_number(view: &View<'_>, queue: &FoundQueue) -> rusqlite::Result<i64> {
    let rows = row_id::from_head(queue.id, queue.head);
    let exact = Sample::read(view, &rows, FIRST_READ)?;
    if exact.rows < FIRST_READ {
        return Ok(exact.by_number);
    }
    let last = "SELECT coalesce(max(id), 0) FROM jobqueue_message WHERE id >= ?1 AND id < ?2";
    let last: i64 =
        view.connection.prepare_cached(last)?.query_row([rows.start, rows.end], |row| row.get(0))?;
    let rest = exact.last + 1..last + 1;
    let mut about = 0.0;
    for Window { rows, times } in windows(&rest, FIRST_WINDOWS, FIRST_SHARE) {
        about += Sample::read(view, &rows, FIRST_LIMIT)?.extended(&rows, FIRST_LIMIT) * times;
    }
    let share = (SAMPLED_ROWS as f64 / about.max(1.0)).min(1.0);
    let (mut count, mut left) = (0.0, 2 * SAMPLED_ROWS);
    for Window { rows, times } in windows(&rest, WINDOWS, share) {
        let sample = Sample::read(view, &rows, left)?;
        left -= sample.rows;
        count += sample.by_number as f64 * times;
    }
    match exact.by_number + count as i64 {
        // The windows may have missed the few messages that there are.
        0 => {
            let mut any = view.connection.prepare_cached(HAS_ANY)?;
            any.query_row([rows.start, rows.end, view.now], |row| row.get(0))
        }
        about => Ok(about),
    }
}

/// A window of a part of a range, and the ratio of their widths.
struct Window {
    rows: Range<i64>,
    times: f64,
}

/// Divides a range into `parts` and returns a window of each: the given share of the part, at a different
/// offset in each.
fn windows(range: &Range<i64>, parts: i64, share: f64) -> impl Iterator<Item = Window> {
    let (start, width) = (range.start, range.end - range.start);
    let parts = (0..parts).map(move |part| (part, width * part / parts, width * (part + 1) / parts));
    parts.filter(|(_, from, to)| from < to).map(move |(part, from, to)| {
        let wide = (to - from) as f64;
        let window = ((wide * share) as i64).max(1);
        let offset = (wide - window as f64) * (part as f64 * GOLDEN_RATIO).fract();
        let from = start + from + offset as i64;
        Window { rows: from..from + window, times: wide / window as f64 }
    })
}

/// Consecutive rows of a range.
struct Sample {
    rows: i64,
    by_number: i64,
    last: i64,
}

impl Sample {
    /// Reads the first rows of a range.
    fn read(view: &View<'_>, range: &Range<i64>, limit: i64) -> rusqlite::Result<Self> {
        let mut statement = view.connection.prepare_cached(FIRST_ROWS)?;
        statement.query_row([range.start, range.end, view.now, limit], |row| {
            Ok(Self { rows: row.get(0)?, by_number: row.get(1)?, last: row.get(2)? })
        })
    }

    /// Returns the estimated number of rows of the range, if the rows after a full sample are as dense.
    fn extended(&self, range: &Range<i64>, limit: i64) -> f64 {
        let seen = if self.rows < limit { range.end } else { self.last + 1 } - range.start;
        self.rows as f64 * (range.end - range.start) as f64 / seen as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::file;
    use rusqlite::{Connection, StatementStatus};

    /// Returns a file with a queue that has messages with these numbers: of each run the first number, the
    /// count, and the distance between two.
    fn filled(runs: &[(i64, i64, i64)]) -> Connection {
        let connection = file(&[]);
        let rows = "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?2)
            INSERT OR IGNORE INTO jobqueue_message (id, queue, inserted_at, dequeue_count, leased, waiting, receipt, text)
            SELECT (1 << 42) + (1 << 41) + ?1 + i * ?3, 1, 0, 0, 0, 0, x'', '' FROM n";
        let mut insert = connection.prepare(rows).unwrap();
        for run in runs {
            insert.execute(*run).unwrap();
        }
        drop(insert);
        connection
    }

    /// Returns the count of the queue, and the number of samples that it took.
    fn count_of(runs: &[(i64, i64, i64)]) -> (i64, i64) {
        let mut connection = filled(runs);
        let view = View { connection: connection.transaction().unwrap(), now: 1 };
        let count = by_number(&view, &FoundQueue { id: 1, metadata: String::new(), head: 0 }).unwrap();
        let samples = view.connection.prepare_cached(FIRST_ROWS).unwrap().get_status(StatementStatus::Run);
        (count, i64::from(samples))
    }

    #[test]
    fn up_to_131_071_messages_are_counted_exactly() {
        let mut connection = filled(&[(1, 40_000, 1), (90_000_000, 91_071, 7)]);
        connection.execute("UPDATE jobqueue_message SET expires_at = 1 WHERE id % 10 = 0", []).unwrap();
        let expired = i64::try_from(connection.changes()).unwrap();
        let view = View { connection: connection.transaction().unwrap(), now: 1 };
        let queue = FoundQueue { id: 1, metadata: String::new(), head: 0 };
        assert_eq!(all(&view, &queue).unwrap(), 131_071 - expired);
    }

    fn assert_about(runs: &[(i64, i64, i64)], real: i64) {
        let (counted, _) = count_of(runs);
        assert!(
            (real * 9 / 10..=real * 9 / 8).contains(&counted),
            "{counted} of {real}: {:?}",
            &runs[..runs.len().min(4)]
        );
    }

    /// The count is accurate wherever the numbers of a long queue are.
    #[test]
    fn long_queues_are_counted_to_a_tenth() {
        assert_about(&[(1, 100_000, 1)], 100_000);
        assert_about(&[(10_000_000, 70_000, 1)], 70_000);
        assert_about(&[(100_000_000, 200_000, 1)], 200_000);
        assert_about(&[(1, 80_000, 1), (80_001, 80_000, 2)], 160_000);
        assert_about(&[(1, 100_000, 1), (100_100_000, 10, 1)], 100_010);
        assert_about(&[(1, 100_000, 1_000), (30_000_500, 100_000, 50)], 200_000);
        assert_about(&[(1, 10, 10_000_000), (50_000_001, 100_000, 3)], 100_009);
    }

    fn lists(count: i64, length: i64, distance: i64) -> Vec<(i64, i64, i64)> {
        (0..count).map(|list| (1 + list * distance, length, 1)).collect()
    }

    /// Runs of messages that alternate with other queues: short and long, far apart, and at powers of two.
    #[test]
    fn lists_of_queues_in_turn_are_counted() {
        for (count, length, distance) in [
            (150, 1_000, 2_000),
            (150, 1_025, 2_050),
            (100, 2_000, 100_000),
            (20_000, 10, 1_000),
            (3_000, 100, 30_000),
            (1_200, 64, 128),
            (300, 1_024, 2_048),
        ] {
            assert_about(&lists(count, length, distance), count * length);
        }
    }

    /// Hundreds of thousands of messages have expired at once, with a few messages without expiry behind
    /// them.
    #[test]
    fn few_messages_among_many_expired_ones_are_counted() {
        for (count, length, distance) in [(3_000, 100, 30_000), (20_000, 10, 1_000)] {
            let mut connection = filled(&lists(count, length, distance));
            let kept = "UPDATE jobqueue_message SET expires_at = 1 WHERE id < (SELECT max(id) FROM jobqueue_message)";
            connection.execute(kept, []).unwrap();
            let view = View { connection: connection.transaction().unwrap(), now: 1 };
            let counted = all(&view, &FoundQueue { id: 1, metadata: String::new(), head: 0 }).unwrap();
            assert!((1..=10).contains(&counted), "{counted} instead of 1");
        }
    }

    /// One thread answers all counts, pages, listings and searches.
    #[test]
    fn samples_of_a_count_are_bounded() {
        let (count, samples) = count_of(&lists(14_554, 10, 1_000_000));
        assert!(count > 140_000 && samples <= 1 + FIRST_WINDOWS + WINDOWS, "{count} by {samples} samples");
    }
}
