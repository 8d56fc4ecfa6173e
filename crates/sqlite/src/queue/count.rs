//! Counts messages.
//!
//! Messages that are received by their numbers have no index, so that many of them are counted in samples.

use rusqlite::{params, params_from_iter};

use super::admin::{Found, find};
use crate::error::Applied;
use crate::metadata;
use crate::reader::View;
use crate::row_id;
use jobqueue_storage::{Operation, QueueName, QueueProperties, StateCounts};

/// The messages of the index of times: delayed, put back, or visible again.
pub(crate) const BY_TIME: &str =
    "SELECT count(*) FROM jobqueue_message WHERE queue = ?1 AND waiting = 0 AND visible_at IS NOT NULL";
/// Those that wait for another of their group.
pub(crate) const WAITING: &str =
    "SELECT count(*) FROM jobqueue_message WHERE queue = ?1 AND waiting = 1 AND group_name IS NOT NULL";
/// Those that have expired. Without statistics SQLite would take the index of the queue, and read every message.
pub(crate) const EXPIRED: &str = "SELECT count(*) FROM jobqueue_message INDEXED BY jobqueue_message_expiry
    WHERE expires_at <= ?2 AND queue = ?1";
/// The unexpired hidden messages of the index of times: never received, leased by the receipt of a put, and put back.
pub(crate) const HIDDEN: &str =
    "SELECT coalesce(sum(leased = 0), 0), coalesce(sum(leased = 1), 0), coalesce(sum(leased = 2), 0)
    FROM jobqueue_message
    WHERE queue = ?1 AND waiting = 0 AND visible_at > ?2 AND (expires_at IS NULL OR expires_at > ?2)";

const LEASED: &str = "SELECT count(*) FROM jobqueue_lease WHERE id >= ?1 AND id < ?2";
/// The unexpired messages with a lease in force.
pub(crate) const RUNNING: &str =
    "SELECT count(*) FROM jobqueue_lease l CROSS JOIN jobqueue_message m ON m.id = l.id
    WHERE l.id >= ?1 AND l.id < ?2 AND l.until > ?3 AND (m.expires_at IS NULL OR m.expires_at > ?3)";

/// Some rows: their number, the number of messages that are received by their numbers, and the last row.
const SAMPLE: &str = "SELECT count(*), coalesce(sum(by_number), 0), coalesce(max(id), 0) FROM
    (SELECT m.id AS id, m.visible_at IS NULL AND l.id IS NULL AS by_number
     FROM jobqueue_message m LEFT JOIN jobqueue_lease l ON l.id = m.id
     WHERE m.id >= ?1 AND m.id < ?2 ORDER BY m.id LIMIT ?3)";

/// The number of rows up to which the count is exact.
const EXACT: i64 = 65_536;
/// The number of samples of a longer queue, and the rows of each.
const SAMPLES: i64 = 64;
const ROWS: i64 = 1_024;

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
    let mut statement = view.connection.prepare_cached(HIDDEN)?;
    let hidden = statement.query_row([queue.id, view.now], |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?]));
    let [delayed, hidden, backing_off]: [i64; 3] = hidden?;
    let number = |count: i64| u64::try_from(count).unwrap_or(0);
    let waiting = all(view, &queue)? - delayed - hidden - running - backing_off;
    Ok(StateCounts {
        waiting: number(waiting),
        delayed: number(delayed),
        backing_off: number(backing_off),
        running: number(hidden + running),
    })
}

/// Counts messages of a queue by a statement that takes the queue's row and perhaps the time.
fn count(view: &View<'_>, sql: &str, queue: i64) -> rusqlite::Result<i64> {
    let mut statement = view.connection.prepare_cached(sql)?;
    let parameters = statement.parameter_count();
    let values = [queue, view.now].into_iter().take(parameters);
    statement.query_row(params_from_iter(values), |row| row.get(0))
}

/// Counts the messages that are received by their numbers; estimates them by samples all over the queue if they are many.
fn by_number(view: &View<'_>, queue: &Found) -> rusqlite::Result<i64> {
    let rows = row_id::from_head(queue.id, queue.head);
    let mut statement = view.connection.prepare_cached(SAMPLE)?;
    let mut sample = |from: i64, to: i64, limit: i64| {
        let found =
            statement.query_row(params![from, to, limit], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
        found.map(|(seen, by_number, last): (i64, i64, i64)| (seen < limit, by_number, last))
    };
    let (is_exact, exact, _) = sample(rows.start, rows.end, EXACT)?;
    if is_exact {
        return Ok(exact);
    }
    let mut last = view.connection.prepare_cached("SELECT max(id) FROM jobqueue_message WHERE id < ?1")?;
    let last: i64 = last.query_row([rows.end], |row| row.get(0))?;
    let width = (last - rows.start) / SAMPLES + 1;
    (0..SAMPLES).try_fold(0, |sum, part| {
        let (from, to) = (rows.start + part * width, rows.start + (part + 1) * width);
        let (is_exact, by_number, last) = sample(from, to, ROWS)?;
        let share = if is_exact { 1.0 } else { width as f64 / (last + 1 - from) as f64 };
        Ok(sum + (by_number as f64 * share).round() as i64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::file;

    /// Two thirds of the numbers are in use: the first ones all, the last ones in part.
    #[test]
    fn long_queues_are_counted_by_samples() {
        let mut connection = file(&[]);
        let rows = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 240000) INSERT INTO jobqueue_message
            (id, queue, inserted_at, dequeue_count, leased, waiting, receipt, text)
            SELECT (1 << 42) + (1 << 41) + i, 1, 0, 0, 0, 0, x'', '' FROM n WHERE i < 80000 OR i % 2 = 0";
        connection.execute_batch(rows).unwrap();
        let view = View { connection: connection.transaction().unwrap(), now: 1 };
        let queue = Found { id: 1, metadata: String::new(), head: 0 };
        let counted = by_number(&view, &queue).unwrap();
        assert!((158_000..162_000).contains(&counted), "{counted} of 160,000");
        let queue = Found { head: row_id::of(1, 200_001, true), ..queue };
        assert_eq!(by_number(&view, &queue).unwrap(), 20_000, "few are counted exactly");
    }
}
