//! The links of one storage handle: opened when they are needed, and anew when they have ended.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use fe2o3_amqp::types::primitives::Value;
use tokio::sync::{Mutex, Notify};
use tokio::time::Instant;

use super::super::connection_string::Namespace;
use super::super::error::Fault;
use super::super::tls::Trust;
use super::super::token::{Credential, Token};
use super::connection::Connection;
use super::receiver::{ReceiveLink, Replacing};
use super::requests::{Node, Request};
use super::sender::SendLink;
use super::session::Accepted;
use jobqueue_storage::Notifier;
use jobqueue_storage::runtime::Runtime;
use jobqueue_storage::sync::lock;

/// The shortest and the longest pause between two renewals.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(900);
/// The pause after a token could not be renewed.
const RETRY_TOKEN: Duration = Duration::from_secs(5);

/// The connection of one handle, with its links.
#[derive(Debug)]
pub(crate) struct Links {
    namespace: Arc<Namespace>,
    trust: Trust,
    credential: Arc<Credential>,
    runtime: Runtime,
    /// The interval at which the link of a held session shows that it is in use.
    pub(crate) keep_alive: Duration,
    live: Mutex<Option<Arc<Live>>>,
    /// The notifiers of arrivals, by address. They outlive connections.
    arrivals: std::sync::Mutex<HashMap<String, Arc<Notifier>>>,
    /// Queues with pending updates.
    used: std::sync::Mutex<HashSet<String>>,
}

/// A connection that works, with the links on it by queue.
#[derive(Debug)]
struct Live {
    connection: Arc<Connection>,
    /// Takes tokens. Its links may end before the connection, which carries sessions and deliveries that would be lost with it.
    cbs: Mutex<Node>,
    /// True if tokens cannot be sent over this connection any more.
    is_deaf: AtomicBool,
    host: String,
    credential: Arc<Credential>,
    /// The times at which tokens are to be renewed, by queue.
    tokens: Mutex<HashMap<String, Instant>>,
    has_new_token: Arc<Notify>,
    /// The times at which a new token was sent because the service had refused a link.
    refused: std::sync::Mutex<HashMap<String, Instant>>,
    nodes: Mutex<HashMap<String, Node>>,
    senders: Mutex<HashMap<String, SendLink>>,
    receivers: Mutex<HashMap<String, ReceiveLink>>,
}

impl Links {
    pub(crate) fn new(
        namespace: Arc<Namespace>,
        trust: Trust,
        credential: Arc<Credential>,
        runtime: Runtime,
    ) -> Self {
        let (live, arrivals, used) = Default::default();
        Self { namespace, trust, credential, runtime, keep_alive: LONGEST_PAUSE, live, arrivals, used }
    }

    /// Sets the interval at which the links of held sessions show that they are in use.
    pub(crate) fn keeping_alive(self, keep_alive: Duration) -> Self {
        Self { keep_alive, ..self }
    }

    /// Returns links of the same kind over a connection of their own.
    pub(crate) fn again(&self) -> Self {
        let (namespace, credential) = (Arc::clone(&self.namespace), Arc::clone(&self.credential));
        Self::new(namespace, self.trust.clone(), credential, self.runtime.clone())
            .keeping_alive(self.keep_alive)
    }

