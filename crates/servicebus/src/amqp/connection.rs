//! A connection, and the task that owns it.

use std::sync::Arc;

use fe2o3_amqp::connection::ConnectionHandle;
use fe2o3_amqp::sasl_profile::SaslProfile;
use fe2o3_amqp::session::{BeginError, SessionHandle};
use fe2o3_amqp::{Connection as AmqpConnection, Session};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::super::connection_string::Namespace;
use super::super::error::Fault;
use super::super::tls::Trust;
use super::channel::{Channel, LinkNames};
use super::frame_inspector::{FrameEvents, FrameInspector};
use super::stream;
use super::values::{CLOSE_TIMEOUT, IDLE_TIMEOUT, MAX_FRAME, REQUEST_TIMEOUT};
use jobqueue_storage::log;
use jobqueue_storage::runtime::Runtime;

/// The highest channel number, as limited by the service.
const MAX_CHANNEL: u16 = 4_999;

type BeginAnswer = oneshot::Sender<Result<SessionHandle<()>, Fault>>;

/// A connection. Dropping it closes it.
#[derive(Debug)]
pub(crate) struct Connection {
    begin: mpsc::Sender<BeginAnswer>,
    events: FrameEvents,
    pub(super) runtime: Runtime,
    pub(super) dead: CancellationToken,
    names: LinkNames,
    _close: DropGuard,
}

impl Connection {
    pub(super) async fn open(namespace: &Namespace, trust: &Trust, runtime: &Runtime) -> Result<Self, Fault> {
        let name = format!("jobqueue-{}", runtime.uuid_v4().simple());
        let opening = async {
            let socket = stream::open(namespace, trust).await.map_err(Fault::not_sent)?;
            let (stream, events) = FrameInspector::new(socket);
            let opened = AmqpConnection::builder()
                .container_id(name.clone())
                .hostname(namespace.host.as_str())
                .scheme("amqp")
                .max_frame_size(MAX_FRAME)
                .channel_max(MAX_CHANNEL)
                .idle_time_out(u32::try_from(IDLE_TIMEOUT.as_millis()).unwrap_or(u32::MAX))
                .sasl_profile(SaslProfile::Anonymous)
                .open_with_stream(stream)
                .await;
            Ok((opened.map_err(Fault::not_sent)?, events))
        };
        let opened = timeout(REQUEST_TIMEOUT, opening).await;
        let (connection, events) = opened.unwrap_or_else(|_| Err(Fault::not_sent("no answer in time")))?;
        let (begin, begins) = mpsc::channel(16);
        let (dead, close) = (CancellationToken::new(), CancellationToken::new());
        drop(runtime.spawn(run(connection, begins, dead.clone(), close.clone())));
        let names = LinkNames { connection: name.into(), last: Arc::default() };
        Ok(Self { begin, events, runtime: runtime.clone(), dead, names, _close: close.drop_guard() })
    }

    /// Begins a channel.
    ///
    /// # Errors
    /// [`Fault::Late`] without an answer in time. The begin is not abandoned, because its answer would then
    /// end the connection.
    pub(super) async fn channel(&self) -> Result<Arc<Channel>, Fault> {
        let gone = || Fault::not_sent("the connection has ended");
        let (answer, begun) = oneshot::channel();
        let beginning = async {
            self.begin.send(answer).await.map_err(|_| gone())?;
            begun.await.map_err(|_| gone())?
        };
        let session = timeout(REQUEST_TIMEOUT, beginning).await.map_err(|_| Fault::Late)??;
        let (events, runtime) = (self.events.clone(), self.runtime.clone());
        Ok(Channel::start(session, events, runtime, self.dead.child_token(), self.names.clone()))
    }
}

/// Owns a connection, whose handle only one task can use.
async fn run(
    mut connection: ConnectionHandle<()>,
    mut begins: mpsc::Receiver<BeginAnswer>,
    dead: CancellationToken,
    close: CancellationToken,
) {
    let _dead = dead.clone().drop_guard();
    loop {
        let answer = tokio::select! {
            biased;
            () = close.cancelled() => break,
            end = connection.on_close() => {
                let reason = end.err().map(|error| error.to_string());
                log::debug!(reason, "the connection to Service Bus has ended");
                return;
            }
            answer = begins.recv() => answer,
        };
        let Some(answer) = answer else { break };
        let begun = tokio::select! {
            biased;
            () = close.cancelled() => break,
            begun = Session::begin(&mut connection) => begun,
        };
        let _ = answer.send(begun.map_err(|error| match error {
            BeginError::LocalChannelMaxReached => Fault::full(error),
            other => Fault::not_sent(other),
        }));
    }
    dead.cancel();
    let _ = timeout(CLOSE_TIMEOUT, connection.close()).await;
}
