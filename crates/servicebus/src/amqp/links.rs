//! The links of a storage handle: opened on first use, and reopened after they have ended.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use fe2o3_amqp::types::primitives::Value;
use futures_util::future::join_all;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::super::cache::{Expiring, SingleFlightCache};
use super::super::clock::ServiceClock;
use super::super::connection_string::Namespace;
use super::super::error::Fault;
use super::super::tls::Trust;
use super::super::token::{Credential, Token};
use super::channel::Channel;
use super::connection::Connection;
use super::receiver::ReceiveLink;
use super::requests::{Node, NodeRequest};
use super::sender::SendLink;
use super::session::AcceptedSession;
use super::transaction::{Coordinators, TransactionPermits};
use jobqueue_storage::Notifier;
use jobqueue_storage::log;
use jobqueue_storage::runtime::Runtime;
use jobqueue_storage::sync::lock;

/// The limits of the pause between two renewals of tokens.
const MIN_RENEWAL_PAUSE: Duration = Duration::from_millis(50);
const MAX_RENEWAL_PAUSE: Duration = Duration::from_secs(900);
const TOKEN_RETRY_PAUSE: Duration = Duration::from_secs(5);
const CBS: &str = "$cbs";
const CONNECTION_KEY: &str = "";

/// The connection of one handle, with its links.
#[derive(Debug)]
pub(crate) struct Links {
    namespace: Arc<Namespace>,
    trust: Trust,
    credential: Arc<Credential>,
    runtime: Runtime,
    pub(crate) clock: Arc<ServiceClock>,
    /// The connection, cached under a single key for all queues.
    live: SingleFlightCache<Arc<LiveConnection>>,
    /// The notifiers of arrivals, by address. They outlive connections.
    arrivals: std::sync::Mutex<HashMap<String, Arc<Notifier>>>,
    pub(super) transaction_permits: TransactionPermits,
}

/// A working connection, with its links by queue.
#[derive(Debug)]
pub(crate) struct LiveConnection {
    connection: Connection,
    /// True if no new links can be attached over this connection, or no token is valid and none can be sent.
    /// Its sessions and deliveries keep it open, and would be lost with it.
    is_unusable: AtomicBool,
    host: String,
    credential: Arc<Credential>,
    tokens: SingleFlightCache<SentToken>,
    has_new_token: Arc<Notify>,
    /// The times at which a new token was requested because the service had refused a link.
    token_retries: std::sync::Mutex<HashMap<String, Instant>>,
    channels: SingleFlightCache<Arc<Channel>>,
    /// Channels on which no session was accepted.
    idle_channels: std::sync::Mutex<Vec<Arc<Channel>>>,
    nodes: SingleFlightCache<Node>,
    senders: SingleFlightCache<SendLink>,
    receivers: SingleFlightCache<ReceiveLink>,
    pub(super) coordinators: Coordinators,
}

/// A receive link that keeps its connection open.
#[derive(Debug, Clone)]
pub(crate) struct OpenLink {
    link: ReceiveLink,
    live: Arc<LiveConnection>,
}

impl OpenLink {
    /// Returns the management node of a queue over the connection of this link.
    pub(crate) async fn node(&self, queue: &str) -> Result<Node, Fault> {
        self.live.node(queue).await
    }
}

impl Deref for OpenLink {
    type Target = ReceiveLink;

    fn deref(&self) -> &ReceiveLink {
        &self.link
    }
}

/// A token that was sent. It is used until it expires; only the renewing task looks at `renewal`.
#[derive(Debug, Clone, Copy)]
struct SentToken {
    renewal: Instant,
    end: Instant,
}

impl Expiring for SentToken {
    fn is_gone(&self) -> bool {
        self.end <= Instant::now()
    }
}

impl Links {
    pub(crate) fn new(
        namespace: Arc<Namespace>,
        trust: Trust,
        credential: Arc<Credential>,
        runtime: Runtime,
        clock: Arc<ServiceClock>,
    ) -> Self {
        Self {
            namespace,
            trust,
            credential,
            runtime,
            clock,
            live: SingleFlightCache::default(),
            arrivals: Default::default(),
            transaction_permits: TransactionPermits::default(),
        }
    }

