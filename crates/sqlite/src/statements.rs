//! The prepared statements of a transaction.

use rusqlite::{CachedStatement, Connection, ToSql};

/// The statements that a transaction has used so far. They return to the connection's cache when the
/// transaction ends. Looking them up in that cache for every message would be a considerable part of a
/// message's cost.
pub(super) struct Statements<'c> {
    connection: &'c Connection,
    used: Vec<(&'static str, CachedStatement<'c>)>,
}

/// A statement that inserts one row, and statements that insert several rows at once: starting and ending a
/// statement is a third of the cost of a row. For still more rows, preparing the statement would cost more
/// than it saves.
pub(super) struct Insert {
    by_rows: [(usize, String); 3],
    shared: usize,
    own: usize,
}

impl Insert {
    /// Builds the statements. All rows share the first `shared` parameters, and each has `own` more. `row` is
    /// the values of a row, with `{}` in place of its own parameters.
    pub(super) fn new(into: &str, row: &str, shared: usize, own: usize) -> Self {
        let values = |number: usize| {
            let own: Vec<String> = (1..=own).map(|at| format!("?{}", shared + number * own + at)).collect();
            row.replace("{}", &own.join(", "))
        };
        let statement = |rows: usize| {
            let rows: Vec<String> = (0..rows).map(values).collect();
            format!("INSERT INTO {into} VALUES {}", rows.join(", "))
        };
        Self { by_rows: [16, 4, 1].map(|rows| (rows, statement(rows))), shared, own }
    }
}

impl<'c> Statements<'c> {
    /// Inserts rows; `own` appends the parameters of a row.
    pub(super) fn insert<'v, T>(
        &mut self,
        insert: &'static Insert,
        shared: &[&'v dyn ToSql],
        rows: &'v [T],
        own: impl Fn(&'v T, &mut Vec<&'v dyn ToSql>),
    ) -> rusqlite::Result<()> {
        let mut left = rows;
        for (count, sql) in &insert.by_rows {
            while let Some((group, rest)) = left.split_at_checked(*count) {
                let mut values = Vec::with_capacity(insert.shared + count * insert.own);
                values.extend_from_slice(shared);
                group.iter().for_each(|row| own(row, &mut values));
                self.get(sql)?.execute(&*values)?;
                left = rest;
            }
        }
        Ok(())
    }

    pub(super) fn new(connection: &'c Connection) -> Self {
        Self { connection, used: Vec::new() }
    }

    /// Returns a statement, which is prepared once per connection and looked up once per transaction.
    pub(super) fn get(&mut self, sql: &'static str) -> rusqlite::Result<&mut CachedStatement<'c>> {
        // Usually the same text has the same address.
        let is_same = |known: &str| std::ptr::eq(known, sql) || known == sql;
        let at = match self.used.iter().position(|(known, _)| is_same(known)) {
            Some(at) => at,
            None => {
                self.used.push((sql, self.connection.prepare_cached(sql)?));
                self.used.len() - 1
            }
        };
        Ok(&mut self.used[at].1)
    }
}
