//! Translates the failures of the server and its connections into [`StoreError`]s. Only this module does.
//!
//! Each statement is its own transaction. If the server answers with an error of the statement (`ERROR`), the
//! statement changed nothing. If the connection ends before the answer, or the answer ends the session
//! (`FATAL`) or the server (`PANIC`), the statement may have been committed: a server that cannot sync its
//! log panics in the middle of a commit, and finds the commit in the log when it recovers.

use std::fmt;

use deadpool::managed::{PoolError, TimeoutType};
use tokio_postgres::error::{DbError, Severity, SqlState};

use jobqueue_storage::{StoreError, StoreErrorKind as Kind};

/// The advice for sessions whose transactions would read a snapshot from their beginning.
pub(crate) const ISOLATION: &str = "transactions of the role are not `read committed`, which the order of groups needs; \
    `ALTER ROLE … SET default_transaction_isolation = 'read committed'`, or, unless a pooler is between, append \
    `options=-c%20default_transaction_isolation%3Dread%5C%20committed` to the connection string";

/// The advice if a token is refused.
const TOKEN_REFUSED: &str = "the server refused the token of Entra ID: it must accept them, and the role in the connection string must be one that \
    was made for this identity, by `pgaadauth_create_principal`";

/// The SQLSTATE with which PgBouncer refuses logins.
const PROTOCOL_VIOLATION: &str = "08P01";

/// The server, or a proxy before it, does not answer.
pub(crate) const NOT_OPENED: Verdict =
    Verdict::certain(Kind::Timeout, "no connection could be opened in time");

/// The pool has no free connection in time.
pub(crate) const ALL_IN_USE: Verdict =
    Verdict::certain(Kind::Timeout, "all connections were in use; allow more by `Options::max_connections`");

/// The judgement of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) kind: Kind,
    pub(crate) detail: &'static str,
    /// True if the statement may have been committed.
    pub(crate) is_uncertain: bool,
    /// True if the connection must not be used again.
    pub(crate) ends_connection: bool,
}

impl Verdict {
    pub(crate) const fn certain(kind: Kind, detail: &'static str) -> Self {
        Self { kind, detail, is_uncertain: false, ends_connection: false }
    }

    const fn ending(self) -> Self {
        Self { ends_connection: true, ..self }
    }

    const fn uncertain(self) -> Self {
        Self { is_uncertain: true, ends_connection: true, ..self }
    }
}

/// The server's error: its SQLSTATE and message, without the details, which can quote a row.
#[derive(Debug, Clone)]
struct ServerError {
    code: String,
    message: String,
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (SQLSTATE {})", self.message, self.code)
    }
}

impl std::error::Error for ServerError {}

/// Returns the cause to show with an error.
pub(crate) fn source(error: tokio_postgres::Error) -> Box<dyn std::error::Error + Send + Sync> {
    match error.as_db_error() {
        Some(answer) => server_error(answer.code().code(), answer.message()),
        None => Box::new(error),
    }
}

/// Returns the server's error as a cause.
pub(crate) fn server_error(code: &str, message: &str) -> Box<dyn std::error::Error + Send + Sync> {
    Box::new(ServerError { code: code.to_owned(), message: message.to_owned() })
}

/// Returns whether a statement ended because its wait for a lock timed out.
pub(crate) fn is_lock_timeout(error: &StoreError) -> bool {
    has_code(error, &SqlState::LOCK_NOT_AVAILABLE)
}

/// Returns whether the server cancelled a statement while it ran, most likely because it took too long.
/// Without such an answer the statement may have ended long before, and have waited for its commit.
pub(crate) fn ran_out_of_time(error: &StoreError) -> bool {
    has_code(error, &SqlState::QUERY_CANCELED)
}

/// The cause of a failure in time: the server answered later, so that it has ended the statement.
#[derive(Debug)]
pub(crate) struct AnsweredLate;

impl fmt::Display for AnsweredLate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the server answered after the time limit")
    }
}

impl std::error::Error for AnsweredLate {}

/// Returns whether the server did not answer to a statement, not even to the request to cancel it.
pub(crate) fn is_unanswered(error: &StoreError) -> bool {
    error.kind() == Kind::Timeout && std::error::Error::source(error).is_none()
}

fn has_code(error: &StoreError, code: &SqlState) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<ServerError>());
    cause.is_some_and(|cause| cause.code == code.code())
}

