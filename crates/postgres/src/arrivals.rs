//! Wakes callers that wait for messages: directly in this process, and by `NOTIFY` in others.
//!
//! A notification is sent after the commit, in a separate transaction that writes nothing. In the transaction
//! of a put it would hold a lock on the whole database while the commit waits for the disk, and no two puts
//! could share a sync. The notifications of several commits are combined. If the process dies between a
//! commit and its notification, the workers of other processes find the message when they poll.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio_postgres::types::Type;

use crate::database::{Call, Database};
use jobqueue_storage::log::debug;
use jobqueue_storage::runtime::Runtime;
use jobqueue_storage::sync::lock;
use jobqueue_storage::{Notifier, QueueName, StoreError, Subscription};

/// The time between two notifications. Commits during that time share the second notification.
const NOTIFY_INTERVAL: Duration = Duration::from_millis(5);
/// PostgreSQL accepts payloads of less than 8,000 bytes.
const MAX_PAYLOAD_BYTES: usize = 7_000;

pub(crate) const NOTIFY: &str = "SELECT 1::bigint FROM pg_catalog.pg_notify($1, $2)";

/// The sender in notifications that no process ignores as its own.
pub(crate) const UNNAMED_SENDER: &str = "-";

/// Returns the channel of a schema.
pub(crate) fn channel(schema: &str) -> String {
    format!("jobqueue_{schema}")
}

/// The subscriptions of a process, and its pending notifications.
#[derive(Debug)]
pub(crate) struct ArrivalHub {
    /// The id of this process as a sender, so that it ignores its own notifications.
    sender: String,
    channel: String,
    notifiers: Mutex<BTreeMap<QueueName, Notifier>>,
    /// True while notifications of other processes arrive. Behind a pooler a process may be able to send
    /// notifications but not receive them.
    is_listening: AtomicBool,
    outgoing: Mutex<Outgoing>,
    /// Dropped with the hub, which closes the connection that listens.
    _alive: oneshot::Sender<()>,
}

#[derive(Debug, Default)]
struct Outgoing {
    queues: BTreeSet<QueueName>,
    is_sending: bool,
}

impl ArrivalHub {
    /// Returns a hub, and a receiver that closes when the hub is dropped.
    pub(crate) fn new(schema: &str, runtime: &Runtime) -> (Self, oneshot::Receiver<()>) {
        let (_alive, closed) = oneshot::channel();
        let hub = Self {
            sender: format!("{:032x}", runtime.random_u128()),
            channel: channel(schema),
            notifiers: Mutex::default(),
            is_listening: AtomicBool::new(false),
            outgoing: Mutex::default(),
            _alive,
        };
        (hub, closed)
    }

    pub(crate) fn channel(&self) -> &str {
        &self.channel
    }

    /// Returns whether this process learns of the commits of other processes.
    pub(crate) fn is_listening(&self) -> bool {
        self.is_listening.load(Ordering::Acquire)
    }

    pub(crate) fn set_listening(&self, is_listening: bool) {
        self.is_listening.store(is_listening, Ordering::Release);
    }

    /// Returns whether there has been a subscription.
    pub(crate) fn has_subscriptions(&self) -> bool {
        !lock(&self.notifiers).is_empty()
    }

    pub(crate) fn subscribe(&self, queue: &QueueName) -> Subscription {
        lock(&self.notifiers).entry(queue.clone()).or_default().subscribe()
    }

    /// Announces that a message of a queue may have become visible, even if this process itself does not
    /// listen.
    pub(crate) fn announce(self: &Arc<Self>, database: &Arc<Database>, runtime: &Runtime, queue: &QueueName) {
        self.notify(queue);
        let mut outgoing = lock(&self.outgoing);
        outgoing.queues.insert(queue.clone());
        if std::mem::replace(&mut outgoing.is_sending, true) {
            return;
        }
        drop(outgoing);
        let mut sending = Sending { hub: Arc::clone(self), has_ended: false };
        let database = Arc::clone(database);
        runtime.spawn(async move {
            while let Some(payload) = sending.next() {
                if let Err(error) = sending.hub.send(&database, &payload).await {
                    debug!(%error, "a notification was not sent");
                }
                tokio::time::sleep(NOTIFY_INTERVAL).await;
            }
        });
    }

    /// Sends a notification.
    ///
    /// # Errors
    /// The errors of a statement.
    pub(crate) async fn send(&self, database: &Database, payload: &str) -> Result<(), StoreError> {
        let call = Call::internal("notify", database);
        let values = [(&self.channel as _, Type::TEXT), (&payload as _, Type::TEXT)];
        database.query(call, NOTIFY, &values).await.map(drop)
    }

    /// Handles a received notification: the sender, then queues.
    pub(crate) fn receive(&self, payload: &str) {
        let mut words = payload.split(' ');
        if words.next() == Some(self.sender.as_str()) {
            return;
        }
        words.filter_map(|name| QueueName::new(name).ok()).for_each(|queue| self.notify(&queue));
    }

    /// Wakes all subscribers, because notifications may have been missed.
    pub(crate) fn notify_all(&self) {
        lock(&self.notifiers).values().for_each(Notifier::notify);
    }

    fn notify(&self, queue: &QueueName) {
        if let Some(notifier) = lock(&self.notifiers).get(queue) {
            notifier.notify();
        }
    }
}

/// The task that sends notifications. If it ends early, with its runtime, another task can start.
struct Sending {
    hub: Arc<ArrivalHub>,
    has_ended: bool,
}

impl Sending {
    /// Takes the queues of the next notification. Returns `None` if there are none. Then the task ends.
    fn next(&mut self) -> Option<String> {
        let mut outgoing = lock(&self.hub.outgoing);
        let mut payload = self.hub.sender.clone();
        while payload.len() < MAX_PAYLOAD_BYTES
            && let Some(queue) = outgoing.queues.pop_first()
        {
            payload.push(' ');
            payload.push_str(queue.as_str());
        }
        outgoing.is_sending = payload.len() > self.hub.sender.len();
        self.has_ended = !outgoing.is_sending;
        outgoing.is_sending.then_some(payload)
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        if !self.has_ended {
            lock(&self.hub.outgoing).is_sending = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_server::FakeServer;

    /// A process may not listen because of a pooler or a slow start.
    #[tokio::test]
    async fn process_that_does_not_listen_notifies_others() {
        let (server, mut arrived) = FakeServer::silent().await;
        let runtime = Runtime::new();
        let database = Arc::new(Database::new(server.settings(), runtime.clone()).unwrap());
        let (hub, _closed) = ArrivalHub::new("jobqueue", &runtime);
        let hub = Arc::new(hub);
        assert!(!hub.is_listening());
        hub.announce(&database, &runtime, &"jobs".parse().unwrap());
        tokio::time::timeout(Duration::from_secs(60), arrived.recv()).await.expect("a notification").unwrap();
    }
}
