//! Options for opening a database.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use crate::connection_string::{self, Parsed};
use crate::database::check_schema;
use crate::settings::{Settings, Tls};
#[cfg(feature = "entra")]
use jobqueue_entra::{TokenSource, credential_methods};
use jobqueue_storage::clock::WITHOUT_END;
use jobqueue_storage::runtime::Runtime;
use jobqueue_storage::{StoreError, StoreErrorKind};

/// The upper limit of `max_connections`. The pool reserves memory for each connection, and servers rarely
/// allow more.
const MAX_CONNECTIONS: usize = 10_000;

/// Options that open queues and blobs in a PostgreSQL database. Pass them to `Storage::open`. `Debug` shows
/// no password.
///
/// ```no_run
/// # async fn open() -> Result<(), jobqueue_storage::StoreError> {
/// use jobqueue_postgres::Options;
/// use jobqueue_storage::OpenStores;
///
/// let options = Options::from_connection_string("postgres://app@db.example/shop?sslmode=verify-full")?;
/// let stores = options.max_connections(20).open().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a database is opened by `Storage::open`"]
pub struct Options {
    pub(crate) settings: Settings,
    pub(crate) listens: bool,
    pub(crate) migrates: bool,
    pub(crate) runtime: Runtime,
}

impl Options {
    /// Returns options from a connection string: `postgres://USER:PASSWORD@HOST:PORT/DATABASE?NAME=VALUE`.
    ///
    /// Missing settings are taken from the environment variables of libpq: `PGHOST`, `PGPORT`, `PGUSER`,
    /// `PGPASSWORD`, `PGDATABASE`, `PGSSLMODE`, `PGSSLROOTCERT`, `PGAPPNAME`, `PGOPTIONS`,
    /// `PGCONNECT_TIMEOUT` and `PGTARGETSESSIONATTRS`. The password may also be in the file that `PGPASSFILE`
    /// names, or in `~/.pgpass`, where it is looked up by the first host. The password is read here, and not
    /// again. For a password that is rotated, use [`password_from`](Self::password_from).
    ///
    /// With `credential=entra` (feature `entra`) each new connection uses a token of Entra ID as its
    /// password, for Azure Database for PostgreSQL. The credential is chosen on first use: workload identity
    /// if its environment variables are set, otherwise managed identity if there is one, otherwise the
    /// developer's `az` or `azd` login. The methods for credentials fix the choice. A token is sent only to a
    /// server whose certificate and name are checked: set `sslmode=verify-full`.
    ///
    /// `sslmode` has the same meaning as in libpq: only `verify-ca` and `verify-full` check the identity of
    /// the server. The trusted authorities are those in the file `sslrootcert`, or else those of this
    /// machine, never those in `~/.postgresql/root.crt`. With the authorities of the machine, `verify-ca`
    /// also checks the name of the host. The default is `prefer`. Use `verify-full` across any network that
    /// is not yours. A Unix socket has no TLS, so `require` fails there.
    ///
    /// If there are several hosts, one that accepts writes is used, unless `target_session_attrs` says
    /// otherwise. A connection without traffic is probed after a minute, and a connection is given up 10
    /// seconds after sending data that is not acknowledged, unless `keepalives_idle`, `keepalives_interval`,
    /// `keepalives_retries` or `tcp_user_timeout` are set, all in seconds. `listen=off` has the effect of
    /// [`listen(false)`](Self::listen), and `schema=NAME` that of [`schema`](Self::schema). Other drivers may
    /// refuse these two and `credential`, which are settings of jobqueue.
    ///
    /// # Errors
    /// [`Configuration`](StoreErrorKind::Configuration) with the name of the wrong setting, unless it may be a
    /// part of a password, and never with its value.
    pub fn from_connection_string(text: &str) -> Result<Self, StoreError> {
        let unreadable = RefCell::new(None);
        let variable = |name: &str| {
            let value = std::env::var_os(name).filter(|value| !value.is_empty())?.into_string();
            value.map_err(|_| unreadable.replace(Some(format!("the variable {name} is not UTF-8")))).ok()
        };
        let parsed = connection_string::parse(text, &variable);
        // A variable that is not UTF-8 does not count as unset: the connection could go to another server, or
        // skip the check of the server.
        let Parsed { config, tls, uses_entra, listens, schema } =
            unreadable.take().map_or(parsed, Err).map_err(misconfigured)?;
        let mut settings = Settings {
            config,
            tls,
            passwords: None,
            sends_tokens: false,
            schema: schema.unwrap_or_else(|| "jobqueue".to_owned()),
            max_connections: 10,
            timeout: Duration::from_secs(30),
            description: String::new(),
        };
        settings.describe();
        let options = Self { settings, listens, migrates: true, runtime: Runtime::new() };
        if uses_entra { options.automatic() } else { Ok(options) }
    }

    #[cfg(feature = "entra")]
    fn automatic(self) -> Result<Self, StoreError> {
        Ok(self.token(TokenSource::Automatic))
    }