/// Returns whether the server cancelled the statement.
pub(crate) fn was_cancelled(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::QUERY_CANCELED)
}

/// Judges the failure of a statement that was sent.
pub(crate) fn of_statement(error: &tokio_postgres::Error) -> Verdict {
    match error.as_db_error() {
        Some(answer) => of_answer(answer),
        None if error.is_closed() => {
            Verdict::certain(Kind::Unavailable, "the connection to the server was lost").uncertain()
        }
        None => Verdict::certain(Kind::Unavailable, "the answer of the server did not arrive").uncertain(),
    }
}

/// Judges the failure to get a connection, except a failed attempt to open one. Nothing was sent.
pub(crate) fn of_pool<E>(error: &PoolError<E>) -> Verdict {
    match error {
        PoolError::Timeout(TimeoutType::Wait) => ALL_IN_USE,
        PoolError::Timeout(_) => NOT_OPENED,
        _ => Verdict::certain(Kind::Unavailable, "no connection to the server"),
    }
}

/// Judges the failure to open a connection, whose password may have been a token.
pub(crate) fn of_connection(error: &tokio_postgres::Error, sends_tokens: bool) -> Verdict {
    match error.as_db_error() {
        Some(answer) if answer.code().code() == PROTOCOL_VIOLATION => of_pooler(answer.message()),
        Some(answer) if sends_tokens && answer.code().code().starts_with("28") => {
            Verdict::certain(Kind::Unauthorized, TOKEN_REFUSED)
        }
        // No statement was sent.
        Some(answer) => Verdict { is_uncertain: false, ..of_code(answer.code()) },
        None => Verdict::certain(Kind::Unavailable, "the server cannot be reached"),
    }
}

/// Judges the refusal of a login by PgBouncer, which has the same code for all refusals. Its texts are not
/// localised.
fn of_pooler(message: &str) -> Verdict {
    let of = Verdict::certain;
    let has = |text: &str| message.contains(text);
    if has("no more connections") {
        of(Kind::Throttled, "the pooler has no more connections")
    } else if has("authentication failed") || has("no such user") || has("login rejected") {
        of(Kind::Unauthorized, "the pooler refused the role or its password")
    } else if has("no such database") {
        of(Kind::Configuration, "the pooler has no database of this name")
    } else if has("SSL required") {
        of(Kind::Configuration, "the pooler requires TLS; set `sslmode=require` or stricter")
    } else if has("unsupported") && has("startup parameter") {
        of(
            Kind::Configuration,
            "the pooler refuses a setting of the connection string; set it by `ALTER ROLE … SET`",
        )
    } else {
        of(Kind::Unavailable, "the connection failed")
    }
}

fn of_answer(answer: &DbError) -> Verdict {
    match answer.parsed_severity() {
        Some(Severity::Error) => of_code(answer.code()),
        _ => Verdict::certain(Kind::Unavailable, "the server ended the session").uncertain(),
    }
}

