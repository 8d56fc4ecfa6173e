//! The queue as applications see it. The modules `send`, `receive` and `dead_letters` add methods to it.

use std::marker::PhantomData;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::queue::{QueueCore, QueueCoreOptions};
use crate::error::Error;
use crate::message::{MessageDefaults, QueueMessage};
use crate::settings::QueueSettings;
use crate::storage::{QueueName, Storage};

/// A queue of messages of type `M`. Cheap to clone.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use jobqueue::{QueueMessage, Storage};
/// use serde::{Deserialize, Serialize};
/// use std::time::Duration;
///
/// #[derive(Serialize, Deserialize, QueueMessage)]
/// #[message(queue = "mails", kind = "mail")]
/// struct Mail {
///     #[message(email)]
///     to: String,
/// }
///
/// let storage = Storage::memory();
/// let mails = storage.queue::<Mail>().await?;
/// mails.send(&Mail { to: "ada@example.org".into() }).await?;
/// mails.send(&Mail { to: "bob@example.org".into() }).delay(Duration::from_secs(60)).await?;
/// assert_eq!(mails.approximate_len().await?, 2);
/// # Ok(()) }
/// ```
pub struct Queue<M> {
    core: Arc<QueueCore>,
    message: PhantomData<fn() -> M>,
}

impl Storage {
    /// Opens the queue of `M`, [`QueueMessage::QUEUE`]. Creates it if it does not exist, without settings:
    /// the settings that the message types declare apply.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) for a bad name, [`Storage`](crate::ErrorKind::Storage) if the
    /// storage fails or a permission is missing.
    ///
    /// # Cancel safety
    /// If the future is dropped, the queue may have been created; nothing else has changed.
    pub async fn queue<M: QueueMessage>(&self) -> Result<Queue<M>, Error> {
        self.queue_named(M::QUEUE).await
    }

    /// Opens a queue of `M` under another name, of at most 56 characters.
    ///
    /// # Errors
    /// The errors of [`queue`](Self::queue).
    ///
    /// # Cancel safety
    /// If the future is dropped, the queue may have been created; nothing else has changed.
    pub async fn queue_named<M: QueueMessage>(&self, name: &str) -> Result<Queue<M>, Error> {
        Ok(Queue::of(QueueOf::named::<M>(name).open(self).await?))
    }
}

/// The name and the defaults of a queue to open, from the type of its messages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueOf<'n> {
    pub(crate) name: &'n str,
    pub(crate) defaults: MessageDefaults,
}

impl QueueOf<'static> {
    pub(crate) fn of<M: QueueMessage>() -> Self {
        Self::named::<M>(M::QUEUE)
    }
}

impl<'n> QueueOf<'n> {
    pub(crate) fn named<M: QueueMessage>(name: &'n str) -> Self {
        Self { name, defaults: M::DEFAULTS }
    }

    pub(crate) fn open(self, storage: &Storage) -> BoxFuture<'_, Result<Arc<QueueCore>, Error>> {
        let options = QueueCoreOptions { defaults: self.defaults, ..QueueCoreOptions::default() };
        match QueueName::new(self.name) {
            Ok(name) => QueueCore::open(storage, name, options),
            Err(error) => Box::pin(std::future::ready(Err(error.into()))),
        }
    }
}

impl<M: QueueMessage> Queue<M> {
    pub(crate) fn of(core: Arc<QueueCore>) -> Self {
        Self { core, message: PhantomData }
    }

    /// Returns the queue's name.
    pub fn name(&self) -> &QueueName {
        &self.core.name
    }

    /// Returns the settings of this queue, and reads them again if they are more than 30 seconds old. Returns
    /// the previous settings while another caller reads them, if the storage cannot be read, or if reading
    /// takes longer than two seconds.
    pub async fn settings(&self) -> Arc<QueueSettings> {
        self.core.fresh_settings().await
    }

    pub(crate) fn core(&self) -> &Arc<QueueCore> {
        &self.core
    }
}

impl<M> Clone for Queue<M> {
    fn clone(&self) -> Self {
        Self { core: Arc::clone(&self.core), message: PhantomData }
    }
}

jobqueue_storage::debug_fields! {
    Queue<M>(core.name)
}
