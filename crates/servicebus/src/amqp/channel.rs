//! A channel of a connection: one session of AMQP, and the task that owns it.
//!
//! Each queue has a channel of its own, and so has each session of Service Bus. So an attach that is not answered holds up no other queue, and no
//! channel comes near the 255 links at whose excess the service ends it.

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

use super::super::cache::Perishable;
use super::super::error::Fault;
use super::frame_inspector::FrameEvents;
use super::values::{REQUEST_TIMEOUT, condition_of};
use jobqueue_storage::log;
use jobqueue_storage::runtime::Runtime;

/// The number of tries to attach a link. The client cannot tell why an attach was refused when the refusal crosses its own frames.
const TRIES: u32 = 5;
const DETACH_FLUSH: Duration = Duration::from_millis(20);
const CROSSED: &str = "the refusal of a link crossed its attach";

type Attach = Box<dyn for<'s> FnOnce(&'s mut SessionHandle<()>) -> BoxFuture<'s, ()> + Send>;

/// A channel. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Channel {
    attach: mpsc::Sender<Attach>,
    pub(super) events: FrameEvents,
    pub(super) runtime: Runtime,
    /// Fires when the channel or its connection has ended.
    pub(super) dead: CancellationToken,
    /// Fires when an attach was not answered in time, for which others would wait.
    stuck: CancellationToken,
    names: LinkNames,
    _end: DropGuard,
}

/// Makes names that no link of a connection has had.
#[derive(Debug, Clone)]
pub(super) struct LinkNames {
    pub(super) connection: Arc<str>,
    pub(super) last: Arc<AtomicU64>,
}

impl Channel {
    /// Starts the task of a channel, which ends with `dead`.
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

    /// Attaches a link by `attach`, which gets its name. One attach is under way at a time, and goes on if the caller stops waiting.
    ///
    /// # Errors
    /// [`Fault::Late`] without an answer within `limit`. A link that is attached after that is detached. To give the attach up would end the
    /// channel with all its links when the answer comes. [`Fault::NotSent`] if that happens to an attach before this one.
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
        let mut tries = TRIES;
        loop {
            let (answer, attached) = oneshot::channel();
            let (name, attach, stuck) = (self.link_name(), attach.clone(), self.stuck.clone());
            let command = boxed(move |session| {
                Box::pin(async move {
                    let mut attaching = attach(session, name);
                    let Ok(attached) = timeout(limit, &mut attaching).await else {
                        let _ = answer.send(Err(Fault::Late));
                        // After the answer: only those behind it are to hear of this.
                        stuck.cancel();
                        drop(attaching.await);
                        return sleep(DETACH_FLUSH).await;
                    };
                    // The client's own detach must have been sent before the next link is attached: else that link could get the same handle,
                    // and be detached in its place, for which the service ends all links.
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
            if tries == 0 || !matches!(&attached, Err(Fault::NotSent(reason)) if reason == CROSSED) {
                return attached;
            }
        }
    }
}

impl Perishable for Arc<Channel> {
    fn is_gone(&self) -> bool {
        self.dead.is_cancelled() || self.stuck.is_cancelled()
    }
}

/// Gives the compiler the type of a closure.
fn boxed(
    attach: impl for<'s> FnOnce(&'s mut SessionHandle<()>) -> BoxFuture<'s, ()> + Send + 'static,
) -> Attach {
    Box::new(attach)
}

/// Owns a channel, whose handle can be used by one task only.
async fn run(mut session: SessionHandle<()>, mut commands: mpsc::Receiver<Attach>, dead: CancellationToken) {
    let _dead = dead.clone().drop_guard();
    loop {
        let command = tokio::select! {
            biased;
            () = dead.cancelled() => return,
            end = session.on_end() => {
                let reason = end.err().map(|error| error.to_string());
                log::debug!(reason, "a session of AMQP with Service Bus has ended");
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
        SenderAttachError::IllegalState => Fault::not_sent(CROSSED),
        other => Fault::not_sent(other),
    }
}

pub(super) fn of_receiver(error: &ReceiverAttachError) -> Fault {
    match error {
        ReceiverAttachError::RemoteClosedWithError(error) => condition_of(error),
        ReceiverAttachError::IllegalState => Fault::not_sent(CROSSED),
        other => Fault::not_sent(other),
    }
}
