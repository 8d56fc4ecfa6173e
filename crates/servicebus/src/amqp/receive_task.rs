//! The task that owns a receiving link.
//!
//! It asks for as many messages as there are free slots, so that no lock runs out while a message waits here: see `credit`.
//! Messages that are completed at the same time are completed by one frame.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use fe2o3_amqp::link::RecvError;
use fe2o3_amqp::link::delivery::DeliveryInfo;
use fe2o3_amqp::types::messaging::{Body, Data, Message};
use fe2o3_amqp::types::primitives::Value;
use fe2o3_amqp::{Delivery, Receiver};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::super::error::Fault;
use super::connection::{CLOSE_TIMEOUT, Connection, REQUEST_TIMEOUT};
use super::credit::{Asked, Getting, Listening};
use super::frame_inspector::FrameEvents;
use super::receiver::{Command, Replacing, Taken};
use super::settlement::{Settlement, Unsent, abandoned};
use super::transaction;
use super::values::{condition_of, guid};
use jobqueue_storage::Notifier;

/// The number of commands that are served together.
const BATCH: usize = 64;

pub(super) struct ReceiveTask {
    pub(super) receiver: Receiver,
    pub(super) events: FrameEvents,
    flows: watch::Receiver<u64>,
    pub(super) deliveries: HashMap<Uuid, DeliveryInfo>,
    pub(super) asked: VecDeque<Asked>,
    pub(super) getting: Option<Getting>,
    pub(super) listening: Option<Listening>,
    /// True if a drain has found nothing, and no message has come since.
    pub(super) is_empty: bool,
    /// The number of notifications at the beginning of the last drain; puts of this process notify too.
    pub(super) heard: u64,
    /// Notified of an unrequested message, and of the end of the link.
    pub(super) arrivals: Arc<Notifier>,
    /// The deliveries that the link has received.
    pub(super) received: u64,
    /// The peer's delivery count when the get under way began.
    pub(super) since: u32,
    replacing: Option<Box<Replacing>>,
    /// Answered when the link was detached because its owner wants that.
    closing: Option<oneshot::Sender<()>>,
    /// Fires when the connection has ended.
    dead: CancellationToken,
}

