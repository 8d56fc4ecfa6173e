//! Sets the namespace and its key, and opens its queues.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::amqp::Links;
use super::clock::ServiceClock;
use super::connection_string::{self, Namespace};
use super::entity::{Entities, NewQueues};
use super::queue::ServiceBusQueues;
use super::sas::{Key, VALIDITY};
use super::texts::QueueBlobs;
use super::tls::Trust;
use super::token::Credential;
use jobqueue_entra::{TokenSource, credential_methods};
use jobqueue_storage::clock::WITHOUT_END;
use jobqueue_storage::runtime::Runtime;
use jobqueue_storage::secret::is_loopback;
use jobqueue_storage::{BlobStore, QueueStore, StoreError, StoreErrorKind, Stores};

const LOCK_LENGTHS: std::ops::RangeInclusive<Duration> = Duration::from_secs(5)..=Duration::from_secs(300);

const DUPLICATE_WINDOWS: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(20)..=Duration::from_secs(7 * 86_400);

/// A Service Bus namespace, and the options of its queues. [`with_blobs_of`](Self::with_blobs_of) consumes
/// the value.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use jobqueue::{Storage, servicebus};
///
/// let blobs = Storage::connect("https://myaccount.queue.core.windows.net").await?;
/// let options = servicebus::Options::from_connection_string(&std::env::var("SERVICEBUS")?)?;
/// let options = options.lock_duration(std::time::Duration::from_secs(120));
/// let storage = Storage::from(options.with_blobs_of(&blobs)?);
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use]
pub struct Options {
    namespace: Namespace,
    /// The key; `None` if tokens come from `source`.
    key: Option<Key>,
    source: TokenSource,
    /// Additional certificate authorities, in PEM.
    roots: Vec<Bytes>,
    new: NewQueues,
    token_validity: Duration,
    runtime: Runtime,
}

impl Options {
    /// Returns options for the namespace of a connection string, with its key:
    /// `Endpoint=sb://NAMESPACE.servicebus.windows.net/;SharedAccessKeyName=…;SharedAccessKey=…`.
    ///
    /// With `UseDevelopmentEmulator=true`, the connection has no TLS, and goes only to this machine, unless
    /// the key is the emulator's public `SAS_KEY_VALUE`. Tokens of Entra ID always go to another machine over
    /// TLS.
    ///
    /// Without name and key, tokens come from Entra ID: the credential is chosen on first use, as by
    /// `azure::Options::from_endpoint`, and the methods below fix the choice. The identity needs the role
    /// Azure Service Bus Data Owner, or Sender and Receiver for queues that exist.
    ///
    /// # Errors
    /// [`Configuration`](StoreErrorKind::Configuration), naming the wrong setting; the text never quotes a
    /// value.
    pub fn from_connection_string(text: &str) -> Result<Self, StoreError> {
        let (namespace, key) = connection_string::parse(text).map_err(refused)?;
        Ok(Self {
            namespace,
            key,
            source: TokenSource::Automatic,
            roots: Vec::new(),
            new: NewQueues { lock: Duration::from_secs(60), duplicates: None, sessions: false },
            token_validity: VALIDITY,
            runtime: Runtime::new(),
        })
    }

    credential_methods!();

    fn token(mut self, source: TokenSource) -> Self {
        (self.key, self.source) = (None, source);
        // The tokens of an emulator's key may go to another machine unencrypted, because the key is public.
        self.namespace.tls |= !is_loopback(&self.namespace.host);
        self
    }

