//! The task that owns a receive link.
//!
//! It requests as many messages as there are free slots, so that no lock expires while a message waits here:
//! see `credit`. Messages that are completed at the same time are completed by a single frame.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use fe2o3_amqp::link::RecvError;
use fe2o3_amqp::link::delivery::DeliveryInfo;
use fe2o3_amqp::types::messaging::Body;
use fe2o3_amqp::types::primitives::Value;
use fe2o3_amqp::{Delivery, Receiver};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::super::error::Fault;
use super::super::place::DEAD_LETTERS;
use super::channel::Channel;
use super::credit::{ActiveGet, Listening, WaitingGet};
use super::frame_inspector::LinkKey;
use super::nesting::TOO_DEEP;
use super::receiver::{Command, LockedMessage, ReleaseGuard};
use super::settlement::{DeadLetterOutcome, Settlement, SettlementSent, abandoned};
use super::values::{CLOSE_TIMEOUT, condition_of, guid};
use jobqueue_storage::Notifier;
use jobqueue_storage::log;

const MAX_COMMAND_BATCH: usize = 64;

pub(super) struct ReceiveTask {
    pub(super) receiver: Receiver,
    /// The channel of the link, kept open as long as the link.
    pub(super) channel: Arc<Channel>,
    pub(super) key: LinkKey,
    flows: watch::Receiver<u64>,
    pub(super) deliveries: HashMap<Uuid, DeliveryInfo>,
    /// Cloned for the guards of messages.
    release: mpsc::UnboundedSender<Uuid>,
    /// The locks of messages that reached no caller.
    released: mpsc::UnboundedReceiver<Uuid>,
    pub(super) waiting: VecDeque<WaitingGet>,
    pub(super) getting: Option<ActiveGet>,
    pub(super) listening: Option<Listening>,
    /// True if a drain found nothing, and no message has arrived since.
    pub(super) is_empty: bool,
    /// The number of notifications at the beginning of the last drain; puts of this process count too.
    pub(super) notifications_at_drain: u64,
    /// Notified of unrequested messages, and of the end of the link.
    pub(super) arrivals: Arc<Notifier>,
    pub(super) received: u64,
    /// The peer's delivery count at the beginning of the current get.
    pub(super) since: u32,
    /// Set when the owner closes the link; answered once the link is detached.
    pub(super) closing: Option<oneshot::Sender<()>>,
}

