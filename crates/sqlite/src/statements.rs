//! The prepared statements of one transaction.

use rusqlite::{CachedStatement, Connection};

/// The statements that a transaction has used so far. They return to the connection's cache when the transaction ends:
/// looking them up there for every message is a considerable part of the cost of a message.
pub(super) struct Statements<'c> {
    connection: &'c Connection,
    used: Vec<(&'static str, CachedStatement<'c>)>,
}

impl<'c> Statements<'c> {
    pub(super) fn new(connection: &'c Connection) -> Self {
        Self { connection, used: Vec::new() }
    }

    /// Returns a statement: prepared once per connection, and looked up once per transaction.
    pub(super) fn get(&mut self, sql: &'static str) -> rusqlite::Result<&mut CachedStatement<'c>> {
        // The same text at another address is merely prepared twice.
        let at = match self.used.iter().position(|(known, _)| std::ptr::eq(*known, sql)) {
            Some(at) => at,
            None => {
                self.used.push((sql, self.connection.prepare_cached(sql)?));
                self.used.len() - 1
            }
        };
        Ok(&mut self.used[at].1)
    }
}
