//! Executes statements in the caller's transaction, whichever driver opened it.

use std::future::Future;

use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Row, Transaction};

use crate::error::{self, Verdict};
use jobqueue_storage::StoreErrorKind;

/// A row of an answer: a number or `NULL` for each column.
pub type Numbers = Vec<Option<i64>>;

/// An open transaction of the caller, in which this crate executes statements.
///
/// The trait is implemented for the transactions of `tokio-postgres`. The crate `jobqueue-postgres-drivers`
/// implements it for sqlx and diesel-async. An implementation for another driver has a single method, which
/// sends the statement and the values unchanged and reads `bigint`s:
///
/// ```
/// use jobqueue_postgres::{Numbers, OpenTransaction, StatementError, Value};
/// # struct Driver; struct Failure { sqlstate: String, message: String }
/// # struct Query; impl Query {
/// #     fn bind<T>(self, _: T) -> Self { self }
/// #     async fn rows(self, _: &mut Driver) -> Result<Vec<Numbers>, Failure> { Ok(Vec::new()) }
/// # }
/// # impl Driver { fn statement(&self, _: &str) -> Query { Query } }
///
/// /// The driver has begun a transaction on this connection.
/// struct DriverTransaction<'t>(&'t mut Driver);
///
/// impl OpenTransaction for DriverTransaction<'_> {
///     async fn query(&mut self, statement: &str, values: &[Value<'_>]) -> Result<Vec<Numbers>, StatementError> {
///         let mut query = self.0.statement(statement);
///         for value in values {
///             query = match *value {
///                 Value::Text(text) => query.bind(text),
///                 Value::Number(number) => query.bind(number),
///                 Value::Bytes(bytes) => query.bind(bytes),
///                 Value::Flag(flag) => query.bind(flag),
///             };
///         }
///         let rows = query.rows(self.0).await;
///         rows.map_err(|failure| StatementError::answered(&failure.sqlstate, &failure.message))
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an open transaction on PostgreSQL",
    note = "pass `&transaction` of tokio-postgres, and `&*transaction` of a type around it, such as that of deadpool-postgres",
    note = "the crate `jobqueue-postgres-drivers` has the transactions of sqlx and diesel-async"
)]
pub trait OpenTransaction: Send {
    /// Executes a statement within the transaction, and returns all rows of its answer.
    ///
    /// # Errors
    /// The statement failed, or was not answered.
    ///
    /// # Cancel safety
    /// If the future is dropped, the statement may have been executed.
    fn query(
        &mut self,
        statement: &str,
        values: &[Value<'_>],
    ) -> impl Future<Output = Result<Vec<Numbers>, StatementError>> + Send;
}

/// A value of a statement, `NULL` if it is `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "each driver sends all of them")]
pub enum Value<'v> {
    /// A `text`.
    Text(Option<&'v str>),
    /// A `bigint`.
    Number(Option<i64>),
    /// A `bytea`.
    Bytes(Option<&'v [u8]>),
    /// A `boolean`.
    Flag(bool),
}

impl Value<'_> {
    /// Returns the value for a statement of `tokio-postgres`.
    pub(crate) fn parameter(&self) -> (&(dyn ToSql + Sync), Type) {
        match self {
            Self::Text(text) => (text, Type::TEXT),
            Self::Number(number) => (number, Type::INT8),
            Self::Bytes(bytes) => (bytes, Type::BYTEA),
            Self::Flag(flag) => (flag, Type::BOOL),
        }
    }
}

/// The failure of a statement, as far as the driver reports it.
#[derive(Debug)]
pub struct StatementError {
    pub(crate) verdict: Verdict,
    pub(crate) source: Box<dyn std::error::Error + Send + Sync>,
}

impl StatementError {
    /// Returns the failure of a statement that the server refused with this SQLSTATE. The message becomes the
    /// source of the error. Leave out the server's details, because they can quote a row.
    pub fn answered(sqlstate: &str, message: &str) -> Self {
        let verdict = error::of_code(&SqlState::from_code(sqlstate));
        Self { verdict, source: error::server_error(sqlstate, message) }
    }

    /// Returns a failure without a known SQLSTATE, such as a lost connection.
    pub fn other(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        let verdict = Verdict::certain(StoreErrorKind::Unavailable, "the statement failed");
        Self { verdict, source: cause.into() }
    }
}

impl From<tokio_postgres::Error> for StatementError {
    fn from(failure: tokio_postgres::Error) -> Self {
        Self { verdict: error::of_statement(&failure), source: error::source(failure) }
    }
}

impl OpenTransaction for &Transaction<'_> {
    async fn query(&mut self, statement: &str, values: &[Value<'_>]) -> Result<Vec<Numbers>, StatementError> {
        let values: Vec<_> = values.iter().map(Value::parameter).collect();
        let rows = self.query_typed(statement, &values).await?;
        Ok(numbers(&rows)?)
    }
}

impl<T: OpenTransaction> OpenTransaction for &mut T {
    fn query(
        &mut self,
        statement: &str,
        values: &[Value<'_>],
    ) -> impl Future<Output = Result<Vec<Numbers>, StatementError>> + Send {
        T::query(self, statement, values)
    }
}

/// Reads rows of `bigint`s.
///
/// # Errors
/// A column has another type.
pub(crate) fn numbers(rows: &[Row]) -> Result<Vec<Numbers>, tokio_postgres::Error> {
    rows.iter().map(|row| (0..row.len()).map(|column| row.try_get(column)).collect()).collect()
}
