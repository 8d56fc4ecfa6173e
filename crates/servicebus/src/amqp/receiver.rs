//! A link that receives messages under locks. The task in `receive_task` owns it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fe2o3_amqp::Receiver;
use fe2o3_amqp::link::receiver::CreditMode;
use fe2o3_amqp::types::definitions::{ReceiverSettleMode, SenderSettleMode};
use futures_util::future::join_all;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::super::cache::Expiring;
use super::super::error::Fault;
use super::channel::{Channel, of_receiver};
use super::receive_task::ReceiveTask;
use super::settlement::{Settlement, SettlementSent};
use super::values::{self, Incoming, REQUEST_TIMEOUT};
use jobqueue_storage::Notifier;

/// A message under a lock.
#[derive(Debug)]
pub(crate) struct LockedMessage {
    pub(crate) lock: Uuid,
    pub(crate) message: Incoming,
    /// Releases the message if it reaches no caller.
    pub(crate) guard: ReleaseGuard,
}

/// Releases a message on its link when dropped. Otherwise, a message that arrives for a dropped future would
/// stay locked until the lock ends, and the service would count a delivery.
#[derive(Debug)]
pub(crate) struct ReleaseGuard {
    lock: Uuid,
    /// `None` once the message has reached a caller.
    link: Option<mpsc::UnboundedSender<Uuid>>,
}

impl ReleaseGuard {
    pub(super) fn new(lock: Uuid, link: mpsc::UnboundedSender<Uuid>) -> Self {
        Self { lock, link: Some(link) }
    }

    /// Releases the message, and waits for the service's answer.
    pub(crate) async fn release(self, link: &ReceiveLink) {
        let _ = link.settle(self.lock, Settlement::Release).await;
    }

    /// Keeps the message, because it has reached a caller, or another guard has it.
    pub(crate) fn keep(mut self) {
        self.link = None;
    }
}

impl Drop for ReleaseGuard {
    fn drop(&mut self) {
        if let Some(link) = self.link.take() {
            // The link ignores a delivery that was settled in the meantime.
            let _ = link.send(self.lock);
        }
    }
}

pub(super) enum Command {
    Get { count: u32, answer: oneshot::Sender<Result<Vec<LockedMessage>, Fault>> },
    Settle { lock: Uuid, how: Settlement, answer: SettlementSent },
    Close { answer: oneshot::Sender<()> },
}

/// A link that receives from a queue. Clones use the same link.
#[derive(Debug, Clone)]
pub(crate) struct ReceiveLink {
    name: Arc<str>,
    commands: mpsc::Sender<Command>,
    ended: CancellationToken,
    is_known: Arc<AtomicBool>,
}

impl ReceiveLink {
    /// Attaches a link. `arrivals` is notified of unrequested messages, and of the end of the link.
    pub(super) async fn attach(
        channel: &Arc<Channel>,
        address: &str,
        arrivals: Arc<Notifier>,
    ) -> Result<Self, Fault> {
        let address = address.to_owned();
        let attaching = channel.attach(REQUEST_TIMEOUT, move |session, name| {
            let receiver = Receiver::builder()
                .name(name)
                .source(address.as_str())
                .sender_settle_mode(SenderSettleMode::Unsettled)
                .receiver_settle_mode(ReceiverSettleMode::Second)
                .credit_mode(CreditMode::Manual);
            Box::pin(async move { receiver.attach(session).await.map_err(|error| of_receiver(&error)) })
        });
        Self::of(attaching.await?, channel, arrivals)
    }

    /// Starts the task that owns a link.
    ///
    /// # Errors
    /// [`Fault::Lost`], if its channel has ended.
    pub(super) fn of(
        receiver: Receiver,
        channel: &Arc<Channel>,
        arrivals: Arc<Notifier>,
    ) -> Result<Self, Fault> {
        let (commands, queue) = mpsc::channel(256);
        let ended = CancellationToken::new();
        let name = receiver.name().into();
        let link = ReceiveTask::new(receiver, Arc::clone(channel), arrivals)?;
        drop(channel.runtime.spawn(link.run(queue, ended.clone())));
        Ok(Self { name, commands, ended, is_known: Arc::default() })
    }

    /// Returns the property that makes a request on behalf of the link. The service counts such a request as
    /// use of the link.
    pub(crate) fn association(&self) -> (&'static str, String) {
        ("associated-link-name", self.name.to_string())
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        self.commands.same_channel(&other.commands)
    }

    pub(crate) fn is_new(&self) -> bool {
        !self.is_known.swap(true, Ordering::Relaxed)
    }

    pub(crate) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Detaches the link, and waits for the service's answer. Unsettled messages are released.
    pub(crate) async fn close(&self) {
        let (answer, answered) = oneshot::channel();
        if self.commands.send(Command::Close { answer }).await.is_ok() {
            let _ = answered.await;
        }
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.commands.is_closed()
    }

    /// Takes up to `count` messages; waits up to [`GET_WAIT`](super::GET_WAIT) for the first. If the future
    /// is dropped, its messages are released; so is a message whose guard is dropped.
    pub(crate) async fn get(&self, count: u32) -> Result<Vec<LockedMessage>, Fault> {
        let mut taken = self.ask(count).await?;
        taken.truncate(count as usize);
        Ok(taken)
    }

    /// Takes back the service's credit, and waits until all messages that used it are released.
    pub(crate) async fn drain(&self) {
        let Ok(taken) = self.ask(0).await else { return };
        join_all(taken.into_iter().map(|taken| taken.guard.release(self))).await;
    }

    /// Requests `count` messages; may return more.
    async fn ask(&self, count: u32) -> Result<Vec<LockedMessage>, Fault> {
        let (answer, answered) = oneshot::channel();
        let gone = |_| Fault::lost("the link has ended");
        self.commands
            .send(Command::Get { count, answer })
            .await
            .map_err(|_| Fault::not_sent("the link has ended"))?;
        answered.await.map_err(gone)?
    }

    /// Settles a delivery, and waits for the service's answer. Returns `None` if the link does not have the
    /// delivery, so nothing was sent.
    pub(crate) async fn settle(&self, lock: Uuid, how: Settlement) -> Option<Result<(), Fault>> {
        let (answer, sent) = oneshot::channel();
        self.commands.send(Command::Settle { lock, how, answer }).await.ok()?;
        let answered = sent.await.ok()?;
        tokio::select! {
            biased;
            settled = values::answer(answered) => Some(settled),
            () = self.ended.cancelled() => Some(Err(Fault::lost("the link has ended"))),
        }
    }

    /// Gives up a delivery whose message was settled in another way. The service refuses this settlement, and
    /// forgets the delivery.
    pub(crate) async fn forget(&self, lock: Uuid) {
        let (answer, _) = oneshot::channel();
        let _ = self.commands.send(Command::Settle { lock, how: Settlement::Complete, answer }).await;
    }
}

impl Expiring for ReceiveLink {
    fn is_gone(&self) -> bool {
        self.commands.is_closed()
    }
}
