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

/// The greatest number of connections. The pool has memory for each, and a server has seldom more.
const MAX_CONNECTIONS: usize = 10_000;

/// Options that open queues and blobs in a PostgreSQL database. `Storage::open` takes them. `Debug` shows no password.
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
    /// Settings that it lacks are taken from the variables of libpq: `PGHOST`, `PGPORT`, `PGUSER`, `PGPASSWORD`, `PGDATABASE`, `PGSSLMODE`,
    /// `PGSSLROOTCERT`, `PGAPPNAME`, `PGOPTIONS`, `PGCONNECT_TIMEOUT` and `PGTARGETSESSIONATTRS`; the password also from the file that `PGPASSFILE` names, or
    /// `~/.pgpass`, where it is looked up by the first host. It is read here and not again; [`password_from`](Self::password_from) takes one that is
    /// rotated.
    ///
    /// With `credential=entra` (feature `entra`) each new connection gets a token of Entra ID as its password, as Azure Database for PostgreSQL takes it. The
    /// credential is chosen on first use: workload identity if its environment variables are set, else managed identity if there is one, else the
    /// developer's `az` or `azd` login. The methods of the credentials fix the choice. A token is sent only to a server whose
    /// certificate and name are checked: set `sslmode=verify-full`.
    ///
    /// `sslmode` means what it does in libpq: only `verify-ca` and `verify-full` check who the server is. The authorities are those in `sslrootcert`, or else
    /// those of this machine, never those of `~/.postgresql/root.crt`; with those of the machine `verify-ca` checks the name of the host too. The default is
    /// `prefer`. Use `verify-full` across any network that is not yours. A Unix socket has no TLS: `require` fails there.
    ///
    /// Of several hosts one that can be written is used, unless `target_session_attrs` says otherwise. A connection without traffic is
    /// probed after a minute, and one that does not acknowledge what was sent is given up after 10 seconds, unless `keepalives_idle`,
    /// `keepalives_interval`, `keepalives_retries` or `tcp_user_timeout` are set, all in seconds. `listen=off` is [`listen`](Self::listen).
    ///
    /// # Errors
    /// [`Configuration`](StoreErrorKind::Configuration) with the name of a wrong setting, never with its value.
    pub fn from_connection_string(text: &str) -> Result<Self, StoreError> {
        let unreadable = RefCell::new(None);
        let variable = |name: &str| {
            let value = std::env::var_os(name).filter(|value| !value.is_empty())?.into_string();
            value.map_err(|_| unreadable.replace(Some(format!("the variable {name} is not UTF-8")))).ok()
        };
        let parsed = connection_string::parse(text, &variable);
        // It does not count as unset: the connection would go to another place, or without the check of the server.
        let Parsed { config, tls, uses_entra, listens } =
            unreadable.take().map_or(parsed, Err).map_err(misconfigured)?;
        let mut settings = Settings {
            config,
            tls,
            passwords: None,
            sends_tokens: false,
            schema: "jobqueue".to_owned(),
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

    /// Sets the source of passwords, which each new connection asks for its own: for passwords that are rotated, and tokens that end. Connections
    /// that are open stay open. The time that it takes is a part of the [time limit](Self::timeout) of a connection. Operations fail with the kind of its
    /// error: `Unavailable` for an outage, `Unauthorized` for a refusal. That error, as all others, must not have the password in its text.
    pub fn password_from<F, R>(mut self, source: F) -> Self
    where
        F: Fn() -> R + Send + Sync + 'static,
        R: Future<Output = Result<String, StoreError>> + Send + 'static,
    {
        self.settings.passwords = Some(Arc::new(move || Box::pin(source())));
        self.settings.sends_tokens = false;
        self
    }

    /// Checks the name of the schema, and refuses to send tokens to a server whose identity is not checked: it could use them at other servers.
    ///
    /// # Errors
    /// `Configuration` if the name is not allowed, or the identity of the server is not checked.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        check_schema(&self.settings.schema).map_err(misconfigured)?;
        if self.settings.sends_tokens && !matches!(self.settings.tls, Tls::Full(_)) {
            return Err(misconfigured(
                "tokens of Entra ID are sent only to a server whose certificate and name are checked; add `sslmode=verify-full`",
            ));
        }
        Ok(())
    }

    /// Sets the schema that holds the tables, by default `jobqueue`. It is created if it is missing. Several programs with schemas of their
    /// own can share a database. The name has 1 to 50 lower-case ASCII letters, digits and underscores, begins with a letter or an underscore,
    /// and not with `pg_`; opening fails with `Configuration` for another.
    pub fn schema(mut self, name: &str) -> Self {
        name.clone_into(&mut self.settings.schema);
        self.settings.describe();
        self
    }

    jobqueue_storage::setters! {
        /// Sets the greatest number of connections that operations use at once, by default 10, from 1 to 10,000. A further one waits for notifications,
        /// two renew the leases of messages, and two are those of leaders, of records of workers and of claims of children. The journal of each worker
        /// uses one more, at times two. While these can open none, they borrow idle ones of the operations. After an outage up to four more of each kind may stay
        /// open until they are used. To cancel a statement that is given up, one more is opened for a moment.
        max_connections(connections: usize) => settings.max_connections = connections.clamp(1, MAX_CONNECTIONS);

        /// Sets the time limit of each step of an operation, by default 30 seconds: of waiting for a connection, of opening one, which several
        /// servers share equally, and of each statement. After
        /// it the server is asked to cancel the statement, and the operation fails with `Timeout`: a change was not made if the server says so within 2 seconds, and may
        /// have been made otherwise. A statement with a blob may take a
        /// second more for each mebibyte.
        timeout(timeout: Duration) => settings.timeout = timeout.min(WITHOUT_END);

        /// Sets whether this process listens for notifications of messages, as it does by default. Without it its workers poll, and its sends notify the workers
        /// of others all the same: for programs that receive nothing, and behind a pooler that gives each transaction another connection, such as PgBouncer in
        /// transaction mode. There notifications do not arrive: opening finds that out in 5 seconds, workers poll, and a session of the pooler is left that listens to
        /// no purpose until its `server_lifetime`. In a connection string it is `listen=off`.
        ///
        /// The connection that listens belongs to the runtime that opens the storage. When this runtime ends, the storage logs a warning, and its workers poll.
        listen(listen: bool) => listens;

        /// Sets whether opening creates the tables if they are missing, and migrates older ones, as it does by default. Without it opening fails if they are
        /// missing or too old for this program: programs of operators, and roles that only use the tables, change no schema by mistake.
        migrate(migrate: bool) => migrates;

        /// Sets the runtime, from which everything that is built on the storage takes the time and its ids. Times in the tables are those
        /// of the server's clock.
        runtime(runtime: Runtime);
    }
}

jobqueue_storage::debug_fields! {
    Options(settings.description)
}

fn misconfigured(detail: impl Into<String>) -> StoreError {
    StoreError::new(StoreErrorKind::Configuration, "open storage", "postgres").with_detail(detail)
}
