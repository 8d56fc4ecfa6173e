//! Adds messages.

use sha2::{Digest, Sha256};
use tokio_postgres::types::Type;

use crate::database::{Call, Database, Parameter};
use crate::receipt::{self, Receipt};
use crate::time::{to_instant, to_millis};
use jobqueue_storage::runtime::Runtime;
use jobqueue_storage::{PutMessage, PutOutcome, QueueName, StoreError, StoreErrorKind};

/// Adds messages that belong to no group, in their order.
const PUT: &str = "WITH at AS MATERIALIZED (SELECT jobqueue.writing() AS time)
    INSERT INTO jobqueue.message (queue, visible_at, expires_at, inserted_at, receipt, text)
    SELECT q.id, at.time + m.delay, at.time + m.ttl, at.time, m.receipt, m.text
    FROM jobqueue.queue q, at,
        unnest($2::bytea[], $3::bigint[], $4::bigint[], $5::text[]) WITH ORDINALITY AS m (receipt, delay, ttl, text, number)
    WHERE q.name = $1 ORDER BY m.number RETURNING id, inserted_at";

/// Adds messages of which some belong to groups, in their order.
const PUT_IN_GROUPS: &str = "SELECT p.message_id, p.message_time FROM jobqueue.queue q,
        (SELECT * FROM unnest($2::bytea[], $3::bigint[], $4::bigint[], $5::text[], $6::bytea[])
            WITH ORDINALITY AS m (receipt, delay, ttl, text, group_hash, number) ORDER BY number) AS m,
        LATERAL jobqueue.put_row(q.id, m.group_hash, m.receipt, m.delay, m.ttl, m.text) AS p
    WHERE q.name = $1";

/// The statement that adds a list of messages.
pub(crate) struct Put<'m> {
    queue: &'m str,
    messages: &'m [PutMessage],
    receipts: Vec<Receipt>,
    delays: Vec<i64>,
    ttls: Vec<Option<i64>>,
    texts: Vec<&'m str>,
    groups: Vec<Option<Vec<u8>>>,
}

impl<'m> Put<'m> {
    pub(crate) fn new(queue: &'m QueueName, messages: &'m [PutMessage], runtime: &Runtime) -> Self {
        Self {
            queue: queue.as_str(),
            messages,
            receipts: messages.iter().map(|_| receipt::random(runtime)).collect(),
            delays: messages.iter().map(|message| to_millis(message.visibility_delay)).collect(),
            ttls: messages.iter().map(|message| message.ttl.map(to_millis)).collect(),
            texts: messages.iter().map(|message| message.text.as_str()).collect(),
            groups: messages.iter().map(|message| message.group.as_deref().map(group_hash)).collect(),
        }
    }

    /// Adds the messages, all or none.
    pub(crate) async fn run(
        &self,
        database: &Database,
        call: Call<'_>,
    ) -> Result<Vec<PutOutcome>, StoreError> {
        let receipts: Vec<&[u8]> = self.receipts.iter().map(<[u8; 16]>::as_slice).collect();
        let mut values: Vec<Parameter<'_>> = vec![
            (&self.queue, Type::TEXT),
            (&receipts, Type::BYTEA_ARRAY),
            (&self.delays, Type::INT8_ARRAY),
            (&self.ttls, Type::INT8_ARRAY),
            (&self.texts, Type::TEXT_ARRAY),
        ];
        let has_groups = self.groups.iter().any(Option::is_some);
        if has_groups {
            values.push((&self.groups, Type::BYTEA_ARRAY));
        }
        let rows = database.query(call, if has_groups { PUT_IN_GROUPS } else { PUT }, &values).await?;
        if rows.is_empty() {
            return Err(call.refuse(StoreErrorKind::QueueNotFound));
        }
        if rows.len() != self.messages.len() {
            return Err(call.refuse(StoreErrorKind::Protocol).with_ambiguous(true));
        }
        let outcome = |(row, number): (&tokio_postgres::Row, usize)| {
            let (id, at): (i64, i64) = (call.get(row, 0)?, call.get(row, 1)?);
            let message = receipt::message_ref(id, &self.receipts[number]);
            let outcome = PutOutcome::new(message, to_instant(at), to_instant(at + self.delays[number]));
            Ok(outcome.with_expires(self.ttls[number].map(|ttl| to_instant(at + ttl))))
        };
        rows.iter().zip(0..).map(outcome).collect()
    }
}

/// Returns the name of a group as the table knows it.
fn group_hash(group: &str) -> Vec<u8> {
    Sha256::digest(group.as_bytes())[..16].to_vec()
}
