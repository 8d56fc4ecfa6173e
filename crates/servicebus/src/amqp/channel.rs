//! A channel of a connection: an AMQP session, and the task that owns it.
//!
//! Each queue has its own channel, and so has each Service Bus session. An attach without an answer therefore
//! delays no other queue, and no channel comes near 255 links, above which the service ends it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fe2o3_amqp::Sender;
use fe2o3_amqp::link::{ReceiverAttachError, SenderAttachError};
use fe2o3_amqp::session::SessionHandle;
use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::super::cache::Expiring;
use super::super::error::Fault;
use super::frame_inspector::FrameEvents;
use super::values::{REQUEST_TIMEOUT, condition_of};
use jobqueue_storage::log;
use jobqueue_storage::runtime::Runtime;

/// The maximum number of tries to attach a link. If a refusal crosses the client's own frames, the client
/// does not report its reason.
const MAX_ATTACH_TRIES: u32 = 5;
const DETACH_FLUSH: Duration = Duration::from_millis(20);
const CROSSED_REFUSAL: &str = "the refusal of a link crossed its attach";

type Attach = Box<dyn for<'s> FnOnce(&'s mut SessionHandle<()>) -> BoxFuture<'s, ()> + Send>;

/// A channel. Dropping it ends the AMQP session.
#[derive(Debug)]
pub(crate) struct Channel {
    attach: mpsc::Sender<Attach>,
    pub(super) events: FrameEvents,
    pub(super) runtime: Runtime,
    /// Fires when the channel or its connection has ended.
    pub(super) dead: CancellationToken,
    /// Fires when an attach was not answered in time: later attaches would wait behind it.
    stuck: CancellationToken,
    names: LinkNames,
    _end: DropGuard,
}

/// Creates link names that are unique within a connection.
#[derive(Debug, Clone)]
pub(super) struct LinkNames {
    pub(super) connection: Arc<str>,
    pub(super) last: Arc<AtomicU64>,
}

impl Channel {
    /// Starts the task of a channel. It ends with `dead`.
    pub(super) fn start(
        session: SessionHandle<()>,
        events: FrameEvents,
        runtime: Runtime,
        dead: CancellationToken,
        names: LinkNames,
    ) -> Arc<Self> {
        let (attach, commands) = mpsc::channel(16);
        drop(runtime.spawn(run(session, commands, dead.clone())));
        let (stuck, _end) = (CancellationToken::new(), dead.clone().drop_guard());
        Arc::new(Self { attach, events, runtime, dead, stuck, names, _end })
    }

    pub(super) fn link_name(&self) -> String {
        let LinkNames { connection, last } = &self.names;
        format!("{connection}-{}", last.fetch_add(1, Ordering::Relaxed))
    }

    pub(super) async fn sender(&self, address: &str) -> Result<Sender, Fault> {
        let address = address.to_owned();
        self.attach(REQUEST_TIMEOUT, move |session, name| {
            let sender = Sender::builder().name(name).target(address.as_str());
            Box::pin(async move { sender.attach(session).await.map_err(|error| of_sender(&error)) })
        })
        .await
    }

    /// Attaches a link with `attach`, which receives the link's name. The channel attaches one link at a
    /// time. An attach continues even if its caller stops waiting.
    ///
    /// # Errors
    /// [`Fault::Late`] without an answer within `limit`. The attach is not abandoned, because its answer
    /// would then end the channel with all its links; a link that is attached late is detached again.
    /// [`Fault::NotSent`] if an earlier attach is not answered.
    pub(super) async fn attach<T: Send + 'static>(
        &self,
        limit: Duration,
        attach: impl for<'s> Fn(&'s mut SessionHandle<()>, String) -> BoxFuture<'s, Result<T, Fault>>
        + Clone
        + Send
        + Sync
        + 'static,
    ) -> Result<T, Fault> {
        let gone = || Fault::not_sent("the connection has ended");
        let mut tries = MAX_ATTACH_TRIES;
        loop {
            let (answer, attached) = oneshot::channel();
            let (name, attach, stuck) = (self.link_name(), attach.clone(), self.stuck.clone());
            let command = boxed(move |session| {
                Box::pin(async move {
                    let mut attaching = attach(session, name);
                    let Ok(attached) = timeout(limit, &mut attaching).await else {
                        let _ = answer.send(Err(Fault::Late));
                        // After the answer, because only the attaches behind this one are to fail with it.
                        stuck.cancel();
                        drop(attaching.await);
                        return sleep(DETACH_FLUSH).await;
                    };
                    // The client's own detach must be sent before the next link is attached. Otherwise that
                    // link could get the same handle and be detached in its place, for which the service ends
                    // all links.
                    if attached.is_err() {
                        sleep(DETACH_FLUSH).await;
                    }
                    let _ = answer.send(attached);
                })
            });
            let attaching = async {
                self.attach.send(command).await.map_err(|_| gone())?;
                attached.await.map_err(|_| gone())
            };
            let attached = tokio::select! {
                biased;
                attached = attaching => attached?,
                () = self.stuck.cancelled() => return Err(Fault::not_sent("the attach of another link is not answered")),
            };
            tries -= 1;
            if tries == 0 || !matches!(&attached, Err(Fault::NotSent(reason)) if reason == CROSSED_REFUSAL) {
                return attached;
            }
        }
    }
}

impl Expiring for Arc<Channel> {
    fn is_gone(&self) -> bool {
        self.dead.is_cancelled() || self.stuck.is_cancelled()
    }
}

/// Fixes the type of a closure for the compiler.
fn boxed(
    attach: impl for<'s> FnOnce(&'s mut SessionHandle<()>) -> BoxFuture<'s, ()> + Send + 'static,
) -> Attach {
    Box::new(attach)
}

/// Owns a channel, whose handle only one task can use.
async fn run(mut session: SessionHandle<()>, mut commands: mpsc::Receiver<Attach>, dead: CancellationToken) {
    let _dead = dead.clone().drop_guard();
    loop {
        let command = tokio::select! {
            biased;
            () = dead.cancelled() => return,
            end = session.on_end() => {
                let reason = end.err().map(|error| error.to_string());
                log::debug!(reason, "an AMQP session with Service Bus has ended");
                return;
            }
            command = commands.recv() => command,
        };
        let Some(attach) = command else { return };
        tokio::select! {
            biased;
            () = dead.cancelled() => return,
            () = attach(&mut session) => {}
        }
    }
}

pub(super) fn of_sender(error: &SenderAttachError) -> Fault {
    match error {
        SenderAttachError::RemoteClosedWithError(error) => condition_of(error),
        SenderAttachError::IllegalState => Fault::not_sent(CROSSED_REFUSAL),
        other => Fault::not_sent(other),
    }
}

pub(super) fn of_receiver(error: &ReceiverAttachError) -> Fault {
    match error {
        ReceiverAttachError::RemoteClosedWithError(error) => condition_of(error),
        ReceiverAttachError::IllegalState => Fault::not_sent(CROSSED_REFUSAL),
        other => Fault::not_sent(other),
    }
}
