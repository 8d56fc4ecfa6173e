//! The connections to the server, and the execution of statements on them.
//!
//! Each statement is sent unnamed, in a single round trip, and is its own transaction. It is planned at each
//! execution: a cached plan from a time when a table was empty would later read the whole table, and poolers
//! such as PgBouncer keep no plans. The plans of statements within functions of the schema are cached, and
//! those functions forbid plans that read a whole table.
//!
//! Behind a pooler, or in a transaction of the application, this crate must not change the session's
//! `search_path`, which may contain schemas in which other roles create functions. So each statement names
//! the schema of every function, even `pg_catalog`, and gives each operator arguments of its exact types.

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

const CANCEL_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The time to wait until the server has cancelled a statement that takes too long.
const CANCEL_ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// A value of a statement and its SQL type.
pub(crate) type Parameter<'v> = (&'v (dyn ToSql + Sync), Type);

/// The database of a store.
pub(crate) struct Database {
    pool: Pool,
    /// The pool of the handle from which this handle was made. It lends idle connections while this handle
    /// cannot open any.
    lender: Option<WeakPool<Connector>>,
    /// Limits the connections of slow statements, such as those with large contents. The other connections
    /// are left to gets and completions.
    long: Semaphore,
    settings: Settings,
    runtime: Runtime,
}

impl Database {
    /// Returns a handle. Connections are opened on demand, on the caller's runtime.
    ///
    /// # Errors
    /// `Configuration` if the certificates cannot be used.
    pub(crate) fn new(settings: Settings, runtime: Runtime) -> Result<Self, StoreError> {
        let connector = Connector::new(&settings, tls::connector(&settings)?, runtime.clone());
        Self::with_connector(settings, connector, runtime)
    }

    /// Returns a handle with a separate pool of at most `max_connections`. While it cannot open any, it
    /// borrows idle connections of this handle.
    ///
    /// # Errors
    /// `Configuration`, which is not expected, because this handle uses the same settings.
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

    /// Returns a statement with the name of this database's schema in place of `jobqueue`.
    pub(crate) fn sql<'t>(&self, text: &'t str) -> Cow<'t, str> {
        in_schema(text, &self.settings.schema)
    }

    /// Returns the connector, which can also open connections outside of the pool.
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

    /// Returns a connection of the pool. Unless it is [given back](give_back), dropping it cancels its
    /// statement and closes it: the statement has no answer yet, and the next statement must not wait for it
    /// or for a server that is gone.
    pub(crate) async fn client(
        &self,
        call: Call<'_>,
    ) -> Result<ScopeGuard<Object, impl FnOnce(Object) + '_>, StoreError> {
        let lender = self.lender.as_ref().and_then(WeakPool::upgrade);
        let client = match (self.pool.get().await, lender) {
            // The pool of the operations may have an idle connection.
            (Err(PoolError::Backend(_)), Some(lender)) => lender.get().await,
            (client, _) => client,
        };
        let client = client.map_err(|failure| match failure {
            PoolError::Backend(failure) => self.not_connected(call, failure),
            failure => call.of(error::of_pool(&failure)),
        })?;
        Ok(guard(client, |client| self.abandon(client)))
    }

    /// Asks the server to cancel the statement of a connection, and closes the connection. A session that
    /// waits for a lock would not notice that its client is gone.
    fn abandon(&self, client: Object) {
        let client = Object::take(client);
        if client.is_closed() {
            return;
        }
        let (token, tls) = (client.cancel_token(), self.connector().tls.clone());
        if let Ok(handle) = Handle::try_current() {
            self.runtime.spawn_on(&handle, async move {
                // If this fails, the statement continues. Its caller already treats it as possibly executed.
                drop(timeout(CANCEL_REQUEST_TIMEOUT, token.cancel_query(tls)).await);
                // Dropped only now, because a pooler forgets the statement with the connection.
                drop(client);
            });
        }
    }

    /// Runs a statement, commits it, and returns its rows.
    pub(crate) async fn query(
        &self,
        call: Call<'_>,
        text: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        self.query_longer(call, text, parameters, Duration::ZERO).await
    }

    /// Runs a statement that may take longer than others by `further`. Such statements use at most half of
    /// the connections.
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

    /// Waits for a permit for a slow statement, for at most the time limit.
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
        let (mut cancel_was_sent, mut is_answered) = (false, false);
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
                    // Only the error of a cancelled statement is certain: nothing was changed. Rows may come
                    // from a commit that is not replicated yet.
                    let is_certain = |answer: &Result<_, _>| answer.as_ref().is_err_and(error::was_cancelled);
                    let answer = timeout(CANCEL_ANSWER_TIMEOUT, cancelled).await.ok();
                    is_answered = answer.is_some();
                    answer.filter(is_certain)
                }
            }
        };
        match in_time {
            Some(Ok(rows)) => {
                give_back(client);
                Ok(rows)
            }
            Some(Err(failure)) => {
                // The statement has ended, so there is nothing to cancel.
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
                    // The request to cancel was sent. The guard would send it again.
                    drop(Object::take(ScopeGuard::into_inner(client)));
                }
                let detail = "no answer in time; `Options::timeout` sets the time";
                let error = call.refuse(StoreErrorKind::Timeout).with_detail(detail);
                let error = if is_answered { error.with_source(error::AnsweredLate) } else { error };
                Err(error.with_ambiguous(call.is_change))
            }
        }
    }
}