    /// Returns the time, to be compared with that of the service.
    pub(crate) fn now(&self) -> SystemTime {
        self.runtime.now()
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Returns the links on the first call for a queue.
    pub(crate) fn first_use(self: &Arc<Self>, queue: &str) -> Option<Arc<Self>> {
        lock(&self.used).insert(queue.to_owned()).then(|| Arc::clone(self))
    }

    /// Returns the node for the management of a queue's messages.
    pub(crate) async fn node(self: &Arc<Self>, queue: &str) -> Result<Node, Fault> {
        let live = self.live(queue).await?;
        match live.node(queue).await {
            Err(fault) if fault.is_unauthorized() => self.live_anew(&live, queue).await?.node(queue).await,
            attached => attached,
        }
    }

    /// Returns the link by which messages are sent to a queue.
    pub(crate) async fn sender(self: &Arc<Self>, queue: &str) -> Result<SendLink, Fault> {
        let live = self.live(queue).await?;
        match live.sender(queue).await {
            Err(fault) if fault.is_unauthorized() => self.live_anew(&live, queue).await?.sender(queue).await,
            attached => attached,
        }
    }

    /// Returns the link by which a queue's messages come.
    pub(crate) async fn receiver(self: &Arc<Self>, queue: &str) -> Result<ReceiveLink, Fault> {
        let (live, arrivals) = (self.live(queue).await?, self.arrivals(queue));
        match live.receiver(queue, Arc::clone(&arrivals)).await {
            Err(fault) if fault.is_unauthorized() => {
                self.live_anew(&live, queue).await?.receiver(queue, arrivals).await
            }
            attached => attached,
        }
    }

    /// Waits for the next free session of a queue that has messages, up to `wait`. No other link is attached over the same
    /// connection meanwhile.
    pub(crate) async fn accept_session(
        self: &Arc<Self>,
        queue: &str,
        wait: Duration,
    ) -> Result<Accepted, Fault> {
        let live = self.live(queue).await?;
        match Accepted::attach(&live.connection, queue, wait).await {
            Err(fault) if fault.is_unauthorized() => {
                let live = self.live_anew(&live, queue).await?;
                Accepted::attach(&live.connection, queue, wait).await
            }
            attached => attached,
        }
    }

    /// Returns the connection with a new token for the queue, after the service refused a link: the last token may have
    /// run out unnoticed, for instance while the machine slept.
    async fn live_anew(self: &Arc<Self>, live: &Live, queue: &str) -> Result<Arc<Live>, Fault> {
        live.forget_token(queue).await;
        self.live(queue).await
    }

    /// Returns the notifier of unrequested messages.
    pub(crate) fn arrivals(&self, queue: &str) -> Arc<Notifier> {
        Arc::clone(lock(&self.arrivals).entry(queue.to_owned()).or_default())
    }

    /// Returns whether the link is up by which messages are sent to a queue, or scheduled. It ends when the queue is deleted.
    pub(crate) async fn can_put(&self, queue: &str, is_delayed: bool) -> bool {
        let Some(live) = self.live.lock().await.clone() else { return false };
        match is_delayed {
            true => live.nodes.lock().await.get(queue).is_some_and(|node| !node.is_gone()),
            false => live.senders.lock().await.get(queue).is_some_and(|link| !link.is_gone()),
        }
    }

    /// Returns the link by which a queue's messages came, if it is still up.
    pub(crate) async fn present_receiver(&self, queue: &str) -> Option<ReceiveLink> {
        let live = self.live.lock().await.clone()?;
        let receivers = live.receivers.lock().await;
        receivers.get(queue).filter(|link| !link.is_gone()).cloned()
    }

    /// Prepares a link for transactions.
    ///
    /// # Errors
    /// When the tier has no transactions, or a link cannot be attached.
    pub(crate) async fn prepare_transactions(
        self: &Arc<Self>,
        queue: &str,
        link: &ReceiveLink,
    ) -> Result<(), Fault> {
        let live = self.live(queue).await?;
        let controller = live.connection.controller().await?;
        let sender = live.connection.sender(queue).await?;
        link.give(Replacing { controller, sender }).await;
        Ok(())
    }

    /// Returns the connection, with a token for the queue. The connection stays open if the caller stops waiting: a
    /// renewal of a short
    /// lease has less time for one try than a connection to a distant service takes.
    async fn live(self: &Arc<Self>, queue: &str) -> Result<Arc<Live>, Fault> {
        if let Some(live) = self.present(queue).await {
            return Ok(live);
        }
        let (links, queue) = (Arc::clone(self), queue.to_owned());
        let opening = self.runtime.spawn(async move { links.open(&queue).await });
        opening.await.unwrap_or_else(|_| Err(Fault::NotSent("the runtime ends".to_owned())))
    }

    /// Returns the connection if it is up and has a token for the queue.
    async fn present(&self, queue: &str) -> Option<Arc<Live>> {
        let live = self.live.lock().await.clone().filter(|live| !live.is_gone())?;
        live.is_authorized(queue).await.then_some(live)
    }

    async fn open(&self, queue: &str) -> Result<Arc<Live>, Fault> {
        let mut present = self.live.lock().await;
        let live = match present.as_ref().filter(|live| !live.is_gone()) {
            Some(live) => Arc::clone(live),
            None => {
                let live = self.connect().await?;
                *present = Some(Arc::clone(&live));
                live
            }
        };
        drop(present);
        live.authorize(queue).await?;
        Ok(live)
    }

    async fn connect(&self) -> Result<Arc<Live>, Fault> {
        let connection = Connection::open(&self.namespace, &self.trust, &self.runtime).await?;
        let live = Arc::new(Live {
            cbs: Mutex::new(Node::attach(&connection, "$cbs").await?),
            is_deaf: AtomicBool::default(),
            connection,
            host: self.namespace.host.clone(),
            credential: Arc::clone(&self.credential),
            tokens: Mutex::default(),
            has_new_token: Arc::default(),
            refused: Default::default(),
            nodes: Mutex::default(),
            senders: Mutex::default(),
            receivers: Mutex::default(),
        });
        drop(self.runtime.spawn(renew_tokens(Arc::downgrade(&live))));
        Ok(live)
    }
}

impl Live {
    fn is_gone(&self) -> bool {
        self.connection.dead.is_cancelled() || self.is_deaf.load(Ordering::Relaxed)
    }