    #[cfg(not(feature = "entra"))]
    fn automatic(self) -> Result<Self, StoreError> {
        Err(misconfigured("this program was built without the feature `postgres-entra` of jobqueue"))
    }

    #[cfg(feature = "entra")]
    credential_methods!();

    #[cfg(feature = "entra")]
    fn token(mut self, source: TokenSource) -> Self {
        self.settings.passwords = Some(crate::entra::tokens(source));
        self.settings.sends_tokens = true;
        self
    }

    /// Sets a function that returns a password for each new connection: for passwords that are rotated, and
    /// tokens that expire. Open connections stay open. The duration of the call counts towards the [time
    /// limit](Self::timeout) of the connection. If it fails, operations fail with the kind of its error:
    /// `Unavailable` for an outage, `Unauthorized` for a refusal. The text of its error, like that of any
    /// error, must not contain the password.
    pub fn password_from<F, R>(mut self, source: F) -> Self
    where
        F: Fn() -> R + Send + Sync + 'static,
        R: Future<Output = Result<String, StoreError>> + Send + 'static,
    {
        self.settings.passwords = Some(Arc::new(move || Box::pin(source())));
        self.settings.sends_tokens = false;
        self
    }

    /// Checks the name of the schema, and refuses to send tokens to a server whose identity is not checked:
    /// such a server could use the tokens at other servers.
    ///
    /// # Errors
    /// `Configuration` if the name is not allowed, or tokens would be sent to a server whose identity is not
    /// checked.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        check_schema(&self.settings.schema).map_err(misconfigured)?;
        if self.settings.sends_tokens && !matches!(self.settings.tls, Tls::Full(_)) {
            return Err(misconfigured(
                "tokens of Entra ID are sent only to a server whose certificate and name are checked; add `sslmode=verify-full`",
            ));
        }
        Ok(())
    }

    /// Sets the schema of the tables, by default `jobqueue`. It is created if it does not exist. Several
    /// programs can share a database, each with its own schema. The name has 1 to 50 lower-case ASCII
    /// letters, digits and underscores. It begins with a letter or an underscore, and not with `pg_`. For any
    /// other name, opening fails with `Configuration`. In a connection string, write `schema=NAME`.
    pub fn schema(mut self, name: &str) -> Self {
        name.clone_into(&mut self.settings.schema);
        self.settings.describe();
        self
    }

    jobqueue_storage::setters! {
        /// Sets the maximum number of connections that operations use at once, from 1 to 10,000, by default
        /// 10. One more connection waits for notifications, two more renew the leases of messages, and two
        /// more serve leaders, the records of workers and the claims of batch children. The journal of each
        /// worker uses one more, sometimes two. While these handles cannot open connections, they borrow idle
        /// connections of the operations. After an outage up to four more connections of each kind may stay
        /// open until they are used. To cancel a statement that is given up, one more is opened briefly.
        max_connections(connections: usize) => settings.max_connections = connections.clamp(1, MAX_CONNECTIONS);

        /// Sets the time limit of each step of an operation, by default 30 seconds: waiting for a connection,
        /// opening a connection, for which several servers share the time equally, and each statement. When a
        /// statement exceeds the limit, the server is asked to cancel it, and the operation fails with
        /// `Timeout`. If the server confirms within 2 seconds that it cancelled the statement, the change was
        /// not made; otherwise it may have been made. A statement with a blob may take an additional second
        /// for each mebibyte.
        timeout(timeout: Duration) => settings.timeout = timeout.min(WITHOUT_END);

        /// Sets whether this process listens for notifications of messages, by default `true`. With `false`
        /// its workers poll, and its sends still notify the workers of other processes. Set `false` for
        /// programs that receive nothing, and behind a pooler that gives each transaction another connection,
        /// such as PgBouncer in transaction mode. There notifications do not arrive: opening takes 5 seconds
        /// to detect that, workers poll, and a session of the pooler keeps listening in vain until its
        /// `server_lifetime`. In a connection string, write `listen=off`.
        ///
        /// The connection that listens belongs to the runtime that opened the storage. When this runtime
        /// ends, the storage logs a warning, and its workers poll.
        listen(listen: bool) => listens;

        /// Sets whether opening creates missing tables and migrates older ones, by default `true`. With
        /// `false`, opening fails if the tables are missing or too old for this program, so that operators'
        /// programs, and roles that only use the tables, change no schema by mistake.
        migrate(migrate: bool) => migrates;

        /// Sets the runtime, which provides the time and random ids for everything that is built on the
        /// storage. Times in the tables are by the server's clock.
        runtime(runtime: Runtime);
    }
}

jobqueue_storage::debug_fields! {
    Options(settings.description)
}

fn misconfigured(detail: impl Into<String>) -> StoreError {
    StoreError::new(StoreErrorKind::Configuration, "open storage", "postgres").with_detail(detail)
}