    jobqueue_storage::setters! {
        /// Enables duplicate detection in created queues, within a window of 20 seconds to 7 days. A send
        /// repeated after a lost answer is one job, and so are two sends with the same id and source,
        /// whatever they contain. For jobs in order in queues without sessions, the log of their key detects
        /// duplicates instead. The default is off. Existing queues cannot be switched. Not available on the
        /// tier Basic.
        duplicate_detection(window: Duration) => new.duplicates;

        /// Sets the length of the locks in created queues: 5 seconds to 5 minutes. The default is a minute.
        /// Existing queues keep theirs.
        lock_duration(length: Duration) => new.lock;

        /// Makes created queues require sessions. Then the service itself keeps the order of messages that
        /// are sent in order (`SendOptions::in_order`), without a record of the framework. The default is
        /// off. Existing queues cannot be switched, and are used as they are. Only a sender whose key has no
        /// claim but Send cannot read their setting, and relies on this option. Not available on the tier
        /// Basic.
        sessions(on: bool) => new.sessions;

        /// Sends AMQP over WebSocket, on the HTTPS port 443 instead of 5671, which some networks block;
        /// equivalent to `TransportType=AmqpWebSockets` in the connection string. No proxy is used. The
        /// default is off.
        web_socket(on: bool) => namespace.web_socket;

        /// Sets the validity of the tokens created from the key. The default is an hour.
        token_validity(validity: Duration) => token_validity =
            validity.clamp(Duration::from_secs(1), WITHOUT_END);

        /// Sets the runtime that provides the time, ids and tasks of the connections, and of everything that
        /// is built on the storage. Its clock may differ from the service's if the process reaches the
        /// management API over HTTPS, whose answers have the service's time. After a step it counts until
        /// the next answer.
        runtime(runtime: Runtime);

        /// Reaches the namespace over the network of a simulation instead of sockets.
        #[doc(hidden)]
        network(network: Arc<dyn super::Network>) => namespace.network;
    }

    /// Trusts an additional certificate authority, in PEM, for example for private endpoints with your own
    /// authority.
    pub fn root_certificate(mut self, pem: &[u8]) -> Self {
        self.roots.push(Bytes::copy_from_slice(pem));
        self
    }

    /// Returns the storage of these queues and of the blobs of another storage. The blobs contain the
    /// metadata of the queues, and the texts that are saved under a lock. All processes that use the queues
    /// must use the same blobs, and the same address for the namespace, because the names of its blobs
    /// contain it. Sends no request: with a wrong key or address, the first operation fails.
    ///
    /// # Errors
    /// [`Configuration`](StoreErrorKind::Configuration) for a lock duration or a duplicate detection window
    /// outside of the limits of these options, and for an invalid root certificate.
    pub fn with_blobs_of(self, blobs: impl Into<Stores>) -> Result<Stores, StoreError> {
        let Stores { blobs, description, .. } = blobs.into();
        let description = format!("servicebus:{} + blobs of {description}", self.namespace.host);
        let runtime = self.runtime.clone();
        Ok(Stores::new(self.open(Arc::clone(&blobs))?, blobs, description).with_runtime(runtime))
    }

    fn open(self, blobs: Arc<dyn BlobStore>) -> Result<Arc<dyn QueueStore>, StoreError> {
        if !LOCK_LENGTHS.contains(&self.new.lock) {
            return Err(refused("a lock lasts 5 seconds to 5 minutes".to_owned()));
        }
        if self.new.duplicates.is_some_and(|window| !DUPLICATE_WINDOWS.contains(&window)) {
            return Err(refused("the window of duplicate detection is 20 seconds to 7 days".to_owned()));
        }
        let trust = Trust::of(&self.roots)
            .ok_or_else(|| refused("the root certificate is not a certificate in PEM".to_owned()))?;
        let queue_blobs = QueueBlobs::new(blobs, self.runtime.clone(), &self.namespace);
        let namespace = Arc::new(self.namespace);
        let credential = Arc::new(match self.key {
            Some(key) => Credential::Key(key, self.token_validity, self.runtime.clone()),
            None => Credential::entra(self.source, self.runtime.clone()),
        });
        let clock = ServiceClock::new(self.runtime.clone());
        let entities = Entities::new(
            Arc::clone(&namespace),
            Arc::clone(&credential),
            trust.clone(),
            self.new,
            Arc::clone(&clock),
        );
        let links = Links::new(namespace, trust, credential, self.runtime, clock);
        Ok(Arc::new(ServiceBusQueues::new(links, Arc::new(entities), queue_blobs)))
    }
}

jobqueue_storage::debug_fields! {
    /// Does not show the key.
    Options { namespace = namespace.host, new_queues = new }
}

/// Returns an error that does not quote the settings, which may contain a key.
fn refused(problem: String) -> StoreError {
    StoreError::new(StoreErrorKind::Configuration, "open storage", "servicebus").with_detail(problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_entra_go_to_another_machine_by_tls() {
        let of = |host: &str| {
            let key = "SharedAccessKeyName=n;SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true";
            Options::from_connection_string(&format!("Endpoint=sb://{host}/;{key}")).unwrap()
        };
        for (host, is_encrypted) in [("live.servicebus.windows.net", true), ("localhost", false)] {
            assert!(!of(host).namespace.tls);
            assert_eq!(of(host).managed_identity(None).namespace.tls, is_encrypted, "{host}");
        }
    }
}
