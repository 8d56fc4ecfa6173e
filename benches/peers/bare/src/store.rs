//! The table, the thread that writes it, and the three operations: put, claim, delete.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::SystemTime;

use jobqueue_bench_harness::Result;
use rusqlite::{Connection, params};
use tokio::sync::{Notify, oneshot};

const MAX_OPERATIONS: usize = 1024;
const LEASE_MILLIS: i64 = 30_000;

const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS message (
    id         INTEGER PRIMARY KEY,
    visible_at INTEGER NOT NULL,
    receipt    INTEGER NOT NULL,
    attempts   INTEGER NOT NULL,
    body       TEXT    NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS message_visible ON message (visible_at);";

/// A leased message.
pub(crate) struct Leased {
    pub(crate) id: i64,
    pub(crate) receipt: i64,
    pub(crate) body: String,
}

/// An operation for the writer, with the channel of its answer.
enum Operation {
    Put(Vec<String>, oneshot::Sender<()>),
    Claim(usize, oneshot::Sender<Vec<Leased>>),
    Delete(Vec<(i64, i64)>, oneshot::Sender<()>),
}

/// An answer that waits for the commit.
enum Answer {
    Done(oneshot::Sender<()>),
    Leased(oneshot::Sender<Vec<Leased>>, Vec<Leased>),
}

/// A handle to the writer.
#[derive(Clone)]
pub(crate) struct Store {
    operations: Sender<Operation>,
    arrived: Arc<Notify>,
}

impl Store {
    pub(crate) fn open(file: &Path) -> Result<Self> {
        let connection = Connection::open(file)?;
        let _: String = connection.query_row("PRAGMA journal_mode = wal", [], |row| row.get(0))?;
        connection.execute_batch("PRAGMA synchronous = FULL; PRAGMA cache_size = -16000;")?;
        connection.execute_batch("PRAGMA wal_autocheckpoint = 2000;")?;
        connection.execute_batch(SCHEMA)?;
        let (operations, inbox) = mpsc::channel();
        let arrived = Arc::new(Notify::new());
        let notifier = Arc::clone(&arrived);
        std::thread::spawn(move || write(&connection, &inbox, &notifier).expect("the writer works"));
        Ok(Self { operations, arrived })
    }

    pub(crate) async fn put(&self, bodies: Vec<String>) -> Result<()> {
        self.ask(|reply| Operation::Put(bodies, reply)).await
    }

    pub(crate) async fn claim(&self, count: usize) -> Result<Vec<Leased>> {
        self.ask(|reply| Operation::Claim(count, reply)).await
    }

    pub(crate) async fn delete(&self, messages: Vec<(i64, i64)>) -> Result<()> {
        self.ask(|reply| Operation::Delete(messages, reply)).await
    }

    /// Waits until something was put since the last wait.
    pub(crate) async fn arrival(&self) {
        self.arrived.notified().await;
    }

    async fn ask<T>(&self, operation: impl FnOnce(oneshot::Sender<T>) -> Operation) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        self.operations.send(operation(reply))?;
        Ok(answer.await?)
    }
}

fn write(connection: &Connection, inbox: &Receiver<Operation>, notifier: &Notify) -> rusqlite::Result<()> {
    while let Ok(first) = inbox.recv() {
        let mut operations = vec![first];
        operations.extend(inbox.try_iter().take(MAX_OPERATIONS - 1));
        connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        let mut answers = Vec::with_capacity(operations.len());
        let mut put = false;
        for operation in operations {
            put |= matches!(operation, Operation::Put(..));
            answers.push(apply(connection, operation)?);
        }
        connection.prepare_cached("COMMIT")?.execute([])?;
        if put {
            notifier.notify_one();
        }
        for answer in answers {
            match answer {
                Answer::Done(reply) => drop(reply.send(())),
                Answer::Leased(reply, leased) => drop(reply.send(leased)),
            }
        }
    }
    Ok(())
}

fn apply(connection: &Connection, operation: Operation) -> rusqlite::Result<Answer> {
    Ok(match operation {
        Operation::Put(bodies, reply) => {
            let mut insert = connection.prepare_cached(
                "INSERT INTO message (visible_at, receipt, attempts, body) VALUES (?1, 0, 0, ?2)",
            )?;
            let now = millis();
            for body in bodies {
                insert.execute(params![now, body])?;
            }
            Answer::Done(reply)
        }
        Operation::Claim(count, reply) => {
            let now = millis();
            let mut select = connection.prepare_cached(
                "SELECT id, body FROM message WHERE visible_at <= ?1 ORDER BY visible_at LIMIT ?2",
            )?;
            let found = select.query_map(params![now, count as i64], |row| Ok((row.get(0)?, row.get(1)?)))?;
            let found: Vec<(i64, String)> = found.collect::<rusqlite::Result<_>>()?;
            let mut update = connection.prepare_cached(
                "UPDATE message SET visible_at = ?2, receipt = ?3, attempts = attempts + 1 WHERE id = ?1",
            )?;
            let mut leased = Vec::with_capacity(found.len());
            for (id, body) in found {
                let receipt = id ^ now;
                update.execute(params![id, now + LEASE_MILLIS, receipt])?;
                leased.push(Leased { id, receipt, body });
            }
            Answer::Leased(reply, leased)
        }
        Operation::Delete(messages, reply) => {
            let mut delete =
                connection.prepare_cached("DELETE FROM message WHERE id = ?1 AND receipt = ?2")?;
            for (id, receipt) in messages {
                delete.execute(params![id, receipt])?;
            }
            Answer::Done(reply)
        }
    })
}

fn millis() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_millis() as i64
}
