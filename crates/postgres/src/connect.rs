//! Opens connections, each with the password of its moment.

use std::borrow::Cow;
use std::ops::{Deref, DerefMut};

use deadpool::managed::{self, Manager, Metrics, RecycleError, RecycleResult};
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Config, Connection, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::settings::{Passwords, Settings};
use crate::tls::Stream;
use jobqueue_storage::StoreError;
use jobqueue_storage::runtime::Runtime;

pub(crate) type Pool = managed::Pool<Connector>;
pub(crate) type Object = managed::Object<Connector>;

/// Opens connections, for the pool and outside of it.
pub(crate) struct Connector {
    config: Config,
    passwords: Option<Passwords>,
    pub(crate) tls: MakeRustlsConnect,
    runtime: Runtime,
}

/// The reason why there is no connection.
pub(crate) enum ConnectError {
    Password(StoreError),
    Server(tokio_postgres::Error),
}

impl From<tokio_postgres::Error> for ConnectError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Server(error)
    }
}

/// A connection of the pool. When it is dropped it is closed at once, also if a statement has no answer.
pub(crate) struct Session {
    client: Client,
    task: JoinHandle<Result<(), tokio_postgres::Error>>,
}

impl Connector {
    pub(crate) fn new(settings: &Settings, tls: MakeRustlsConnect, runtime: Runtime) -> Self {
        let (config, passwords) = (settings.config.clone(), settings.passwords.clone());
        Self { config, passwords, tls, runtime }
    }

    /// Opens a connection.
    pub(crate) async fn connect(&self) -> Result<(Client, Connection<Socket, Stream>), ConnectError> {
        let mut config = Cow::Borrowed(&self.config);
        if let Some(passwords) = &self.passwords {
            config.to_mut().password(passwords().await.map_err(ConnectError::Password)?);
        }
        Ok(config.connect(self.tls.clone()).await?)
    }
}

impl Manager for Connector {
    type Type = Session;
    type Error = ConnectError;

    async fn create(&self) -> Result<Session, ConnectError> {
        let (client, connection) = self.connect().await?;
        Ok(Session { client, task: self.runtime.spawn(connection) })
    }

    async fn recycle(&self, session: &mut Session, _: &Metrics) -> RecycleResult<ConnectError> {
        match session.is_closed() {
            false => Ok(()),
            true => Err(RecycleError::message("the connection is closed")),
        }
    }
}

impl Deref for Session {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.client
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.task.abort();
    }
}