    /// Returns the node that takes tokens, attached anew if the service has ended its links.
    async fn cbs(&self) -> Result<Node, Fault> {
        let mut cbs = self.cbs.lock().await;
        if cbs.is_gone() {
            let attached = Node::attach(&self.connection, "$cbs").await;
            *cbs = attached.inspect_err(|_| self.is_deaf.store(true, Ordering::Relaxed))?;
        }
        Ok(cbs.clone())
    }

    async fn node(&self, queue: &str) -> Result<Node, Fault> {
        let address = format!("{queue}/$management");
        cached(&self.nodes, queue, Node::is_gone, Node::attach(&self.connection, &address)).await
    }

    async fn sender(&self, queue: &str) -> Result<SendLink, Fault> {
        cached(&self.senders, queue, SendLink::is_gone, SendLink::attach(&self.connection, queue)).await
    }

    async fn receiver(&self, queue: &str, arrivals: Arc<Notifier>) -> Result<ReceiveLink, Fault> {
        let attaching = ReceiveLink::attach(&self.connection, queue, arrivals);
        cached(&self.receivers, queue, ReceiveLink::is_gone, attaching).await
    }

    async fn is_authorized(&self, queue: &str) -> bool {
        self.tokens.lock().await.get(queue).is_some_and(|renewal| Instant::now() < *renewal)
    }

    /// Sends a token for a queue, unless the last one is still good.
    async fn authorize(&self, queue: &str) -> Result<(), Fault> {
        let mut tokens = self.tokens.lock().await;
        if tokens.get(queue).is_some_and(|renewal| Instant::now() < *renewal) {
            return Ok(());
        }
        let renewal = self.put_token(queue).await?;
        tokens.insert(queue.to_owned(), renewal);
        self.has_new_token.notify_one();
        Ok(())
    }

    /// Forgets the token of a queue, so that a new one is sent, unless that was done a moment ago.
    async fn forget_token(&self, queue: &str) {
        let now = Instant::now();
        let last = lock(&self.refused).get(queue).copied();
        if last.is_none_or(|last| now >= last + RETRY_TOKEN) {
            lock(&self.refused).insert(queue.to_owned(), now);
            self.tokens.lock().await.remove(queue);
        }
    }

    /// Sends a token for a queue; returns when it is to be renewed.
    async fn put_token(&self, queue: &str) -> Result<Instant, Fault> {
        let audience = format!("sb://{}/{queue}", self.host);
        let Token { text, kind, renewal } = self.credential.token(&audience).await?;
        let properties = vec![("type", kind.to_owned()), ("name", audience)];
        let request = Request { operation: "put-token", properties, body: Value::String(text) };
        self.cbs().await?.call(request).await?;
        Ok(renewal)
    }

    /// Renews the tokens that are due; returns the time of the next renewal.
    async fn renew_due_tokens(&self) -> Instant {
        let mut tokens = self.tokens.lock().await;
        let now = Instant::now();
        for (queue, renewal) in tokens.iter_mut().filter(|(_, renewal)| **renewal <= now) {
            *renewal = match self.put_token(queue).await {
                // A credential may give the same token until shortly before its end.
                Ok(renewal) => renewal.max(now + SHORTEST_PAUSE),
                Err(error) => {
                    tracing::warn!(queue, %error, "the token for a queue of Service Bus was not renewed");
                    Instant::now() + RETRY_TOKEN
                }
            };
        }
        tokens.values().min().copied().unwrap_or(now + LONGEST_PAUSE).min(now + LONGEST_PAUSE)
    }
}

/// Renews the tokens of a connection until it has ended. A link whose token runs out is detached.
async fn renew_tokens(live: std::sync::Weak<Live>) {
    loop {
        // Held for a renewal only: dropping the last handle ends the connection.
        let Some(present) = live.upgrade().filter(|live| !live.is_gone()) else { return };
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

async fn cached<L: Clone>(
    links: &Mutex<HashMap<String, L>>,
    queue: &str,
    is_gone: fn(&L) -> bool,
    attach: impl Future<Output = Result<L, Fault>>,
) -> Result<L, Fault> {
    let mut links = links.lock().await;
    if let Some(link) = links.get(queue).filter(|link| !is_gone(link)) {
        return Ok(link.clone());
    }
    links.remove(queue);
    let link = attach.await?;
    links.insert(queue.to_owned(), link.clone());
    Ok(link)
}
