//! The SDK's clients for one account, over one pool of connections.

use std::sync::Arc;
use std::time::Duration;

use azure_storage_blob::{BlobClient, BlobContainerClient, BlobServiceClient, BlobServiceClientOptions};
use azure_storage_queue::{QueueClient, QueueServiceClient, QueueServiceClientOptions};

use super::account::{self, Account, Credential};
use super::pipeline;
use jobqueue_storage::log::warn;
use jobqueue_storage::runtime::Runtime;
use jobqueue_storage::{BlobName, ContainerName, QueueName, StoreError, StoreErrorKind};

/// The version of the service's protocol: the oldest with all features that are used here, so that emulators
/// and Azure Stack support it.
const API_VERSION: &str = "2021-12-02";

/// The time limit for making a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The idle time after which a connection to an emulator is closed. Azurite closes idle connections after 5
/// seconds (Node's `server.keepAliveTimeout`), and a request on a connection that is being closed gets no
/// answer.
const EMULATOR_IDLE_TIMEOUT: Duration = Duration::from_secs(4);

/// An account and the clients for it. Clones of the `Arc` share connections and tokens.
pub(super) struct Connection {
    setup: ConnectionSettings,
    queues: QueueServiceClient,
    blobs: BlobServiceClient,
}

/// The settings of a connection, for opening another one.
#[derive(Debug, Clone)]
pub(super) struct ConnectionSettings {
    pub(super) account: Account,
    pub(super) roots: Vec<reqwest::Certificate>,
    pub(super) runtime: Runtime,
    /// The client that answers instead of the network.
    pub(super) in_process: Option<Arc<dyn azure_core::http::HttpClient>>,
}

impl Connection {
    /// Creates the clients; sends no request.
    pub(super) fn open(setup: ConnectionSettings) -> Result<Arc<Self>, StoreError> {
        let failed = |what: &str, source: Box<dyn std::error::Error + Send + Sync>| {
            StoreError::new(StoreErrorKind::Configuration, "open storage", &setup.account.name)
                .with_detail(what.to_owned())
                .with_source(source)
        };
        let http =
            http_client(&setup).map_err(|error| failed("no HTTP client", error.without_url().into()))?;
        let exchange = pipeline::exchange(http, setup.in_process.as_ref());
        let account = &setup.account;
        let token = match &account.credential {
            Credential::Token(source) => Some(source.credential()),
            Credential::SharedKey(_) | Credential::Sas(_) => None,
        };
        // Both clients get the same credential, so that they share its token.
        let token = token.transpose().map_err(|error| failed("no credential", error.into()))?;
        let queues = QueueServiceClient::new(
            account.queues.clone(),
            token.clone(),
            Some(QueueServiceClientOptions {
                client_options: pipeline::client_options(account, &account.queues, Arc::clone(&exchange)),
                version: API_VERSION.to_owned(),
            }),
        );
        let blobs = BlobServiceClient::new(
            account.blobs.clone(),
            token,
            Some(BlobServiceClientOptions {
                client_options: pipeline::client_options(account, &account.blobs, Arc::clone(&exchange)),
                version: API_VERSION.to_owned(),
            }),
        );
        let queues = queues.map_err(|error| failed("no queue client", error.into()))?;
        let blobs = blobs.map_err(|error| failed("no blob client", error.into()))?;
        Ok(Arc::new(Self { setup, queues, blobs }))
    }

    /// Returns the same account over separate connections, or over these if no others can be opened.
    pub(super) fn detached(self: &Arc<Self>) -> Arc<Self> {
        Self::open(self.setup.clone()).unwrap_or_else(|error| {
            warn!(%error, "cannot open a second connection to the storage; sharing the first");
            Arc::clone(self)
        })
    }

    pub(super) fn account(&self) -> &Account {
        &self.setup.account
    }

    pub(super) fn runtime(&self) -> &Runtime {
        &self.setup.runtime
    }

    pub(super) fn queue_service(&self) -> &QueueServiceClient {
        &self.queues
    }

    pub(super) fn queue(&self, queue: &QueueName) -> azure_core::Result<QueueClient> {
        self.queues.queue_client(queue.as_str())
    }

    pub(super) fn container(&self, container: &ContainerName) -> BlobContainerClient {
        self.blobs.blob_container_client(container.as_str())
    }

    pub(super) fn blob(&self, blob: &BlobName) -> BlobClient {
        self.blobs.blob_client(blob.container().as_str(), blob.name())
    }
}

jobqueue_storage::debug_fields! {
    Connection(setup.account.name)
}

fn http_client(setup: &ConnectionSettings) -> reqwest::Result<reqwest::Client> {
    let account = &setup.account;
    let mut builder = reqwest::Client::builder()
        // A redirect would send the signature and the token to the host that the answer names.
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .referer(false)
        .http1_only();
    if account::is_loopback(&account.queues) && account::is_loopback(&account.blobs) {
        // Requests to this machine bypass proxies.
        builder = builder.no_proxy().pool_idle_timeout(EMULATOR_IDLE_TIMEOUT);
    } else {
        builder = builder.https_only(true);
    }
    if !setup.roots.is_empty() {
        builder = builder.tls_certs_merge(setup.roots.iter().cloned());
    }
    builder.build()
}