impl ReceiveTask {
    /// Returns the task of an attached link.
    ///
    /// # Errors
    /// [`Fault::Lost`] if the channel has ended.
    pub(super) fn new(
        receiver: Receiver,
        channel: Arc<Channel>,
        arrivals: Arc<Notifier>,
    ) -> Result<Self, Fault> {
        let key = channel.events.find(receiver.name());
        let (release, released) = mpsc::unbounded_channel();
        Ok(Self {
            key: key.ok_or_else(|| Fault::lost("the channel of the link has ended"))?,
            receiver,
            flows: channel.events.flows(),
            channel,
            deliveries: HashMap::new(),
            release,
            released,
            waiting: VecDeque::new(),
            getting: None,
            listening: None,
            is_empty: false,
            notifications_at_drain: 0,
            arrivals,
            received: 0,
            since: 0,
            closing: None,
        })
    }

    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<Command>, ended: CancellationToken) {
        let _ended = ended.drop_guard();
        let mut batch = Vec::new();
        let fault = loop {
            let until = self.getting.as_ref().map(|getting| getting.until);
            let until = until.or(self.listening.as_ref().and_then(|listening| listening.until));
            let is_idle = self.getting.is_none() && self.listening.as_ref().is_some_and(Listening::is_idle);
            let is_draining = self.getting.as_ref().is_some_and(|getting| getting.is_draining);
            let step = tokio::select! {
                biased;
                () = self.channel.dead.cancelled() => break Fault::lost("the connection has ended"),
                // Before the next get, which may find out whether the queue is empty.
                Some(lock) = self.released.recv() => {
                    self.give_back(lock).await;
                    Ok(())
                }
                count = commands.recv_many(&mut batch, MAX_COMMAND_BATCH) => match count {
                    0 => return,
                    _ => self.serve_all(&mut batch, &mut commands).await,
                },
                delivery = self.receiver.recv::<Body<Value>>() => self.on_delivery(delivery).await,
                Ok(()) = self.flows.changed(), if is_draining => self.finish_if_drained().await,
                () = self.arrivals.unsubscribed(), if is_idle => self.stop_listening().await,
                () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => self.on_timeout().await,
            };
            let step = match step {
                Ok(()) => self.start_waiting_gets().await,
                Err(fault) => Err(fault),
            };
            if let Err(fault) = step {
                break fault;
            }
        };
        log::debug!(error = %fault, "a receive link of Service Bus has ended");
        commands.close();
        self.fail(&fault);
        // Before `ended` fires, so that unsent settlements are recognised as such.
        drop(commands);
        if let Some(answer) = self.closing.take() {
            let _ = timeout(CLOSE_TIMEOUT, self.receiver.close()).await;
            let _ = answer.send(());
        }
    }

    /// Executes commands; completes all messages of consecutive commands by a single frame.
    async fn serve_all(
        &mut self,
        batch: &mut Vec<Command>,
        commands: &mut mpsc::Receiver<Command>,
    ) -> Result<(), Fault> {
        // Lets handlers that end at the same time send their commands first.
        tokio::task::yield_now().await;
        while batch.len() < MAX_COMMAND_BATCH
            && let Ok(command) = commands.try_recv()
        {
            batch.push(command);
        }
        let (mut completed, mut others) = (Vec::new(), Vec::new());
        for command in batch.drain(..) {
            match command {
                Command::Settle { lock, how: Settlement::Complete, answer } => completed.push((lock, answer)),
                other => others.push(other),
            }
        }
        self.complete_all(completed).await;
        for command in others {
            self.serve(command).await?;
        }
        Ok(())
    }

    /// Completes messages; each caller waits for its own answer.
    async fn complete_all(&mut self, completed: Vec<(Uuid, SettlementSent)>) {
        let mut deliveries = Vec::with_capacity(completed.len());
        for (lock, answer) in completed {
            // Dropping `answer` signals to the caller that the link does not have the delivery.
            let Some(delivery) = self.deliveries.remove(&lock) else { continue };
            let _ = answer.send(self.channel.events.watch((self.key.0, delivery.delivery_id())));
            deliveries.push(delivery);
        }
        if deliveries.is_empty() {
            return;
        }
        let numbers: Vec<_> = deliveries.iter().map(DeliveryInfo::delivery_id).collect();
        // The client sends one frame for each range of consecutive numbers.
        let Err(error) = self.receiver.accept_all(deliveries).await else { return };
        let fault = match numbers.len() {
            1 => Fault::not_sent(error),
            // The first of several frames may have been sent.
            _ => Fault::lost(error),
        };
        for number in numbers {
            self.channel.events.answer((self.key.0, number), Err(fault.clone()));
        }
    }

    async fn serve(&mut self, command: Command) -> Result<(), Fault> {
        match command {
            Command::Get { count, answer } => self.waiting.push_back(WaitingGet { count, answer }),
            Command::Settle { lock, how, answer } => {
                if let Some(delivery) = self.deliveries.remove(&lock) {
                    self.settle(delivery, how, answer).await;
                }
            }
            Command::Close { answer } => {
                self.closing = Some(answer);
                return Err(Fault::lost("its owner has closed it"));
            }
        }
        Ok(())
    }

    async fn settle(&self, delivery: DeliveryInfo, how: Settlement, answer: SettlementSent) {
        let number = (self.key.0, delivery.delivery_id());
        let _ = answer.send(self.channel.events.watch(number));
        let sent = match how {
            Settlement::Complete => self.receiver.accept(delivery).await,
            Settlement::Abandon => self.receiver.modify(delivery, abandoned()).await,
            Settlement::Release => self.receiver.release(delivery).await,
            Settlement::DeadLetter(letter) => self.receiver.reject(delivery, letter.rejection()).await,
        };
        if let Err(error) = sent {
            self.channel.events.answer(number, Err(Fault::not_sent(error)));
        }
    }

    async fn on_delivery(&mut self, delivery: Result<Delivery<Body<Value>>, RecvError>) -> Result<(), Fault> {
        let delivery = match delivery {
            Ok(delivery) => Some(delivery.into_parts()),
            Err(RecvError::MessageDecode(error)) => {
                let is_too_deep = self.channel.events.was_too_deep((self.key.0, error.info.delivery_id()));
                let reason = if is_too_deep { TOO_DEEP.to_owned() } else { error.source.to_string() };
                log::warn!(error = %reason, "a message of Service Bus cannot be decoded");
                // Dead-letters the message, so that other tools can read it. In a dead-letter queue it stays
                // until its lock is over.
                let address = self.receiver.source().as_ref().and_then(|source| source.address.as_deref());
                if !address.is_some_and(|address| address.ends_with(DEAD_LETTERS)) {
                    let _ = self.receiver.reject(error.info, undecodable(reason).rejection()).await;
                }
                None
            }
            Err(error) => return Err(of_recv(error)),
        };
        self.received += 1;
        let taken = delivery.and_then(|(info, message)| {
            let lock = guid(info.delivery_tag())?;
            self.deliveries.insert(lock, info);
            let guard = ReleaseGuard::new(lock, self.release.clone());
            Some(LockedMessage { lock, message, guard })
        });
        self.on_message(taken).await
    }
}

fn undecodable(description: String) -> DeadLetterOutcome {
    DeadLetterOutcome { reason: "undecodable".to_owned(), description, properties: Vec::new() }
}

/// Returns the fault for the end of a receive link.
pub(super) fn of_recv(error: RecvError) -> Fault {
    use fe2o3_amqp::link::LinkStateError as State;
    match error {
        RecvError::LinkStateError(
            State::RemoteClosedWithError(error) | State::RemoteDetachedWithError(error),
        ) => {
            let fault = condition_of(&error);
            if fault.is_missing_entity() { fault } else { Fault::lost(error) }
        }
        other => Fault::lost(other),
    }
}
