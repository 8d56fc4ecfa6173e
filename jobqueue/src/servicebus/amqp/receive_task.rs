//! The task that owns a receiving link.
//!
//! It asks for as many messages as there are free slots, and drains what it did not get, so that no lock runs out while
//! a message waits here.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use fe2o3_amqp::link::delivery::DeliveryInfo;
use fe2o3_amqp::link::{DispositionError, RecvError};
use fe2o3_amqp::types::messaging::{Body, Data, Message};
use fe2o3_amqp::types::primitives::Value;
use fe2o3_amqp::{Delivery, Receiver};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::super::error::Fault;
use super::connection::{Connection, LIMIT};
use super::receiver::{Answered, Command, Replacing, Taken, not_sent};
use super::settlement::{Settlement, abandoned};
use super::tap::Seen;
use super::transaction;
use super::values::{condition_of, guid};

/// A get that is under way.
struct Getting {
    missing: u32,
    got: Vec<Taken>,
    answer: oneshot::Sender<Result<Vec<Taken>, Fault>>,
    until: Instant,
    is_draining: bool,
}

/// A get that waits for its turn: the number of messages, the time to wait for them, and who asked.
type Asked = (u32, Duration, oneshot::Sender<Result<Vec<Taken>, Fault>>);

pub(super) struct ReceiveTask {
    receiver: Receiver,
    seen: Seen,
    flows: watch::Receiver<u64>,
    deliveries: HashMap<Uuid, DeliveryInfo>,
    asked: VecDeque<Asked>,
    getting: Option<Getting>,
    /// The deliveries that the link has received.
    received: u64,
    /// The peer's delivery count when the get under way began.
    since: u32,
    replacing: Option<Box<Replacing>>,
    /// Fires when the connection has ended.
    dead: CancellationToken,
}

impl ReceiveTask {
    pub(super) fn new(receiver: Receiver, connection: &Connection) -> Self {
        Self {
            receiver,
            flows: connection.seen.flows(),
            seen: connection.seen.clone(),
            deliveries: HashMap::new(),
            asked: VecDeque::new(),
            getting: None,
            received: 0,
            since: 0,
            replacing: None,
            dead: connection.dead.clone(),
        }
    }

    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<Command>, ended: CancellationToken) {
        let _ended = ended.drop_guard();
        let fault = loop {
            let until = self.getting.as_ref().map(|getting| getting.until);
            let is_draining = self.getting.as_ref().is_some_and(|getting| getting.is_draining);
            let step = tokio::select! {
                biased;
                () = self.dead.cancelled() => break Fault::Lost("the connection has ended".to_owned()),
                command = commands.recv() => match command {
                    Some(command) => self.serve(command).await,
                    None => return,
                },
                delivery = self.receiver.recv::<Body<Value>>() => self.received(delivery).await,
                Ok(()) = self.flows.changed(), if is_draining => {
                    self.finish_if_drained();
                    Ok(())
                }
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
    }

    async fn serve(&mut self, command: Command) -> Result<(), Fault> {
        match command {
            Command::Get { count, wait, answer } => self.asked.push_back((count, wait, answer)),
            Command::Settle { lock, how, answer } => {
                let settled = match self.deliveries.remove(&lock) {
                    Some(delivery) => Some(self.settle(delivery, how).await),
                    None => None,
                };
                let _ = answer.send(settled);
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
        }
        Ok(())
    }

    async fn settle(&self, delivery: DeliveryInfo, how: Settlement) -> Answered {
        let waiting = self.seen.watch(delivery.delivery_id());
        let sent = match how {
            Settlement::Complete => self.receiver.accept(delivery).await,
            Settlement::Abandon => self.receiver.modify(delivery, abandoned()).await,
            Settlement::DeadLetter(letter) => self.receiver.reject(delivery, letter.rejection()).await,
        };
        sent.map(|()| waiting).map_err(|error: DispositionError| Fault::NotSent(error.to_string()))
    }

    async fn replace(&mut self, lock: Uuid, copy: Message<Data>) -> Option<Result<(), Fault>> {
        let replacing = self.replacing.as_mut()?;
        let delivery = self.deliveries.remove(&lock)?;
        let Replacing { controller, sender } = &mut **replacing;
        let replacing = transaction::replace(controller, sender, &mut self.receiver, delivery, copy);
        // A transaction waits for ever when its connection ends.
        Some(tokio::select! {
            biased;
            () = self.dead.cancelled() => Err(Fault::Lost("the connection has ended".to_owned())),
            replaced = timeout(LIMIT, replacing) => replaced.unwrap_or(Err(Fault::Late)),
        })
    }

    /// Begins the next get, if none is under way.
    async fn next(&mut self) -> Result<(), Fault> {
        while self.getting.is_none() {
            let Some((count, wait, answer)) = self.asked.pop_front() else { return Ok(()) };
            if answer.is_closed() {
                continue;
            }
            let until = Instant::now() + wait;
            self.getting =
                Some(Getting { missing: count, got: Vec::new(), answer, until, is_draining: false });
            let (since, ahead) = self.seen.ahead(self.receiver.name(), self.received);
            self.since = since;
            self.receiver
                .set_credit(count.wrapping_add(ahead))
                .await
                .map_err(|error| Fault::Lost(error.to_string()))?;
        }
        Ok(())
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
        match (delivery, &mut self.getting) {
            (Some((info, message)), Some(getting)) => {
                getting.missing = getting.missing.saturating_sub(1);
                if let Some(lock) = guid(info.delivery_tag()) {
                    self.deliveries.insert(lock, info);
                    getting.got.push(Taken { lock, message });
                }
            }
            // Nobody waits for it any more.
            (Some((info, _)), None) => drop(self.receiver.release(info).await),
            (None, Some(getting)) => getting.missing = getting.missing.saturating_sub(1),
            (None, None) => {}
        }
        match &self.getting {
            Some(getting) if getting.missing == 0 => self.answer(),
            // What else is there comes with the answer to the drain.
            Some(getting) if !getting.is_draining => self.late().await?,
            Some(_) => self.finish_if_drained(),
            None => {}
        }
        Ok(())
    }

    /// Drains what was not delivered in time; ends the link when the drain itself gets no answer.
    async fn late(&mut self) -> Result<(), Fault> {
        let Some(getting) = &mut self.getting else { return Ok(()) };
        if getting.is_draining {
            return Err(Fault::Lost("a drain got no answer".to_owned()));
        }
        getting.is_draining = true;
        getting.until = Instant::now() + LIMIT;
        self.receiver.drain().await.map_err(|error| Fault::Lost(error.to_string()))
    }

    /// Answers the get. If the caller has gone, the locks of the messages run out.
    fn answer(&mut self) {
        if let Some(getting) = self.getting.take() {
            let _ = getting.answer.send(Ok(getting.got));
        }
    }

    /// Answers the get when all deliveries before the end of the drain have been received.
    fn finish_if_drained(&mut self) {
        let sent = self.seen.drained(self.receiver.name(), self.since);
        if sent.is_some_and(|sent| self.received >= sent) {
            self.answer();
        }
    }

    /// Answers all who wait when the link has ended.
    fn fail(&mut self, fault: &Fault) {
        if let Some(getting) = self.getting.take() {
            // What came is locked: it can be settled without the link.
            let answer = if getting.got.is_empty() { Err(fault.clone()) } else { Ok(getting.got) };
            let _ = getting.answer.send(answer);
        }
        for (_, _, answer) in self.asked.drain(..) {
            let _ = answer.send(Err(not_sent()));
        }
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
