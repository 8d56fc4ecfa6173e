//! The connections to the server, and the way of a statement to it and back.
//!
//! Each statement is sent without a name, in one round trip, and is a transaction of its own. It is planned at each execution: a plan that
//! was kept from a moment when a table was empty would read a whole table later, and poolers such as PgBouncer keep no plans. The statements
//! within functions of the schema keep theirs; those functions forbid plans that read a whole table.
//!
//! The path of the session is not ours to set, behind a pooler or in a transaction of the application, and may have schemas in which others create functions. So a
//! text names the schema of each function, `pg_catalog` too, and gives each operator arguments of its exact types.

use std::borrow::Cow;
use std::fmt;
use std::pin::pin;
use std::time::Duration;

use deadpool::Runtime as PoolRuntime;
use deadpool::managed::{PoolError, WeakPool};
use scopeguard::{ScopeGuard, guard};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{FromSql, ToSql, Type};

use crate::connect::{ConnectError, Connector, Object, Pool};
use crate::driver::{self, Numbers, StatementError};
use crate::error::{self, Verdict};
use crate::settings::Settings;
use crate::tls;
use jobqueue_storage::runtime::Runtime;
use jobqueue_storage::{Operation, StoreError, StoreErrorKind};

/// The name of the schema in the SQL texts.
const SCHEMA: &str = "jobqueue";

/// The time limit of a request to cancel a statement.
const CANCEL_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The time in which the server cancels a statement that has taken too long, if it can be reached.
const CANCEL_ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// A value of a statement, and its type in SQL.
pub(crate) type Parameter<'v> = (&'v (dyn ToSql + Sync), Type);

/// The database of a store.
pub(crate) struct Database {
    pool: Pool,
    /// The pool of the handle that this one was made from. It lends idle connections while this one can open none.
    lender: Option<WeakPool<Connector>>,
    /// Limits the connections of statements that take long, such as those with a large content: the others are left to gets and completions.
    long: Semaphore,
    settings: Settings,
    runtime: Runtime,
}

impl Database {
    /// Returns a handle. Connections are opened when they are needed, on the runtime of the caller.
    ///
    /// # Errors
    /// `Configuration` if the certificates cannot be used.
    pub(crate) fn new(settings: Settings, runtime: Runtime) -> Result<Self, StoreError> {
        let connector = Connector::new(&settings, tls::connector(&settings)?, runtime.clone());
        Self::with_connector(settings, connector, runtime)
    }

    /// Returns a handle with connections of its own, at most so many, and with idle ones of this one while it can open none.
    ///
    /// # Errors
    /// `Configuration`, which is not expected: this handle uses the same settings.
    pub(crate) fn with_own_pool(&self, max_connections: usize) -> Result<Self, StoreError> {
        let settings = Settings { max_connections, ..self.settings.clone() };
        let other =
            Self::with_connector(settings, self.connector().for_another_pool(), self.runtime.clone())?;
        Ok(Self { lender: Some(self.pool.weak()), ..other })
    }

