//! Files and transactions for the tests of statements.

use rusqlite::Connection;
use rusqlite::config::DbConfig;

use super::batch::Batch;
use super::clock::StoreClock;
use super::known::Known;
use super::schema::{self, MIGRATIONS};

/// Returns a file in memory with these queues.
pub(super) fn file(queues: &[&str]) -> Connection {
    let mut connection = Connection::open_in_memory().unwrap();
    // Plans are kept as in a store.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).unwrap();
    schema::prepare(&mut connection).unwrap();
    for name in queues {
        let sql = "INSERT INTO jobqueue_queue (name, metadata, delayed) VALUES (?1, '{}', 0)";
        connection.execute(sql, [name]).unwrap();
    }
    assert_eq!(schema::version(&connection).map_err(drop), Ok(MIGRATIONS.len()));
    connection
}

pub(super) fn begin<'c>(connection: &'c Connection, clock: &StoreClock, known: Known) -> Batch<'c> {
    Batch::begin(connection, clock, known).unwrap_or_else(|_| panic!("no transaction begins"))
}