/// Judges an error by its SQLSTATE.
pub(crate) fn of_code(code: &SqlState) -> Verdict {
    let of = Verdict::certain;
    match code.code().get(..2).unwrap_or_default() {
        "57" if *code == SqlState::QUERY_CANCELED => {
            of(Kind::Timeout, "the statement was cancelled, perhaps after `Options::timeout`")
        }
        "57" => of(Kind::Unavailable, "the server is starting or stopping"),
        "08" => of(Kind::Unavailable, "the connection failed").uncertain(),
        "40" if *code == SqlState::T_R_STATEMENT_COMPLETION_UNKNOWN => {
            of(Kind::Unavailable, "it is not known how the statement ended").uncertain()
        }
        "40" => of(Kind::Unavailable, "another transaction was in the way"),
        "28" => of(Kind::Unauthorized, "the server refused the role or its password"),
        "42" if *code == SqlState::INSUFFICIENT_PRIVILEGE => of(
            Kind::Unauthorized,
            "the role lacks a privilege: it needs USAGE on the schema and its sequences, and SELECT, INSERT, UPDATE and DELETE on its tables",
        ),
        "42" | "3F" => of(
            Kind::Stopped,
            "the tables are not those of this program: the schema was dropped, or a newer program has migrated it",
        ),
        "3D" => of(Kind::Configuration, "there is no such database"),
        "25" if *code == SqlState::READ_ONLY_SQL_TRANSACTION => {
            of(Kind::Unavailable, "the server is a standby, or was made one, or the transaction is read-only")
                .ending()
        }
        "25" if *code == SqlState::IN_FAILED_SQL_TRANSACTION => {
            of(Kind::InvalidInput, "an earlier statement of the transaction has failed; roll it back")
        }
        "25" if *code == SqlState::NO_ACTIVE_SQL_TRANSACTION => {
            of(Kind::InvalidInput, "no transaction is open on the connection")
        }
        // 25P03 and 25P04 end the session. Drivers that report the severity are handled before.
        "25" if code.code().starts_with("25P") => of(Kind::Unavailable, "the server ended the session"),
        "25" => of(Kind::Configuration, ISOLATION),
        "53" if *code == SqlState::DISK_FULL => of(Kind::Full, "nothing was written"),
        "53" => of(Kind::Throttled, "the server has no more connections or memory"),
        "54" => of(Kind::TooLarge, "a limit of the server"),
        "55" => of(Kind::Timeout, "another transaction holds a lock"),
        "22" => of(Kind::InvalidInput, "the server cannot store a value"),
        "XX" if matches!(*code, SqlState::DATA_CORRUPTED | SqlState::INDEX_CORRUPTED) => {
            of(Kind::Corrupt, "the server found damage")
        }
        _ => of(Kind::Unavailable, "the server failed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::{Call, Database};
    use crate::fake_server::{FakeServer, error_response};
    use jobqueue_storage::{Operation, StoreError};

    async fn put_answered_by(severity: &'static str, code: &'static str) -> StoreError {
        let server = FakeServer::start(move |_| error_response(severity, code)).await;
        let database = Database::new(server.settings(), Default::default()).unwrap();
        let call = Call::new(Operation::Put, &"jobs");
        database.query(call, "SELECT 1", &[]).await.unwrap_err()
    }

    #[tokio::test]
    async fn only_a_statement_that_was_cancelled_ran_out_of_time() {
        for (code, ran_out) in [("57014", true), ("55P03", false), ("53300", false)] {
            let error = put_answered_by("ERROR", code).await;
            assert_eq!(ran_out_of_time(&error), ran_out, "{code}: {error}");
        }
        for verdict in [NOT_OPENED, ALL_IN_USE] {
            assert!(!ran_out_of_time(&Call::new(Operation::Put, &"jobs").of(verdict)));
        }
    }

    /// The texts are the answers of PgBouncer 1.18 to a login.
    #[tokio::test]
    async fn refusals_of_a_pooler_are_distinguished_by_their_text() {
        for (text, kind) in [
            ("no more connections allowed (max_client_conn)", Kind::Throttled),
            ("password authentication failed", Kind::Unauthorized),
            ("SASL authentication failed", Kind::Unauthorized),
            ("no such user: app", Kind::Unauthorized),
            ("login rejected", Kind::Unauthorized),
            ("no such database: shpo", Kind::Configuration),
            ("SSL required", Kind::Configuration),
            ("unsupported startup parameter: options", Kind::Configuration),
            ("unsupported options startup parameter: only '-c config=val' is allowed", Kind::Configuration),
            ("server login has been failing", Kind::Unavailable),
        ] {
            let server = FakeServer::refusing(text).await;
            let database = Database::new(server.settings(), Default::default()).unwrap();
            let error =
                database.query(Call::new(Operation::Put, &"jobs"), "SELECT 1", &[]).await.unwrap_err();
            assert_eq!((error.kind(), error.is_ambiguous()), (kind, false), "{text}: {error}");
        }
    }

    /// A server that panics while it syncs a commit finds the commit when it starts again.
    #[tokio::test]
    async fn only_an_error_of_the_statement_itself_is_certain() {
        let error = put_answered_by("ERROR", "53100").await;
        assert_eq!((error.kind(), error.is_ambiguous()), (Kind::Full, false), "{error}");
        for (severity, code) in [
            ("PANIC", "53100"),
            ("PANIC", "58030"),
            ("FATAL", "57P05"),
            ("FATAL", "57P01"),
            ("FATAL", "25P03"),
        ] {
            let error = put_answered_by(severity, code).await;
            assert_eq!((error.kind(), error.is_ambiguous()), (Kind::Unavailable, true), "{code}: {error}");
        }
    }
}
