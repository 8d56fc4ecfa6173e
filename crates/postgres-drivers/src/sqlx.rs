//! The code that is the same for all versions of sqlx.

/// Defines the transactions of a version of sqlx. `$core` and `$postgres` are its crates, and `$sql` converts
/// the text of a statement.
macro_rules! transactions_of_sqlx {
    ($core:ident, $postgres:ident, $sql:expr) => {
        use jobqueue_postgres::{Numbers, OpenTransaction, StatementError, Value};
        use $core::arguments::Arguments;
        use $core::query::query_with;
        use $core::row::Row;
        use $core::transaction::Transaction;
        use $postgres::{PgArguments, PgDatabaseError, PgRow, Postgres};

        /// An open transaction, as `pool.begin()` returns it.
        #[derive(Debug)]
        #[allow(clippy::exhaustive_structs, reason = "made by its users")]
        pub struct SqlxTransaction<'t, 'c>(pub &'t mut Transaction<'c, Postgres>);

        impl OpenTransaction for SqlxTransaction<'_, '_> {
            async fn query(
                &mut self,
                statement: &str,
                values: &[Value<'_>],
            ) -> Result<Vec<Numbers>, StatementError> {
                let mut arguments = PgArguments::default();
                for value in values {
                    let added = match *value {
                        Value::Text(text) => arguments.add(text),
                        Value::Number(number) => arguments.add(number),
                        Value::Bytes(bytes) => arguments.add(bytes),
                        Value::Flag(flag) => arguments.add(flag),
                    };
                    added.map_err(StatementError::other)?;
                }
                let query = query_with(($sql)(statement), arguments).persistent(false);
                let rows = query.fetch_all(&mut **self.0).await.map_err(failed)?;
                rows.iter().map(numbers).collect::<Result<_, _>>().map_err(failed)
            }
        }

        fn numbers(row: &PgRow) -> Result<Numbers, $core::Error> {
            (0..row.len()).map(|column| row.try_get(column)).collect()
        }

        fn failed(error: $core::Error) -> StatementError {
            let answer =
                error.as_database_error().and_then(|answer| answer.try_downcast_ref::<PgDatabaseError>());
            match answer {
                Some(answer) => StatementError::answered(answer.code(), answer.message()),
                None => StatementError::other(error),
            }
        }
    };
}
