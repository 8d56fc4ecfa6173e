//! Adds messages.

use std::sync::Arc;

use crate::batch::Batch;
use crate::clock::after;
use crate::error::Applied;
use crate::new_row::{NewRow, Pending};
use crate::receipt::Receipt;
use crate::row_id;
use jobqueue_storage::{Operation, PutMessage, QueueName};

/// Adds a message whose arguments were checked. The message is inserted before any operation other than a put
/// reads messages.
pub(crate) fn put(batch: &mut Batch<'_>, name: &QueueName, message: &Arc<PutMessage>) -> Applied<NewRow> {
    let queue = batch.queue(Operation::Put, name)?;
    let row = new_row(batch, queue, message)?;
    if message.group.is_some() {
        batch.begin_groups(name)?;
    }
    batch.defer_insert(Pending { queue, row, message: Arc::clone(message) });
    batch.arrive(name, row.visible_at())?;
    Ok(row)
}

pub(super) fn put_all(
    batch: &mut Batch<'_>,
    name: &QueueName,
    messages: &[PutMessage],
) -> Applied<Vec<NewRow>> {
    let queue = batch.queue(Operation::PutAll, name)?;
    let pending = |message| Ok(Pending { queue, row: new_row(batch, queue, message)?, message });
    let rows: Vec<_> = messages.iter().map(pending).collect::<Applied<_>>()?;
    if rows.iter().any(|one| one.message.group.is_some()) {
        batch.begin_groups(name)?;
    }
    batch.insert(&rows)?;
    let visible_at = || rows.iter().map(|one| one.row.visible_at());
    for first_or_last in visible_at().min().into_iter().chain(visible_at().max()) {
        batch.arrive(name, first_or_last)?;
    }
    Ok(rows.into_iter().map(|one| one.row).collect())
}

fn new_row(batch: &mut Batch<'_>, queue: i64, message: &PutMessage) -> Applied<NewRow> {
    let now = batch.now();
    let at_once = message.group.is_none() && message.visibility_delay.is_zero();
    Ok(NewRow {
        now,
        id: row_id::of(queue, batch.next()?, at_once),
        visible_at: (!at_once).then(|| after(now, message.visibility_delay)),
        expires_at: message.ttl.map(|ttl| after(now, ttl)),
        receipt: Receipt::random(batch.runtime()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::StoreClock;
    use crate::known::Known;
    use crate::tests::{begin, file};
    use jobqueue_storage::clock::ManualClock;
    use jobqueue_storage::runtime::Runtime;
    use std::time::Duration;

    #[test]
    fn deferred_put_keeps_its_queue_text_and_answer() {
        let connection = file(&["first", "second"]);
        let queues: [QueueName; 2] = ["first".parse().unwrap(), "second".parse().unwrap()];
        let clock = StoreClock::new(Runtime::new().with_clock(Arc::new(ManualClock::new())));
        // There are enough rows to need every statement; they alternate between two queues every 27.
        let mut batch = begin(&connection, &clock, Known::default());
        let mut answers = Vec::new();
        for number in 0..108 {
            let delay = Duration::from_secs(u64::from(number == 107));
            let message = Arc::new(PutMessage::new(number.to_string()).with_visibility_delay(delay));
            let row = put(&mut batch, &queues[number / 27 % 2], &message);
            answers.push(row.unwrap_or_else(|_| panic!("put {number}")));
        }
        assert_eq!(batch.finish().unwrap().arrived, queues);

        for (number, row) in answers.iter().enumerate() {
            let sql = "SELECT m.text, m.receipt, q.name FROM jobqueue_message m JOIN jobqueue_queue q ON q.id = m.queue
                WHERE m.id = ?1";
            let found: (String, Vec<u8>, String) = connection
                .query_row(sql, [row.id], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
                .unwrap();
            let queue = queues[number / 27 % 2].as_str().to_owned();
            assert_eq!(found, (number.to_string(), row.receipt.bytes().to_vec(), queue));
        }
        let delayed = "SELECT group_concat(delayed) FROM jobqueue_queue";
        assert_eq!(connection.query_row(delayed, [], |row| row.get::<_, String>(0)).unwrap(), "0,1");
    }
}