jobqueue_storage::debug_fields! {
    Database(settings.description)
}

/// After a lock timeout, waits until the server has released the locks of the statement. The server reports
/// the error before it releases them, and the next statement, on another connection, would skip the rows that
/// are still locked. Returns whether the connection can be used again.
async fn has_released_locks(client: &Object, failure: &tokio_postgres::Error) -> bool {
    failure.code() != Some(&SqlState::LOCK_NOT_AVAILABLE)
        || timeout(CANCEL_ANSWER_TIMEOUT, client.simple_query("")).await.is_ok_and(|ended| ended.is_ok())
}

/// Returns a connection to the pool. Its statement must have been answered.
pub(crate) fn give_back<F: FnOnce(Object)>(client: ScopeGuard<Object, F>) {
    drop(ScopeGuard::into_inner(client));
}

/// Returns a statement with the name of the schema, which must have been checked, in place of `jobqueue`.
pub(crate) fn in_schema<'t>(text: &'t str, schema: &str) -> Cow<'t, str> {
    if schema == SCHEMA {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.replace("jobqueue.", &format!("{}.", quoted(schema))))
}

/// Returns the quoted name of a schema. Keywords of SQL, such as `user`, need the quotes.
pub(crate) fn quoted(schema: &str) -> String {
    format!("\"{schema}\"")
}

/// Checks the name of a schema, which becomes part of statements.
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

/// The name and the subject of an operation, for its errors.
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

    /// Returns a call that is not an operation of the port. Its errors are never ambiguous, because such
    /// calls are repeated or not needed.
    pub(crate) fn internal(name: &'static str, database: &'c Database) -> Self {
        Self { name, is_change: false, subject: &database.settings.description }
    }

    /// Returns this call for a statement that only reads, before the change.
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

    /// Returns the error for a verdict.
    pub(crate) fn of(self, verdict: Verdict) -> StoreError {
        let is_ambiguous = verdict.is_uncertain && self.is_change;
        self.refuse(verdict.kind).with_detail(verdict.detail).with_ambiguous(is_ambiguous)
    }

    /// Reads a column of an answer.
    ///
    /// # Errors
    /// `Protocol` if the column has another type. The statement was executed.
    pub(crate) fn get<'r, T: FromSql<'r>>(self, row: &'r Row, column: usize) -> Result<T, StoreError> {
        row.try_get(column).map_err(|error| self.unreadable().with_source(error))
    }

    /// Reads the rows of an answer with numbers only.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub(crate) fn numbers(self, rows: &[Row]) -> Result<Vec<Numbers>, StoreError> {
        driver::numbers(rows).map_err(|error| self.unreadable().with_source(error))
    }

    /// Reads a number of a row.
    ///
    /// # Errors
    /// `Protocol` if the column is missing or `NULL`.
    pub(crate) fn number(self, row: &Numbers, column: usize) -> Result<i64, StoreError> {
        self.number_or_null(row, column)?.ok_or_else(|| self.unreadable())
    }

    /// Reads a flag of a row, 0 or 1.
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
