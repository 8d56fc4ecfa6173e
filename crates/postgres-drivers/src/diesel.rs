//! The transactions of diesel-async.

use diesel::deserialize::{self, QueryableByName};
use diesel::pg::Pg;
use diesel::result::{DatabaseErrorKind, Error};
use diesel::row::{NamedRow, Row};
use diesel::sql_query;
use diesel::sql_types::{BigInt, Binary, Bool, Nullable, Text};
use diesel_async::{AnsiTransactionManager, AsyncPgConnection, RunQueryDsl, TransactionManager};
use jobqueue_postgres::{Numbers, OpenTransaction, StatementError, Value};

/// A connection with an open transaction: the connection that `AsyncConnection::transaction` passes to its
/// closure. Without an open transaction of diesel-async, each statement is refused with SQLSTATE 25P01, and
/// nothing is executed.
///
/// diesel-async does not report the SQLSTATE of an error. The kinds of serialization failures and of
/// read-only transactions imply theirs. Any other failure is a retryable `Unavailable` with the server's
/// message.
#[allow(missing_debug_implementations, reason = "the connection has none")]
#[allow(clippy::exhaustive_structs, reason = "made by its users")]
pub struct DieselTransaction<'t>(pub &'t mut AsyncPgConnection);

impl OpenTransaction for DieselTransaction<'_> {
    async fn query(&mut self, statement: &str, values: &[Value<'_>]) -> Result<Vec<Numbers>, StatementError> {
        let status = AnsiTransactionManager::transaction_manager_status_mut(self.0);
        if status.transaction_depth().map_err(failed)?.is_none() {
            return Err(StatementError::answered("25P01", "diesel-async has begun no transaction"));
        }
        let mut query = sql_query(statement).into_boxed::<Pg>();
        for value in values {
            query = match *value {
                Value::Text(text) => query.bind::<Nullable<Text>, _>(text),
                Value::Number(number) => query.bind::<Nullable<BigInt>, _>(number),
                Value::Bytes(bytes) => query.bind::<Nullable<Binary>, _>(bytes),
                Value::Flag(flag) => query.bind::<Bool, _>(flag),
            };
        }
        let rows: Vec<Answer> = query.load(self.0).await.map_err(failed)?;
        Ok(rows.into_iter().map(|Answer(numbers)| numbers).collect())
    }
}

/// A row of numbers.
struct Answer(Numbers);

impl QueryableByName<Pg> for Answer {
    fn build<'a>(row: &impl NamedRow<'a, Pg>) -> deserialize::Result<Self> {
        let number = |column| row.get_value::<Nullable<BigInt>, Option<i64>, usize>(column);
        (0..Row::field_count(row)).map(number).collect::<Result<_, _>>().map(Self)
    }
}

fn failed(error: Error) -> StatementError {
    match &error {
        Error::DatabaseError(DatabaseErrorKind::SerializationFailure, answer) => {
            StatementError::answered("40001", answer.message())
        }
        Error::DatabaseError(DatabaseErrorKind::ReadOnlyTransaction, answer) => {
            StatementError::answered("25006", answer.message())
        }
        _ => StatementError::other(error),
    }
}