    fn with_connector(
        settings: Settings,
        connector: Connector,
        runtime: Runtime,
    ) -> Result<Self, StoreError> {
        let pool = Pool::builder(connector)
            .max_size(settings.max_connections)
            .wait_timeout(Some(settings.timeout))
            .create_timeout(Some(settings.timeout))
            .runtime(PoolRuntime::Tokio1)
            .build()
            .map_err(|error| {
                StoreError::new(StoreErrorKind::Configuration, "open storage", &settings.description)
                    .with_source(error)
            })?;
        let long = Semaphore::new((settings.max_connections / 2).max(1));
        Ok(Self { pool, lender: None, long, settings, runtime })
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn schema(&self) -> &str {
        &self.settings.schema
    }

    /// Returns a text for the schema of this database.
    pub(crate) fn sql<'t>(&self, text: &'t str) -> Cow<'t, str> {
        in_schema(text, &self.settings.schema)
    }

    /// Returns the connector, which also opens connections outside of the pool.
    pub(crate) fn connector(&self) -> &Connector {
        self.pool.manager()
    }

    /// Returns the error of a connection that could not be opened.
    pub(crate) fn not_connected(&self, call: Call<'_>, failure: ConnectError) -> StoreError {
        match failure {
            ConnectError::Password(cause) => {
                let detail = "there is no password for a new connection";
                call.refuse(cause.kind()).with_detail(detail).with_source(cause)
            }
            ConnectError::Server(failure) => {
                let verdict = error::of_connection(&failure, self.settings.sends_tokens);
                call.of(verdict).with_source(error::source(failure))
            }
            ConnectError::Silent => call.of(error::NOT_OPENED),
        }
    }

    /// Returns a connection of the pool. Unless it is [given back](give_back), it is closed when it is dropped: its statement has no answer, and
    /// the next one must neither wait for it nor for a server that is gone.
    pub(crate) async fn client(
        &self,
        call: Call<'_>,
    ) -> Result<ScopeGuard<Object, impl FnOnce(Object) + '_>, StoreError> {
        let lender = self.lender.as_ref().and_then(WeakPool::upgrade);
        let client = match (self.pool.get().await, lender) {
            // The pool of the operations may have one that is idle.
            (Err(PoolError::Backend(_)), Some(lender)) => lender.get().await,
            (client, _) => client,
        };
        let client = client.map_err(|failure| match failure {
            PoolError::Backend(failure) => self.not_connected(call, failure),
            failure => call.of(error::of_pool(&failure)),
        })?;
        Ok(guard(client, |client| self.abandon(client)))
    }

    /// Asks the server to cancel the statement of a connection, and closes it. A session that waits for a lock does not notice that its client is gone.
    fn abandon(&self, client: Object) {
        let client = Object::take(client);
        if client.is_closed() {
            return;
        }
        let (token, tls) = (client.cancel_token(), self.connector().tls.clone());
        if let Ok(handle) = Handle::try_current() {
            self.runtime.spawn_on(&handle, async move {
                // Without it the statement goes on, as its result says: it may have been executed.
                drop(timeout(CANCEL_REQUEST_TIMEOUT, token.cancel_query(tls)).await);
                // A pooler forgets the statement with the connection.
                drop(client);
            });
        }
    }

    /// Runs a statement, which commits, and returns its rows.
    pub(crate) async fn query(
        &self,
        call: Call<'_>,
        text: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        self.query_longer(call, text, parameters, Duration::ZERO).await
    }

    /// Runs a statement that may take longer than others, by `further`. Of those, half of the connections are in use at most.
    pub(crate) async fn query_longer(
        &self,
        call: Call<'_>,
        text: &str,
        parameters: &[Parameter<'_>],
        further: Duration,
    ) -> Result<Vec<Row>, StoreError> {
        let _permit = if further.is_zero() { None } else { Some(self.permit(call).await?) };
        let client = self.client(call).await?;
        self.query_on(client, call, text, parameters, further).await
    }

    /// Waits for a turn, for at most the timeout of a connection.
    async fn permit(&self, call: Call<'_>) -> Result<SemaphorePermit<'_>, StoreError> {
        let permit = timeout(self.settings.timeout, self.long.acquire()).await;
        permit.ok().and_then(Result::ok).ok_or_else(|| call.of(error::ALL_IN_USE))
    }

    /// Runs a statement on a connection of the pool.
    #[allow(clippy::too_many_arguments, reason = "the statement, its connection and its time")]
    pub(crate) async fn query_on<F: FnOnce(Object)>(
        &self,
        client: ScopeGuard<Object, F>,
        call: Call<'_>,
        text: &str,
        parameters: &[Parameter<'_>],
        further: Duration,
    ) -> Result<Vec<Row>, StoreError> {
        let text = self.sql(text);
        let mut cancel_was_sent = false;
        let in_time = {
            let mut answer = pin!(client.query_typed(&text, parameters));
            match timeout(self.settings.timeout + further, &mut answer).await {
                Ok(answer) => Some(answer),
                Err(_) => {
                    let cancel = client.cancel_token();
                    let cancelled = async {
                        cancel_was_sent = cancel.cancel_query(self.connector().tls.clone()).await.is_ok();
                        answer.as_mut().await
                    };
                    // A server that has cancelled the statement has changed nothing. Rows can also come from a commit that it has not replicated yet.
                    let is_certain = |answer: &Result<_, _>| answer.as_ref().is_err_and(error::was_cancelled);
                    timeout(CANCEL_ANSWER_TIMEOUT, cancelled).await.ok().filter(is_certain)
                }
            }
        };
        match in_time {
            Some(Ok(rows)) => {
                give_back(client);
                Ok(rows)
            }
            Some(Err(failure)) => {
                // Nothing is left to cancel.
                let client = ScopeGuard::into_inner(client);
                if error::of_statement(&failure).ends_connection
                    || !has_released_locks(&client, &failure).await
                {
                    drop(Object::take(client));
                }
                Err(call.failed(failure))
            }
            None => {
                if cancel_was_sent {
                    // The request was sent; the guard would send it again.
                    drop(Object::take(ScopeGuard::into_inner(client)));
                }
                let detail = "no answer in time; `Options::timeout` sets the time";
                Err(call.refuse(StoreErrorKind::Timeout).with_detail(detail).with_ambiguous(call.is_change))
            }
        }
    }
}

jobqueue_storage::debug_fields! {
    Database(settings.description)
}

/// Waits for the end of a statement that gave up a lock. The server reports that before it releases the locks that the statement has taken, and
/// the next one, over another connection, would pass over what is still locked. Returns whether the connection can be used.
async fn has_released_locks(client: &Object, failure: &tokio_postgres::Error) -> bool {
    failure.code() != Some(&SqlState::LOCK_NOT_AVAILABLE)
        || timeout(CANCEL_ANSWER_TIMEOUT, client.simple_query("")).await.is_ok_and(|ended| ended.is_ok())
}

/// Returns a connection to the pool. Its statement was answered.
pub(crate) fn give_back<F: FnOnce(Object)>(client: ScopeGuard<Object, F>) {
    drop(ScopeGuard::into_inner(client));
}

/// Returns a text with the name of the schema, which was checked, in place of `jobqueue`.
pub(crate) fn in_schema<'t>(text: &'t str, schema: &str) -> Cow<'t, str> {
    if schema == SCHEMA {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.replace("jobqueue.", &format!("{}.", quoted(schema))))
}

