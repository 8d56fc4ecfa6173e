//! One connection with one session, and the task that owns both.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fe2o3_amqp::connection::ConnectionHandle;
use fe2o3_amqp::link::receiver::CreditMode;
use fe2o3_amqp::link::{ReceiverAttachError, SenderAttachError};
use fe2o3_amqp::sasl_profile::SaslProfile;
use fe2o3_amqp::session::SessionHandle;
use fe2o3_amqp::transaction::Controller;
use fe2o3_amqp::types::definitions::{ReceiverSettleMode, SenderSettleMode};
use fe2o3_amqp::{Connection as AmqpConnection, Receiver, Sender, Session};
use tokio::sync::{mpsc, oneshot};
use tokio::time::error::Elapsed;
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::super::connection_string::Namespace;
use super::super::error::Fault;
use super::super::tls::Trust;
use super::frame_inspector::{FrameEvents, FrameInspector};
use super::session_attach;
use super::stream;
use super::values::condition_of;
use jobqueue_storage::runtime::Runtime;

/// The longest time for one exchange with the service.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest time for closing a link or a connection.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// The time without a frame after which a connection is given up.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
pub(super) const MAX_FRAME: u32 = 65_536;
/// The number of tries to attach a link. The client cannot tell why an attach was refused when the refusal crosses its own frames.
const TRIES: u32 = 5;
/// The time for the client to flush its frames.
const DETACH_FLUSH: Duration = Duration::from_millis(20);
const CROSSED: &str = "the refusal of a link crossed its attach";

/// A connection. Dropping it closes it.
#[derive(Debug)]
pub(crate) struct Connection {
    attach: mpsc::Sender<Attach>,
    pub(super) events: FrameEvents,
    /// The runtime that starts the tasks of the links.
    pub(super) runtime: Runtime,
    /// Fires when the connection or its session has ended.
    pub(super) dead: CancellationToken,
    links: AtomicU64,
    name: String,
    _close: DropGuard,
}

enum Attach {
    Sender {
        name: String,
        address: String,
        answer: oneshot::Sender<Result<Sender, Fault>>,
    },
    Receiver {
        name: String,
        address: String,
        answers_to: Option<String>,
        answer: oneshot::Sender<Result<Receiver, Fault>>,
    },
    Session {
        name: String,
        address: String,
        wait: Duration,
        answer: oneshot::Sender<Result<Receiver, Fault>>,
    },
    Controller {
        name: String,
        answer: oneshot::Sender<Result<Controller, Fault>>,
    },
}

impl Connection {
    pub(super) async fn open(
        namespace: &Namespace,
        trust: &Trust,
        runtime: &Runtime,
    ) -> Result<Arc<Self>, Fault> {
        let opening = timeout(REQUEST_TIMEOUT, handshake(namespace, trust, runtime)).await;
        let (connection, session, events, name) = opening.map_err(|_| not_sent("no answer in time"))??;
        let (attach, commands) = mpsc::channel(16);
        let (dead, close) = (CancellationToken::new(), CancellationToken::new());
        let owner = Owner { connection, session, dead: dead.clone(), close: close.clone() };
        drop(runtime.spawn(owner.run(commands)));
        let (links, runtime, _close) = (AtomicU64::new(0), runtime.clone(), close.drop_guard());
        Ok(Arc::new(Self { attach, events, runtime, dead, links, name, _close }))
    }

    /// Returns a name that no link of this connection has had.
    pub(super) fn link_name(&self) -> String {
        format!("{}-{}", self.name, self.links.fetch_add(1, Ordering::Relaxed))
    }

    /// Attaches a link that sends to `address`.
    pub(super) async fn sender(&self, address: &str) -> Result<Sender, Fault> {
        let mut tries = TRIES;
        loop {
            let (answer, attached) = oneshot::channel();
            let (name, address) = (self.link_name(), address.to_owned());
            let attached = self.ask(Attach::Sender { name, address, answer }, attached).await;
            tries -= 1;
            if tries == 0 || !has_crossed(&attached) {
                return attached;
            }
        }
    }

    /// Attaches a link that receives from `address`: messages under locks, or the answers to requests if it is named
    /// where they are to go.
    pub(super) async fn receiver(
        &self,
        address: &str,
        answers_to: Option<String>,
    ) -> Result<Receiver, Fault> {
        let mut tries = TRIES;
        loop {
            let (answer, attached) = oneshot::channel();
            let (name, address, answers_to) = (self.link_name(), address.to_owned(), answers_to.clone());
            let command = Attach::Receiver { name, address, answers_to, answer };
            let attached = self.ask(command, attached).await;
            tries -= 1;
            if tries == 0 || !has_crossed(&attached) {
                return attached;
            }
        }
    }

    /// Attaches a link that receives the next free session with messages of `address`. The service waits for one for `wait`; no
    /// other link of this connection is attached meanwhile.
    pub(super) async fn session_receiver(&self, address: &str, wait: Duration) -> Result<Receiver, Fault> {
        let mut tries = TRIES;
        loop {
            let (answer, attached) = oneshot::channel();
            let (name, address) = (self.link_name(), address.to_owned());
            let attached = self.ask(Attach::Session { name, address, wait, answer }, attached).await;
            tries -= 1;
            if tries == 0 || !has_crossed(&attached) {
                return attached;
            }
        }
    }

    /// Attaches a link to the coordinator of transactions.
    pub(super) async fn controller(&self) -> Result<Controller, Fault> {
        let (answer, attached) = oneshot::channel();
        self.ask(Attach::Controller { name: self.link_name(), answer }, attached).await
    }

