//! Adds messages.

use sha2::{Digest, Sha256};
use tokio_postgres::types::Type;

use crate::database::{Call, Database, Parameter};
use crate::driver::{Numbers, Value};
use crate::receipt;
use crate::time::{to_instant, to_millis};
use jobqueue_storage::runtime::Runtime;
use jobqueue_storage::{PutMessage, PutOutcome, QueueName, StoreError, StoreErrorKind};

/// Adds messages without groups, in their order.
const PUT: &str = "SELECT * FROM jobqueue.put_rows($1, $2, $3, $4, $5)";

/// Adds messages, some of which belong to groups, and returns them in the order of the list. Every list locks
/// its groups in the same order, so that two lists cannot deadlock. $7 limits the wait for each lock.
const PUT_IN_GROUPS: &str = "WITH at AS MATERIALIZED (
        SELECT q.id, pg_catalog.set_config('lock_timeout', coalesce($7, pg_catalog.current_setting('lock_timeout')), true) FROM jobqueue.queue q WHERE q.name = $1
    ), put AS MATERIALIZED (
        SELECT p.message_id, p.message_time, m.number FROM at,
            LATERAL (SELECT * FROM unnest($2::bytea[], $3::bigint[], $4::bigint[], $5::text[], $6::bytea[])
                WITH ORDINALITY AS m (receipt, delay, ttl, text, group_hash, number) ORDER BY group_hash NULLS FIRST, number) AS m,
            LATERAL jobqueue.put_row(at.id, m.group_hash, m.receipt, m.delay, m.ttl, m.text) AS p
    ) SELECT message_id, message_time FROM put ORDER BY number";

/// Adds a single message, and waits for a transaction that holds up its group.
pub(crate) const PUT_ONE: &str = "SELECT p.message_id, p.message_time
    FROM jobqueue.queue q, LATERAL jobqueue.put_row(q.id, $2, $3, $4, $5, $6) AS p WHERE q.name = $1";

/// The statement that adds a list of messages.
pub(crate) struct Put<'m> {
    queue: &'m str,
    receipts: Vec<Vec<u8>>,
    delays: Vec<i64>,
    ttls: Vec<Option<i64>>,
    texts: Vec<&'m str>,
    groups: Vec<Option<Vec<u8>>>,
    lock_limit: Option<&'m str>,
}

impl<'m> Put<'m> {
    pub(crate) fn new(queue: &'m QueueName, messages: &'m [PutMessage], runtime: &Runtime) -> Self {
        Self {
            queue: queue.as_str(),
            receipts: messages.iter().map(|_| receipt::random(runtime).to_vec()).collect(),
            delays: messages.iter().map(|message| to_millis(message.visibility_delay)).collect(),
            ttls: messages.iter().map(|message| message.ttl.map(to_millis)).collect(),
            texts: messages.iter().map(|message| message.text.as_str()).collect(),
            groups: messages.iter().map(|message| message.group.as_deref().map(group_hash)).collect(),
            lock_limit: None,
        }
    }

    /// Sets how long a message waits for a transaction that holds up its group.
    pub(super) fn with_lock_limit(self, lock_limit: &'m str) -> Self {
        Self { lock_limit: Some(lock_limit), ..self }
    }

    /// Returns the values of [`PUT_ONE`].
    pub(crate) fn values_of_one(&self) -> [Value<'_>; 6] {
        let group = self.groups.first().and_then(Option::as_deref);
        [
            Value::Text(Some(self.queue)),
            Value::Bytes(group),
            Value::Bytes(self.receipts.first().map(Vec::as_slice)),
            Value::Number(self.delays.first().copied()),
            Value::Number(self.ttls.first().copied().flatten()),
            Value::Text(self.texts.first().copied()),
        ]
    }

    /// Returns the statement. It adds all messages or none.
    fn sql(&self) -> &'static str {
        if self.has_groups() { PUT_IN_GROUPS } else { PUT }
    }

    /// Returns the values of the statement.
    fn values(&self) -> Vec<Parameter<'_>> {
        let mut values: Vec<Parameter<'_>> = vec![
            (&self.queue, Type::TEXT),
            (&self.receipts, Type::BYTEA_ARRAY),
            (&self.delays, Type::INT8_ARRAY),
            (&self.ttls, Type::INT8_ARRAY),
            (&self.texts, Type::TEXT_ARRAY),
        ];
        if self.has_groups() {
            values.push((&self.groups, Type::BYTEA_ARRAY));
            values.push((&self.lock_limit, Type::TEXT));
        }
        values
    }

    /// Reads the outcome of each message.
    ///
    /// # Errors
    /// `QueueNotFound` if the queue does not exist.
    pub(crate) fn outcomes(&self, call: Call<'_>, rows: &[Numbers]) -> Result<Vec<PutOutcome>, StoreError> {
        if rows.is_empty() {
            return Err(call.refuse(StoreErrorKind::QueueNotFound));
        }
        if rows.len() != self.receipts.len() {
            return Err(call.refuse(StoreErrorKind::Protocol).with_ambiguous(true));
        }
        let outcome = |(row, number): (&Numbers, usize)| {
            let (id, at) = (call.number(row, 0)?, call.number(row, 1)?);
            let message = receipt::message_ref(id, &self.receipts[number]);
            let outcome = PutOutcome::new(message, to_instant(at), to_instant(at + self.delays[number]));
            Ok(outcome.with_expires(self.ttls[number].map(|ttl| to_instant(at + ttl))))
        };
        rows.iter().zip(0..).map(outcome).collect()
    }

    pub(crate) async fn run(
        &self,
        database: &Database,
        call: Call<'_>,
    ) -> Result<Vec<PutOutcome>, StoreError> {
        let rows = database.query(call, self.sql(), &self.values()).await?;
        self.outcomes(call, &call.numbers(&rows)?)
    }

    fn has_groups(&self) -> bool {
        self.groups.iter().any(Option::is_some)
    }
}

/// Returns the table's key for a group: the first half of the SHA-256 of its name.
fn group_hash(group: &str) -> Vec<u8> {
    Sha256::digest(group.as_bytes())[..16].to_vec()
}