impl ReceiveTask {
    pub(super) fn new(receiver: Receiver, connection: &Connection, arrivals: Arc<Notifier>) -> Self {
        Self {
            receiver,
            flows: connection.events.flows(),
            events: connection.events.clone(),
            deliveries: HashMap::new(),
            asked: VecDeque::new(),
            getting: None,
            listening: None,
            is_empty: false,
            heard: 0,
            arrivals,
            received: 0,
            since: 0,
            replacing: None,
            closing: None,
            dead: connection.dead.clone(),
        }
    }

    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<Command>, ended: CancellationToken) {
        let _ended = ended.drop_guard();
        let mut batch = Vec::new();
        let fault = loop {
            let until = self.getting.as_ref().map(|getting| getting.until);
            let until = until.or(self.listening.as_ref().map(|listening| listening.until));
            let is_draining = self.getting.as_ref().is_some_and(|getting| getting.is_draining);
            let step = tokio::select! {
                biased;
                () = self.dead.cancelled() => break Fault::Lost("the connection has ended".to_owned()),
                count = commands.recv_many(&mut batch, BATCH) => match count {
                    0 => return,
                    _ => self.serve_all(&mut batch, &mut commands).await,
                },
                delivery = self.receiver.recv::<Body<Value>>() => self.received(delivery).await,
                Ok(()) = self.flows.changed(), if is_draining => self.finish_if_drained().await,
                () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => self.late().await,
            };
            let step = match step {
                Ok(()) => self.next().await,
                Err(fault) => Err(fault),
            };
            if let Err(fault) = step {
                break fault;
            }
        };
        tracing::debug!(error = %fault, "a link from Service Bus has ended");
        commands.close();
        self.fail(&fault);
        // Before `ended` fires: what was not sent is known as such.
        drop(commands);
        if let Some(answer) = self.closing.take() {
            let _ = timeout(CLOSE_TIMEOUT, self.receiver.close()).await;
            let _ = answer.send(());
        }
    }

    /// Serves commands; completes messages that follow each other by one frame.
    async fn serve_all(
        &mut self,
        batch: &mut Vec<Command>,
        commands: &mut mpsc::Receiver<Command>,
    ) -> Result<(), Fault> {
        // Handlers that end at the same time have their turn first.
        tokio::task::yield_now().await;
        while batch.len() < BATCH
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
    async fn complete_all(&mut self, completed: Vec<(Uuid, Unsent)>) {
        let mut deliveries = Vec::with_capacity(completed.len());
        for (lock, answer) in completed {
            // Dropping the answer says that the link does not have the delivery.
            let Some(delivery) = self.deliveries.remove(&lock) else { continue };
            self.events.watch(delivery.delivery_id(), answer.sent());
            deliveries.push(delivery);
        }
        if deliveries.is_empty() {
            return;
        }
        let numbers: Vec<_> = deliveries.iter().map(DeliveryInfo::delivery_id).collect();
        // The client sends one frame for each range of numbers without a gap.
        let Err(error) = self.receiver.accept_all(deliveries).await else { return };
        let fault = match numbers.len() {
            1 => Fault::NotSent(error.to_string()),
            // The first of several frames may have been sent.
            _ => Fault::Lost(error.to_string()),
        };
        for number in numbers {
            self.events.answer(number, Err(fault.clone()));
        }
    }

    async fn serve(&mut self, command: Command) -> Result<(), Fault> {
        match command {
            Command::Get { count, wait, answer } => self.asked.push_back(Asked { count, wait, answer }),
            Command::Settle { lock, how, answer } => {
                if let Some(delivery) = self.deliveries.remove(&lock) {
                    self.settle(delivery, how, answer).await;
                }
            }
            Command::Replace { lock, copy, answer } => {
                let replaced = self.replace(lock, *copy).await;
                let is_lost = matches!(replaced, Some(Err(Fault::Lost(_) | Fault::Late)));
                let _ = answer.send(replaced);
                if is_lost {
                    return Err(Fault::Lost("a transaction got no answer".to_owned()));
                }
            }
            Command::Take(replacing) => self.replacing = Some(replacing),
            Command::KeepAlive => self.keep_alive().await?,
            Command::Close { answer } => {
                self.closing = Some(answer);
                return Err(Fault::Lost("its owner has closed it".to_owned()));
            }
        }
        Ok(())
    }

    async fn settle(&self, delivery: DeliveryInfo, how: Settlement, answer: Unsent) {
        let number = delivery.delivery_id();
        self.events.watch(number, answer.sent());
        let sent = match how {
            Settlement::Complete => self.receiver.accept(delivery).await,
            Settlement::Abandon => self.receiver.modify(delivery, abandoned()).await,
            Settlement::Release => self.receiver.release(delivery).await,
            Settlement::DeadLetter(letter) => self.receiver.reject(delivery, letter.rejection()).await,
        };
        if let Err(error) = sent {
            self.events.answer(number, Err(Fault::NotSent(error.to_string())));
        }
    }

    async fn replace(&mut self, lock: Uuid, copy: Message<Data>) -> Option<Result<(), Fault>> {
        let replacing = self.replacing.as_mut()?;
        let delivery = self.deliveries.remove(&lock)?;
        let Replacing { controller, sender } = &mut **replacing;
        let (answer, answered) = Unsent::new();
        self.events.watch(delivery.delivery_id(), answer.sent());
        let links = transaction::TransactionLinks { controller, sender, receiver: &mut self.receiver };
        let replacing = transaction::replace(links, delivery, copy, answered);
        // A transaction waits for ever when its connection ends.
        Some(tokio::select! {
            biased;
            () = self.dead.cancelled() => Err(Fault::Lost("the connection has ended".to_owned())),
            replaced = timeout(REQUEST_TIMEOUT, replacing) => replaced.unwrap_or(Err(Fault::Late)),
        })
    }

    async fn received(&mut self, delivery: Result<Delivery<Body<Value>>, RecvError>) -> Result<(), Fault> {
        let delivery = match delivery {
            Ok(delivery) => Some(delivery.into_parts()),
            Err(RecvError::MessageDecode(error)) => {
                // Its lock runs out, and the service counts the delivery.
                tracing::warn!(error = %error.source, "a message of Service Bus could not be decoded");
                let _ = self.receiver.modify(error.info, abandoned()).await;
                None
            }
            Err(error) => return Err(of_recv(error)),
        };
        self.received += 1;
        let taken = delivery.and_then(|(info, message)| {
            let lock = guid(info.delivery_tag())?;
            self.deliveries.insert(lock, info);
            Some(Taken { lock, message })
        });
        self.came(taken).await
    }
}

fn of_recv(error: RecvError) -> Fault {
    use fe2o3_amqp::link::LinkStateError as State;
    match error {
        RecvError::LinkStateError(
            State::RemoteClosedWithError(error) | State::RemoteDetachedWithError(error),
        ) => {
            let fault = condition_of(&error);
            if fault.is_missing_entity() { fault } else { Fault::Lost(error.to_string()) }
        }
        other => Fault::Lost(other.to_string()),
    }
}