    /// Returns links with the same settings over a separate connection.
    pub(crate) fn detached(&self) -> Self {
        let (namespace, credential) = (Arc::clone(&self.namespace), Arc::clone(&self.credential));
        let (runtime, clock) = (self.runtime.clone(), Arc::clone(&self.clock));
        Self::new(namespace, self.trust.clone(), credential, runtime, clock)
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    pub(crate) async fn node(self: &Arc<Self>, queue: &str) -> Result<Node, Fault> {
        self.attached(queue, |live| async move { live.node(queue).await }).await
    }

    pub(crate) async fn sender(self: &Arc<Self>, queue: &str) -> Result<SendLink, Fault> {
        self.attached(queue, |live| async move { live.sender(queue).await }).await
    }

    pub(crate) async fn receiver(self: &Arc<Self>, queue: &str) -> Result<OpenLink, Fault> {
        let attach = |live: Arc<LiveConnection>| async move {
            let attach = || {
                let (live, queue, arrivals) = (Arc::clone(&live), queue.to_owned(), self.arrivals(queue));
                async move { ReceiveLink::attach(&live.channel(&queue).await?, &queue, arrivals).await }
            };
            let link = live.receivers.get(live.runtime(), queue, attach).await?;
            Ok(OpenLink { link, live })
        };
        self.attached(queue, attach).await
    }

    /// Waits up to `wait` for the next free session with messages. Calls `asking` just before the attach.
    /// Also returns the connection that holds the session.
    pub(crate) async fn accept_session(
        self: &Arc<Self>,
        queue: &str,
        wait: Duration,
        asking: impl Fn() + Sync,
    ) -> Result<(AcceptedSession, Arc<LiveConnection>), Fault> {
        let asking = &asking;
        let attach = |live: Arc<LiveConnection>| async move {
            let idle = lock(&live.idle_channels).pop().filter(|channel| !channel.is_gone());
            let channel = match idle {
                Some(channel) => channel,
                None => live.begin().await?,
            };
            asking();
            match AcceptedSession::attach(&channel, queue, wait).await {
                Ok(accepted) => Ok((accepted, live)),
                Err(fault) => {
                    lock(&live.idle_channels).push(channel);
                    Err(fault)
                }
            }
        };
        self.attached(queue, attach).await
    }

    /// Runs `attach` over the current connection. After a refusal, repeats it with a new token, because the
    /// last one may have expired unnoticed while the machine was asleep. If the connection has no room for
    /// another channel, repeats it over a new connection.
    pub(super) async fn attached<T, A: Future<Output = Result<T, Fault>>>(
        self: &Arc<Self>,
        queue: &str,
        attach: impl Fn(Arc<LiveConnection>) -> A,
    ) -> Result<T, Fault> {
        let live = self.live(queue).await?;
        match attach(Arc::clone(&live)).await {
            Err(fault) if fault.is_unauthorized() => live.forget_token(queue),
            // The connection has reached its maximum number of channels.
            Err(fault) if fault.is_full() && live.is_gone() => {}
            attached => return attached,
        }
        attach(self.live(queue).await?).await
    }

    pub(crate) fn present_receiver(&self, queue: &str) -> Option<OpenLink> {
        let live = self.live.present(CONNECTION_KEY)?;
        Some(OpenLink { link: live.receivers.present(queue)?, live })
    }

    pub(crate) fn arrivals(&self, queue: &str) -> Arc<Notifier> {
        Arc::clone(lock(&self.arrivals).entry(queue.to_owned()).or_default())
    }

    /// Returns whether the link for immediate or delayed sends to a queue is up. It ends when the queue is
    /// deleted.
    pub(crate) fn can_put(&self, queue: &str, is_delayed: bool) -> bool {
        if is_delayed {
            return self.has_node(queue);
        }
        self.live.present(CONNECTION_KEY).is_some_and(|live| live.senders.present(queue).is_some())
    }

    pub(crate) fn has_node(&self, queue: &str) -> bool {
        self.live.present(CONNECTION_KEY).is_some_and(|live| live.nodes.present(queue).is_some())
    }

    /// Returns the connection, after sending a token for the queue if needed.
    async fn live(self: &Arc<Self>, queue: &str) -> Result<Arc<LiveConnection>, Fault> {
        let connect = || {
            let links = Arc::clone(self);
            async move { links.connect().await }
        };
        let live = self.live.get(&self.runtime, CONNECTION_KEY, connect).await?;
        live.authorize(queue).await?;
        Ok(live)
    }

    async fn connect(&self) -> Result<Arc<LiveConnection>, Fault> {
        let live = Arc::new(LiveConnection {
            connection: Connection::open(&self.namespace, &self.trust, &self.runtime).await?,
            is_unusable: AtomicBool::default(),
            host: self.namespace.host.clone(),
            credential: Arc::clone(&self.credential),
            tokens: SingleFlightCache::default(),
            has_new_token: Arc::default(),
            token_retries: Default::default(),
            channels: SingleFlightCache::default(),
            idle_channels: Default::default(),
            nodes: SingleFlightCache::default(),
            senders: SingleFlightCache::default(),
            receivers: SingleFlightCache::default(),
            coordinators: Coordinators::default(),
        });
        drop(self.runtime.spawn(renew_tokens(Arc::downgrade(&live))));
        Ok(live)
    }
}

impl Expiring for Arc<LiveConnection> {
    fn is_gone(&self) -> bool {
        self.connection.dead.is_cancelled() || self.is_unusable.load(Ordering::Relaxed)
    }
}

impl LiveConnection {
    fn runtime(&self) -> &Runtime {
        &self.connection.runtime
    }

    pub(super) async fn channel(self: &Arc<Self>, queue: &str) -> Result<Arc<Channel>, Fault> {
        let begin = || {
            let live = Arc::clone(self);
            async move { live.begin().await }
        };
        self.channels.get(self.runtime(), queue, begin).await
    }

    async fn begin(&self) -> Result<Arc<Channel>, Fault> {
        self.connection.channel().await.inspect_err(|fault| self.note_unusable(fault))
    }