    async fn ask<T>(&self, command: Attach, answer: oneshot::Receiver<Result<T, Fault>>) -> Result<T, Fault> {
        let gone = || not_sent("the connection has ended");
        self.attach.send(command).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

async fn handshake(
    namespace: &Namespace,
    trust: &Trust,
    runtime: &Runtime,
) -> Result<(ConnectionHandle<()>, SessionHandle<()>, FrameEvents, String), Fault> {
    let socket = stream::open(namespace, trust).await;
    let (stream, events) = FrameInspector::new(socket.map_err(|error| not_sent(&error.to_string()))?);
    let name = format!("jobqueue-{}", runtime.uuid_v4().simple());
    let mut connection = AmqpConnection::builder()
        .container_id(name.clone())
        .hostname(namespace.host.as_str())
        .scheme("amqp")
        .max_frame_size(MAX_FRAME)
        .idle_time_out(u32::try_from(IDLE_TIMEOUT.as_millis()).unwrap_or(u32::MAX))
        .sasl_profile(SaslProfile::Anonymous)
        .open_with_stream(stream)
        .await
        .map_err(|error| not_sent(&error.to_string()))?;
    let session = Session::begin(&mut connection).await.map_err(|error| not_sent(&error.to_string()))?;
    Ok((connection, session, events, name))
}

/// The owner of the handles, which can be used by one task only.
struct Owner {
    connection: ConnectionHandle<()>,
    session: SessionHandle<()>,
    dead: CancellationToken,
    close: CancellationToken,
}

impl Owner {
    async fn run(mut self, mut commands: mpsc::Receiver<Attach>) {
        let _dead = self.dead.clone().drop_guard();
        loop {
            tokio::select! {
                biased;
                () = self.close.cancelled() => break,
                command = commands.recv() => match command {
                    Some(command) => {
                        tokio::select! {
                            biased;
                            () = attach(&mut self.session, command) => {}
                            () = self.close.cancelled() => break,
                            end = self.connection.on_close() => return ended("connection", end.err()),
                        }
                    }
                    None => break,
                },
                end = self.connection.on_close() => return ended("connection", end.err()),
                end = self.session.on_end() => {
                    ended("session", end.err());
                    break;
                }
            }
        }
        self.dead.cancel();
        let _ = timeout(CLOSE_TIMEOUT, self.connection.close()).await;
    }
}

fn ended(what: &str, error: Option<impl std::fmt::Display>) {
    let reason = error.map(|error| error.to_string());
    tracing::debug!(reason, "the {what} to Service Bus has ended");
}

async fn attach(session: &mut SessionHandle<()>, command: Attach) {
    match command {
        Attach::Sender { name, address, answer } => {
            let attaching = Sender::builder().name(name).target(address.as_str()).attach(session);
            let attached =
                timeout(REQUEST_TIMEOUT, attaching).await.map(|done| done.map_err(|error| of_sender(&error)));
            tell(answer, attached).await;
        }
        Attach::Receiver { name, address, answers_to, answer } => {
            let receiver = Receiver::builder().name(name).source(address.as_str());
            let attaching = async {
                match answers_to {
                    Some(target) => receiver.target(target).attach(session).await,
                    None => {
                        let receiver = receiver
                            .sender_settle_mode(SenderSettleMode::Unsettled)
                            .receiver_settle_mode(ReceiverSettleMode::Second)
                            .credit_mode(CreditMode::Manual);
                        receiver.attach(session).await
                    }
                }
            };
            let attached = timeout(REQUEST_TIMEOUT, attaching)
                .await
                .map(|done| done.map_err(|error| of_receiver(&error)));
            tell(answer, attached).await;
        }
        Attach::Session { name, address, wait, answer } => {
            let receiver = Receiver::builder()
                .name(name)
                .source(session_attach::next_free(&address))
                .properties(session_attach::patience(wait))
                // The answer names the session.
                .verify_incoming_source(false)
                .sender_settle_mode(SenderSettleMode::Unsettled)
                .receiver_settle_mode(ReceiverSettleMode::Second)
                .credit_mode(CreditMode::Manual);
            let attached = timeout(wait + REQUEST_TIMEOUT, receiver.attach(session)).await;
            let attached = attached.map(|done| done.map_err(|error| of_receiver(&error)));
            tell(answer, attached).await;
        }
        Attach::Controller { name, answer } => {
            let attached = timeout(REQUEST_TIMEOUT, Controller::attach(session, name)).await;
            let attached = attached.map(|done| done.map_err(|error| of_sender(&error)));
            tell(answer, attached).await;
        }
    }
}

/// Answers an attach. After one that was refused, the client's own detach must have been sent before the next link is attached: else that
/// link could get the same handle, and be detached in its place, for which the service ends all links.
async fn tell<T>(answer: oneshot::Sender<Result<T, Fault>>, attached: Result<Result<T, Fault>, Elapsed>) {
    let attached = attached.unwrap_or(Err(not_sent("no answer to the attach")));
    if attached.is_err() {
        sleep(DETACH_FLUSH).await;
    }
    let _ = answer.send(attached);
}

fn has_crossed<T>(attached: &Result<T, Fault>) -> bool {
    matches!(attached, Err(Fault::NotSent(reason)) if reason == CROSSED)
}

fn of_sender(error: &SenderAttachError) -> Fault {
    match error {
        SenderAttachError::RemoteClosedWithError(error) => condition_of(error),
        SenderAttachError::IllegalState => not_sent(CROSSED),
        other => not_sent(&other.to_string()),
    }
}

fn of_receiver(error: &ReceiverAttachError) -> Fault {
    match error {
        ReceiverAttachError::RemoteClosedWithError(error) => condition_of(error),
        ReceiverAttachError::IllegalState => not_sent(CROSSED),
        other => not_sent(&other.to_string()),
    }
}

fn not_sent(reason: &str) -> Fault {
    Fault::NotSent(reason.to_owned())
}
