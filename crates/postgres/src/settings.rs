//! The settings of the connections to a database.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::Host;

use jobqueue_storage::StoreError;

/// Returns the password for a new connection.
pub(crate) type Passwords =
    Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Result<String, StoreError>> + Send>> + Send + Sync>;

/// Looks up an environment variable.
pub(crate) type Variables<'v> = &'v dyn Fn(&str) -> Option<String>;

/// The settings of the connections.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) config: Config,
    pub(crate) tls: Tls,
    /// The source of passwords, which replaces the password in `config`.
    pub(crate) passwords: Option<Passwords>,
    /// True if the passwords are tokens of Entra ID, which other servers would accept, too.
    pub(crate) sends_tokens: bool,
    pub(crate) schema: String,
    pub(crate) max_connections: usize,
    pub(crate) timeout: Duration,
    /// The name for logs, without secrets.
    pub(crate) description: String,
}

/// The check of the server's certificate, according to `sslmode`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Tls {
    /// No check: `disable`, `prefer` and `require`.
    Unchecked,
    /// An authority in this file must have signed it: `verify-ca`.
    Authority(PathBuf),
    /// An authority in this file, or else of this machine, must have signed it for the name of the host:
    /// `verify-full`.
    Full(Option<PathBuf>),
}

impl Settings {
    /// Sets the description to the hosts, the database and the schema.
    pub(crate) fn describe(&mut self) {
        let host = |host: &Host| match host {
            Host::Tcp(name) => name.clone(),
            #[cfg(unix)]
            Host::Unix(path) => path.display().to_string(),
        };
        let addresses = self.config.get_hostaddrs().iter().map(ToString::to_string);
        let hosts: Vec<_> = self.config.get_hosts().iter().map(host).chain(addresses).collect();
        let ports: Vec<_> = self.config.get_ports().iter().map(u16::to_string).collect();
        let ports = if ports.is_empty() { String::new() } else { format!(":{}", ports.join(",")) };
        // The server's default is also the name of the role.
        let database = self.config.get_dbname().or(self.config.get_user()).unwrap_or_default();
        self.description = format!("postgres:{}{ports}/{database}/{}", hosts.join(","), self.schema);
    }
}
