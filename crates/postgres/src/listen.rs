//! The connection that listens for notifications.

use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::time::Duration;

use scopeguard::guard;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_postgres::{AsyncMessage, Client};

use crate::arrivals::ArrivalHub;
use crate::connect::ConnectError;
use crate::database::{Call, Database};
use crate::error;
use jobqueue_storage::log::{debug, warn};
use jobqueue_storage::runtime::Runtime;
use jobqueue_storage::{Backoff, StoreError};

/// The time within which this process receives its own notification, if notifications arrive at all.
const PROOF_TIMEOUT: Duration = Duration::from_secs(5);
/// The time without notifications after which the connection is probed: a connection that was cut off gives
/// no sign.
const LIVENESS_INTERVAL: Duration = Duration::from_secs(30);
const RECONNECT_BACKOFF: Backoff = Backoff::exponential(Duration::from_millis(500), Duration::from_secs(30));

/// Starts to listen. Returns whether notifications arrive. Behind a pooler that gives each transaction
/// another connection, they do not.
///
/// The task ends when the hub is dropped, which closes the channel `closed`.
///
/// # Errors
/// The errors of opening a connection.
pub(crate) async fn start(
    database: &Arc<Database>,
    runtime: &Runtime,
    hub: &Arc<ArrivalHub>,
    closed: oneshot::Receiver<()>,
) -> Result<bool, StoreError> {
    let proof = format!("{:032x}", runtime.random_u128());
    let (confirm, confirmed) = oneshot::channel();
    let listener = Listener {
        database: Arc::clone(database),
        channel: hub.channel().to_owned(),
        hub: Arc::downgrade(hub),
        runtime: runtime.clone(),
        proof: Some((proof.clone(), confirm)),
    };
    let line = listener.connect().await?;
    let task = runtime.spawn(async move {
        // Runs even if the runtime ends before the storage.
        let _ended = guard(Weak::clone(&listener.hub), end);
        tokio::select! {
            biased;
            () = listener.run(line) => {}
            _ = closed => {}
        }
    });
    hub.send(database, &proof).await?;
    let is_confirmed = matches!(timeout(PROOF_TIMEOUT, confirmed).await, Ok(Ok(())));
    if !is_confirmed {
        task.abort();
    }
    Ok(is_confirmed)
}

/// Records that this process no longer listens, if the hub still exists.
fn end(hub: Weak<ArrivalHub>) {
    if let Some(hub) = hub.upgrade()
        && hub.is_listening()
    {
        hub.set_listening(false);
        let text = "the runtime that opened the storage has ended: notifications of messages do not come; workers poll";
        // A program that only sends also ends like this.
        if hub.has_subscriptions() {
            warn!("{text}");
        } else {
            debug!("{text}");
        }
    }
}

struct Listener {
    database: Arc<Database>,
    channel: String,
    hub: Weak<ArrivalHub>,
    runtime: Runtime,
    /// The payload of the notification that proves that notifications arrive, and the channel to the caller
    /// that waits for it.
    proof: Option<(String, oneshot::Sender<()>)>,
}

/// A connection, and the messages that arrive on it without a request.
struct ListenConnection {
    client: Client,
    messages: UnboundedReceiver<AsyncMessage>,
}

impl Listener {
    /// Connects and listens.
    ///
    /// # Errors
    /// `Timeout` if the server does not answer in time; otherwise the errors of opening a connection.
    async fn connect(&self) -> Result<ListenConnection, StoreError> {
        let call = Call::internal("listen for messages", &self.database);
        match timeout(self.database.settings().timeout, self.try_connect()).await {
            Ok(line) => line.map_err(|failure| self.database.not_connected(call, failure)),
            Err(_) => Err(call.of(error::NOT_OPENED)),
        }
    }

