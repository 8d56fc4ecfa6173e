//! The table, and the three operations: put, claim, delete.

use std::sync::Arc;

use jobqueue_bench_harness::{Result, nanos_now, postgres_url};
use tokio::sync::Notify;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, NoTls, Statement};

use crate::lane::Lane;

const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS message (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    visible_at timestamptz NOT NULL DEFAULT now(),
    receipt    bigint NOT NULL DEFAULT 0,
    attempts   integer NOT NULL DEFAULT 0,
    body       text NOT NULL
);
CREATE INDEX IF NOT EXISTS message_visible ON message (visible_at, id);";

const PUT: &str = "INSERT INTO message (body) SELECT unnest($1)";

const CLAIM: &str = "WITH due AS MATERIALIZED (
    SELECT id FROM message WHERE visible_at <= now() ORDER BY visible_at, id LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED
) UPDATE message SET visible_at = now() + interval '30 seconds', receipt = $2, attempts = attempts + 1
FROM due WHERE message.id = due.id RETURNING message.id, message.body";

const DELETE: &str = "DELETE FROM message USING unnest($1, $2) AS done (id, receipt)
    WHERE message.id = done.id AND message.receipt = done.receipt";

/// The number of connections of each operation: one statement is on its way while another waits for the disk.
pub(crate) const CONNECTIONS: usize = 2;

/// A leased message.
pub(crate) struct Leased {
    pub(crate) id: i64,
    pub(crate) receipt: i64,
    pub(crate) body: String,
}

/// A connection that executes one statement.
pub(crate) struct Prepared {
    client: Client,
    statement: Statement,
}

/// The operations of a database.
pub(crate) struct Store {
    puts: Lane<String>,
    deletes: Lane<(i64, i64)>,
    claims: Vec<Prepared>,
    arrived: Notify,
}

impl Store {
    pub(crate) async fn open() -> Result<Self> {
        connect().await?.batch_execute(SCHEMA).await?;
        let puts = prepare(PUT, &[Type::TEXT_ARRAY]).await?;
        let deletes = prepare(DELETE, &[Type::INT8_ARRAY, Type::INT8_ARRAY]).await?;
        Ok(Self {
            puts: Lane::start(puts, put),
            deletes: Lane::start(deletes, delete),
            claims: prepare(CLAIM, &[Type::INT8, Type::INT8]).await?,
            arrived: Notify::new(),
        })
    }

    pub(crate) async fn put(&self, bodies: Vec<String>) -> Result<()> {
        self.puts.run(bodies).await?;
        self.arrived.notify_one();
        Ok(())
    }

    /// Claims by the connection of that number.
    pub(crate) async fn claim(&self, connection: usize, count: usize) -> Result<Vec<Leased>> {
        let Prepared { client, statement } = &self.claims[connection];
        let (count, receipt) = (i64::try_from(count)?, i64::try_from(nanos_now())?);
        let rows = client.query(statement, &[&count, &receipt]).await?;
        let leased =
            |row: &tokio_postgres::Row| Ok(Leased { id: row.try_get(0)?, receipt, body: row.try_get(1)? });
        rows.iter().map(leased).collect()
    }

    pub(crate) async fn delete(&self, message: (i64, i64)) -> Result<()> {
        self.deletes.run(vec![message]).await
    }

    /// Waits until something was put since the last wait.
    pub(crate) async fn arrival(&self) {
        self.arrived.notified().await;
    }
}

async fn put(prepared: Arc<Prepared>, bodies: Vec<String>) -> Result<()> {
    prepared.execute(&[&bodies]).await
}

async fn delete(prepared: Arc<Prepared>, messages: Vec<(i64, i64)>) -> Result<()> {
    let (ids, receipts): (Vec<i64>, Vec<i64>) = messages.into_iter().unzip();
    prepared.execute(&[&ids, &receipts]).await
}

impl Prepared {
    async fn execute(&self, values: &[&(dyn ToSql + Sync)]) -> Result<()> {
        self.client.execute(&self.statement, values).await?;
        Ok(())
    }
}

async fn prepare(text: &str, types: &[Type]) -> Result<Vec<Prepared>> {
    let mut prepared = Vec::new();
    for _ in 0..CONNECTIONS {
        let client = connect().await?;
        // A plan that is kept from a moment when the table was empty would read all of it later.
        client.batch_execute("SET enable_seqscan = off; SET enable_bitmapscan = off").await?;
        let statement = client.prepare_typed(text, types).await?;
        prepared.push(Prepared { client, statement });
    }
    Ok(prepared)
}

async fn connect() -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(&postgres_url()?, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}