    /// Marks the connection as unusable for new links after a timeout, or if it has reached its maximum
    /// number of channels. A refusal does not count, because it is an answer, nor does a channel that has
    /// ended.
    fn note_unusable(&self, fault: &Fault) {
        self.is_unusable.fetch_or(matches!(fault, Fault::Late) || fault.is_full(), Ordering::Relaxed);
    }

    /// Returns the management node of a queue, or the node that accepts tokens.
    pub(crate) async fn node(self: &Arc<Self>, queue: &str) -> Result<Node, Fault> {
        let attach = || {
            let (live, queue) = (Arc::clone(self), queue.to_owned());
            async move {
                let address = if queue == CBS { queue.clone() } else { format!("{queue}/$management") };
                Node::attach(live.channel(&queue).await?, &address).await
            }
        };
        self.nodes.get(self.runtime(), queue, attach).await
    }

    pub(super) async fn sender(self: &Arc<Self>, queue: &str) -> Result<SendLink, Fault> {
        let attach = || {
            let (live, queue) = (Arc::clone(self), queue.to_owned());
            async move { SendLink::attach(live.channel(&queue).await?, &queue).await }
        };
        self.senders.get(self.runtime(), queue, attach).await
    }

    /// Sends a token for a queue, unless the last one is still valid.
    async fn authorize(self: &Arc<Self>, queue: &str) -> Result<(), Fault> {
        let put = || {
            let (live, queue) = (Arc::clone(self), queue.to_owned());
            async move {
                let token = live.put_token(&queue).await?;
                // Before the notification, because the renewing task then looks for the token.
                live.tokens.set(&queue, token);
                live.has_new_token.notify_one();
                Ok(token)
            }
        };
        self.tokens.get(self.runtime(), queue, put).await.map(drop)
    }

    /// Forgets the token of a queue, so that a new one is sent, unless this was done a moment ago.
    fn forget_token(&self, queue: &str) {
        let now = Instant::now();
        let mut retries = lock(&self.token_retries);
        if retries.get(queue).is_none_or(|last| now >= *last + TOKEN_RETRY_PAUSE) {
            retries.insert(queue.to_owned(), now);
            self.tokens.invalidate(queue);
        }
    }

    async fn put_token(self: &Arc<Self>, queue: &str) -> Result<SentToken, Fault> {
        let audience = format!("sb://{}/{queue}", self.host);
        let Token { text, kind, renewal, end } = self.credential.token(&audience).await?;
        let properties = vec![("type", kind.to_owned()), ("name", audience)];
        let request = NodeRequest { operation: "put-token", properties, body: Value::String(text) };
        let cbs = self.node(CBS).await.inspect_err(|fault| {
            if self.tokens.all().iter().all(|(_, token)| token.is_gone()) {
                self.note_unusable(fault);
            }
        })?;
        cbs.call(request).await.map_err(Fault::of_token)?;
        Ok(SentToken { renewal, end })
    }

    /// Renews the tokens that are due; returns the time of the next renewal.
    async fn renew_due_tokens(self: &Arc<Self>) -> Instant {
        let due = self.tokens.all().into_iter().filter(|(_, token)| token.renewal <= Instant::now());
        let renewing = due.map(|(queue, last)| async move {
            let token = match self.put_token(&queue).await {
                // A credential may return the same token until shortly before its expiry.
                Ok(token) => Some(SentToken {
                    renewal: token.renewal.max(Instant::now() + MIN_RENEWAL_PAUSE),
                    ..token
                }),
                Err(error) if error.is_missing_entity() => {
                    log::debug!(queue, "the token of a deleted Service Bus queue is not renewed");
                    None
                }
                Err(error) => {
                    log::warn!(queue, %error, "the token for a queue of Service Bus was not renewed");
                    // After it has expired, the next use of the queue requests a new token.
                    Some(SentToken { renewal: Instant::now() + TOKEN_RETRY_PAUSE, ..last })
                        .filter(|last| !last.is_gone())
                }
            };
            match token {
                Some(token) => self.tokens.set(&queue, token),
                None => self.tokens.invalidate(&queue),
            }
        });
        join_all(renewing).await;
        let latest = Instant::now() + MAX_RENEWAL_PAUSE;
        self.tokens.all().into_iter().map(|(_, token)| token.renewal).fold(latest, Instant::min)
    }
}

/// Renews the tokens of a connection until it ends. The service detaches a link whose token expires.
async fn renew_tokens(live: Weak<LiveConnection>) {
    loop {
        // The connection is held only during a renewal: dropping the last handle ends it.
        let Some(present) = live.upgrade().filter(|live| !live.connection.dead.is_cancelled()) else {
            return;
        };
        let next = present.renew_due_tokens().await;
        let (has_new_token, dead) = (Arc::clone(&present.has_new_token), present.connection.dead.clone());
        drop(present);
        tokio::select! {
            biased;
            () = dead.cancelled() => return,
            () = has_new_token.notified() => {}
            () = tokio::time::sleep_until(next) => {}
        }
    }
}