    async fn try_connect(&self) -> Result<ListenConnection, ConnectError> {
        let (client, mut connection) = self.database.connector().connect().await?;
        let (received, messages) = unbounded_channel();
        // It ends with the client, or when the connection is lost.
        self.runtime.spawn(async move {
            while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
                if received.send(message).is_err() {
                    return;
                }
            }
        });
        client.batch_execute(&format!("LISTEN {}", self.channel)).await?;
        Ok(ListenConnection { client, messages })
    }

    /// Receives until the hub is dropped. A lost connection is opened again.
    async fn run(mut self, first: ListenConnection) {
        let (mut line, mut failures) = (Ok(first), 0);
        while self.hub.strong_count() > 0 {
            match line {
                Ok(line) => {
                    failures = 0;
                    // Notifications between the two connections were missed.
                    if let Some(hub) = self.hub.upgrade() {
                        hub.notify_all();
                    }
                    self.receive_until_lost(line).await;
                }
                Err(error) => {
                    warn!(%error, "no notifications of messages until the database answers; a worker polls meanwhile")
                }
            }
            failures += 1;
            tokio::time::sleep(RECONNECT_BACKOFF.delay(failures, &self.runtime)).await;
            line = self.connect().await;
        }
    }

    async fn receive_until_lost(&mut self, ListenConnection { client, mut messages }: ListenConnection) {
        while self.hub.strong_count() > 0 {
            match timeout(LIVENESS_INTERVAL, messages.recv()).await {
                Ok(Some(message)) => self.receive(&message),
                Ok(None) => return,
                Err(_) => match timeout(LIVENESS_INTERVAL, client.batch_execute("")).await {
                    Ok(Ok(())) => {}
                    _ => return,
                },
            }
        }
    }

    fn receive(&mut self, message: &AsyncMessage) {
        let AsyncMessage::Notification(notification) = message else { return };
        let is_proof = self.proof.as_ref().is_some_and(|(proof, _)| proof == notification.payload());
        if is_proof && let Some((_, confirm)) = self.proof.take() {
            // Ignores an error: the caller may have given up.
            let _ = confirm.send(());
        } else if let Some(hub) = self.hub.upgrade() {
            hub.receive(notification.payload());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_server::FakeServer;
    use jobqueue_storage::StoreErrorKind;
    use jobqueue_storage::log::tracing::span::{Attributes, Id, Record};
    use jobqueue_storage::log::tracing::subscriber::set_default;
    use jobqueue_storage::log::tracing::{Event, Level, Metadata, Subscriber};
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A proxy may accept connections while the server behind it is gone.
    #[tokio::test(start_paused = true)]
    async fn connection_without_an_answer_is_given_up() {
        let server = FakeServer::start(|_| Vec::new()).await;
        let runtime = Runtime::new();
        let database = Arc::new(Database::new(server.settings(), runtime.clone()).unwrap());
        let (hub, closed) = ArrivalHub::new("jobqueue", &runtime);
        let hub = Arc::new(hub);
        let starting = start(&database, &runtime, &hub, closed);
        let error = timeout(Duration::from_secs(60), starting).await.expect("a limit").unwrap_err();
        assert_eq!((error.kind(), error.is_ambiguous()), (StoreErrorKind::Timeout, false), "{error}");
    }

    /// Counts warnings.
    #[derive(Clone, Default)]
    struct Warnings(Arc<AtomicUsize>);

    impl Subscriber for Warnings {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() == Level::WARN
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    /// A program that only sends ends without a warning.
    #[test]
    fn end_of_the_runtime_is_a_warning_if_there_are_subscriptions() {
        let warnings = Warnings::default();
        let _counted = set_default(warnings.clone());
        for (subscribes, expected) in [(false, 0), (true, 1)] {
            let (hub, _closed) = ArrivalHub::new("jobqueue", &Runtime::new());
            let hub = Arc::new(hub);
            hub.set_listening(true);
            let _subscription = subscribes.then(|| hub.subscribe(&"jobs".parse().unwrap()));
            end(Arc::downgrade(&hub));
            assert_eq!(warnings.0.load(Ordering::Relaxed), expected);
            assert!(!hub.is_listening());
        }
    }
}