/// Returns the name of a schema for a statement. Words of SQL, such as `user`, need the quotes.
pub(crate) fn quoted(schema: &str) -> String {
    format!("\"{schema}\"")
}

/// Checks the name of a schema, which becomes a part of statements.
///
/// # Errors
/// A sentence that says what a name must be.
pub(crate) fn check_schema(name: &str) -> Result<(), &'static str> {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let begins = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
    if !begins || name.starts_with("pg_") || name.len() > 50 || !name.chars().all(is_plain) {
        return Err(
            "the name of the schema must have 1 to 50 lower-case letters, digits and underscores, no digit first, and not begin with `pg_`",
        );
    }
    Ok(())
}

/// An operation on a queue, a blob or the database, for its errors.
#[derive(Clone, Copy)]
pub(crate) struct Call<'c> {
    name: &'static str,
    is_change: bool,
    subject: &'c (dyn fmt::Display + Sync),
}

impl<'c> Call<'c> {
    pub(crate) fn new(operation: Operation, subject: &'c (dyn fmt::Display + Sync)) -> Self {
        Self { name: operation.as_str(), is_change: operation.is_change(), subject }
    }

    pub(crate) fn of_database(operation: Operation, database: &'c Database) -> Self {
        Self::new(operation, &database.settings.description)
    }

    /// Returns a call that is no operation of the port. Its errors are not ambiguous: it is repeated, or done without.
    pub(crate) fn internal(name: &'static str, database: &'c Database) -> Self {
        Self { name, is_change: false, subject: &database.settings.description }
    }

    /// Returns the call for a statement that reads before the change.
    pub(crate) fn reading(self) -> Self {
        Self { is_change: false, ..self }
    }

    /// Returns the error of an operation that was refused.
    pub(crate) fn refuse(self, kind: StoreErrorKind) -> StoreError {
        StoreError::new(kind, self.name, self.subject)
    }

    /// Returns the error of a statement that failed.
    pub(crate) fn failed(self, failure: impl Into<StatementError>) -> StoreError {
        let StatementError { verdict, source } = failure.into();
        self.of(verdict).with_source(source)
    }

    /// Returns the error of a failure that was judged.
    pub(crate) fn of(self, verdict: Verdict) -> StoreError {
        let is_ambiguous = verdict.is_uncertain && self.is_change;
        self.refuse(verdict.kind).with_detail(verdict.detail).with_ambiguous(is_ambiguous)
    }

    /// Reads a column of an answer.
    ///
    /// # Errors
    /// `Protocol` if it has another type. The statement was executed.
    pub(crate) fn get<'r, T: FromSql<'r>>(self, row: &'r Row, column: usize) -> Result<T, StoreError> {
        row.try_get(column).map_err(|error| self.unreadable().with_source(error))
    }

    /// Reads the rows of an answer that has numbers only.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub(crate) fn numbers(self, rows: &[Row]) -> Result<Vec<Numbers>, StoreError> {
        driver::numbers(rows).map_err(|error| self.unreadable().with_source(error))
    }

    /// Reads a number of a row.
    ///
    /// # Errors
    /// `Protocol` if there is none.
    pub(crate) fn number(self, row: &Numbers, column: usize) -> Result<i64, StoreError> {
        self.number_or_null(row, column)?.ok_or_else(|| self.unreadable())
    }

    /// Reads a number of a row that is 0 or 1.
    ///
    /// # Errors
    /// As [`number`](Self::number).
    pub(crate) fn flag(self, row: &Numbers, column: usize) -> Result<bool, StoreError> {
        Ok(self.number(row, column)? != 0)
    }

    /// Reads a number of a row that may be `NULL`.
    ///
    /// # Errors
    /// `Protocol` if the row has no such column.
    pub(crate) fn number_or_null(self, row: &Numbers, column: usize) -> Result<Option<i64>, StoreError> {
        row.get(column).copied().ok_or_else(|| self.unreadable())
    }

    fn unreadable(self) -> StoreError {
        self.refuse(StoreErrorKind::Protocol).with_ambiguous(self.is_change)
    }
}

#[cfg(test)]
mod tests;
