//! Options for opening a storage account.

use std::sync::Arc;

use bytes::Bytes;

use super::account::{self, Account, Credential};
use super::blob::AzureBlobs;
use super::connection::{Connection, ConnectionSettings};
use super::connection_string;
use super::queue::AzureQueues;
use jobqueue_entra::{TokenSource, credential_methods};
use jobqueue_storage::runtime::Runtime;
use jobqueue_storage::{OpenStores, StoreError, StoreErrorKind, Stores};

/// Options for a storage account: its addresses, its credential, and its certificates. `Storage::open` takes
/// them.
///
/// There are three kinds of credential: the account key and a shared access signature, both in a [connection
/// string](Self::from_connection_string), and Entra ID, for an [endpoint](Self::from_endpoint). `Debug` shows
/// none of them. Plain http is accepted only to this machine (loopback).
///
/// # Examples
/// ```no_run
/// # async fn example() -> Result<(), jobqueue::Error> {
/// use jobqueue::Storage;
/// use jobqueue::azure::Options;
///
/// let emulator = Options::from_connection_string("UseDevelopmentStorage=true")?;
/// let account = Options::from_endpoint("https://myaccount.queue.core.windows.net")?;
/// let storage = Storage::open(account).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use]
pub struct Options {
    setup: ConnectionSettings,
    blob_endpoint: Option<String>,
    /// Additional certificate authorities, in PEM.
    roots: Vec<Bytes>,
}

jobqueue_storage::debug_fields! {
    /// Shows neither unchecked addresses nor certificates.
    Options { setup }
}

impl Options {
    /// Returns options from an Azure connection string.
    ///
    /// The known settings are `UseDevelopmentStorage=true` (with `DevelopmentStorageProxyUri`), `AccountName`
    /// with `AccountKey` or `SharedAccessSignature`, `DefaultEndpointsProtocol`, `EndpointSuffix`, and
    /// `QueueEndpoint` and `BlobEndpoint`, whose addresses may be path-style
    /// (`http://127.0.0.1:10001/devstoreaccount1`). One of the two endpoints is enough if its host names the
    /// service (`….queue.…`). Settings for tables and files are ignored.
    ///
    /// # Errors
    /// [`Configuration`](StoreErrorKind::Configuration) with the name of the wrong or missing setting, never
    /// with its value.
    pub fn from_connection_string(text: &str) -> Result<Self, StoreError> {
        connection_string::parse(text).map(Self::new).map_err(misconfigured)
    }

    /// Returns options from the address of an account's queues (`https://ACCOUNT.queue.core.windows.net`) or
    /// blobs, with Entra ID.
    ///
    /// The other address is derived from it; [`blob_endpoint`](Self::blob_endpoint) sets it where that is
    /// impossible. The credential is chosen on first use: workload identity if its environment variables are
    /// set, otherwise managed identity if there is one, otherwise the developer's `az` or `azd` login. The
    /// methods below fix the choice.
    ///
    /// # Errors
    /// [`Configuration`](StoreErrorKind::Configuration) if the text is not an https address of a storage
    /// account.
    pub fn from_endpoint(endpoint: &str) -> Result<Self, StoreError> {
        let given = account::endpoint("the endpoint", endpoint).map_err(misconfigured)?;
        if given.scheme() != "https" {
            return Err(misconfigured(
                "the endpoint must be https: tokens are not sent in the clear".to_owned(),
            ));
        }
        let queues = account::sibling(&given, "blob", "queue").unwrap_or_else(|| given.clone());
        let blobs = account::sibling(&queues, "queue", "blob").unwrap_or(given);
        let name = account::account_name(&queues)
            .ok_or_else(|| misconfigured("the endpoint does not name the account".to_owned()))?;
        Ok(Self::new(Account { name, queues, blobs, credential: Credential::Token(TokenSource::Automatic) }))
    }

    fn new(account: Account) -> Self {
        let setup =
            ConnectionSettings { account, roots: Vec::new(), runtime: Runtime::new(), in_process: None };
        Self { setup, blob_endpoint: None, roots: Vec::new() }
    }

    jobqueue_storage::setters! {
        /// Sets the address of the blobs, if it cannot be derived from the address of the queues.
        blob_endpoint(endpoint: &str) => blob_endpoint = Some(endpoint.to_owned());
    }

    credential_methods!();

    fn token(mut self, source: TokenSource) -> Self {
        self.setup.account.credential = Credential::Token(source);
        self
    }

    /// Trusts an additional certificate authority, in PEM, for example for private endpoints with your own
    /// authority.
    pub fn root_certificate(mut self, pem: &[u8]) -> Self {
        self.roots.push(Bytes::copy_from_slice(pem));
        self
    }

    jobqueue_storage::setters! {
        /// Sets the runtime that provides jitter, ids and the time for requests, and for everything that is
        /// built on the storage.
        runtime(runtime: Runtime) => setup.runtime;

        /// Sends all requests to `client` instead of the network, complete with their signatures, for tests
        /// and measurements without a service. Hidden, because `client` comes from a crate without a version
        /// promise.
        #[doc(hidden)]
        in_process(client: Arc<dyn azure_core::http::HttpClient>) => setup.in_process;
    }

    fn connect(mut self) -> Result<Arc<Connection>, StoreError> {
        if let Some(endpoint) = &self.blob_endpoint {
            self.setup.account.blobs =
                account::endpoint("the blob endpoint", endpoint).map_err(misconfigured)?;
        }
        for pem in &self.roots {
            // `from_pem` checks nothing before the client is built, which then accepts a text without a
            // certificate.
            let roots = reqwest::Certificate::from_pem_bundle(pem).unwrap_or_default();
            if roots.is_empty() {
                return Err(misconfigured("the root certificate is not a certificate in PEM".to_owned()));
            }
            self.setup.roots.extend(roots);
        }
        let account = &self.setup.account;
        let clear = [&account.queues, &account.blobs].iter().any(|url| url.scheme() != "https");
        if clear && matches!(account.credential, Credential::Token(_)) {
            return Err(misconfigured("tokens of Entra ID need https".to_owned()));
        }
        Connection::open(self.setup)
    }
}

impl OpenStores for Options {
    /// Opens the storage. Sends no request: with a wrong key or address, the first operation fails.
    ///
    /// # Errors
    /// [`Configuration`](StoreErrorKind::Configuration) if the address of the blobs is invalid, or is plain
    /// http to another machine, if a root certificate is invalid, if tokens would be sent over plain http, or
    /// if no client can be created.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing is left to undo.
    async fn open(self) -> Result<Stores, StoreError> {
        let connection = self.connect()?;
        let description = format!("azure:{}", connection.account().name);
        let runtime = connection.runtime().clone();
        let queues = Arc::new(AzureQueues::new(Arc::clone(&connection)));
        Ok(Stores::new(queues, Arc::new(AzureBlobs::new(connection)), description).with_runtime(runtime))
    }
}

/// Returns an error that does not quote the settings, which may contain a key.
fn misconfigured(problem: String) -> StoreError {
    StoreError::new(StoreErrorKind::Configuration, "open storage", "azure").with_detail(problem)
}
