//! Opens queues, and creates missing queues.

use std::time::Duration;

use crate::claim_check::CONTAINER;
use crate::error::{Error, ErrorKind};
use crate::group_log::GroupLogs;
use crate::job::outcome::chain;
use crate::settings::Metadata;
use crate::storage::{
    ContainerName, Created, QueueName, Queues, Storage, StoreError, StoreErrorKind, TransactionPlace,
};

/// The container of the records of effects that run once.
pub(crate) const ONCE: &str = "jobqueue-once";
/// The maximum time to wait until a queue that is being deleted can be created again.
const DELETION_TIMEOUT: Duration = Duration::from_secs(90);

/// Makes sure that a queue exists, and returns its metadata. Creates a missing queue without settings and
/// with empty `logs`. Waits while the storage removes a deleted queue of this name.
pub(crate) async fn ensure(
    store: &Queues,
    name: &QueueName,
    logs: Option<&GroupLogs>,
) -> Result<Metadata, Error> {
    let mut wait = Duration::from_millis(500);
    let give_up = tokio::time::Instant::now() + DELETION_TIMEOUT;
    loop {
        let found = match store.queue_metadata(name).await {
            Err(e) if e.kind() == StoreErrorKind::QueueNotFound => match create(store, name, logs).await {
                Ok(true) => Ok(Metadata::new()),
                // Another process or an operator has created the queue since: its settings apply.
                Ok(false) => store.queue_metadata(name).await,
                Err(e) => Err(e),
            },
            found => found,
        };
        match found {
            Ok(metadata) => return Ok(metadata),
            Err(e)
                if e.kind() == StoreErrorKind::QueueBeingDeleted && tokio::time::Instant::now() < give_up =>
            {
                crate::log::info!(queue = %name, "the queue is being deleted; waiting to create it again");
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(Duration::from_secs(10));
            }
            Err(e) => {
                let retryable = e.is_retryable();
                let text = format!("opening the queue `{name}` failed");
                return Err(Error::new(ErrorKind::Storage, text).with_retryable(retryable).with_source(e));
            }
        }
    }
}

/// Creates a queue that was not found, without settings and with empty group logs. Returns false if it
/// exists.
pub(crate) async fn create_queue(storage: &Storage, name: &QueueName) -> Result<bool, StoreError> {
    create(storage.queues(), name, Some(&GroupLogs::new(storage, name.clone()))).await
}

async fn create(store: &Queues, name: &QueueName, logs: Option<&GroupLogs>) -> Result<bool, StoreError> {
    // A failure does no harm: deliveries skip the entries that remain.
    if let Some(logs) = logs
        && let Err(error) = clear_former_logs(store, name, logs).await
    {
        crate::log::debug!(queue = %name, %error, "clearing the group logs of a deleted queue failed");
    }
    match store.create_queue(name, &Metadata::new()).await {
        Ok(created) => Ok(created == Created::New),
        Err(e) if e.kind() == StoreErrorKind::QueueAlreadyExists => Ok(false),
        Err(e) => Err(e),
    }
}

/// Clears the group logs of a deleted queue of this name, unless another process has created the queue since.
async fn clear_former_logs(store: &Queues, name: &QueueName, logs: &GroupLogs) -> Result<(), StoreError> {
    let stored = logs.stored().await?;
    if stored.is_empty() {
        return Ok(());
    }
    match store.queue_metadata(name).await {
        Err(e) if e.kind() == StoreErrorKind::QueueNotFound => logs.forget(&stored).await,
        found => found.map(drop),
    }
}

/// Creates the containers for the blobs that the application's transactions write on a database server.
///
/// A transaction that finds its container missing creates the container itself, and then other writers wait
/// for the end of the transaction. The container must therefore exist before the transaction begins. Within
/// the transaction, creating it over another connection could wait: behind a pooler, other transactions may
/// hold all connections.
pub(super) async fn create_transaction_containers(storage: &Storage) {
    if !matches!(storage.blob_powers().transaction_place, Some(TransactionPlace::Schema { .. })) {
        return;
    }
    let create = async || {
        for name in [CONTAINER, ONCE] {
            storage.blobs().create_container(&ContainerName::new(name)?).await?;
        }
        Ok::<_, Error>(())
    };
    // A role may lack the privilege and never need it. A failed creation is not retried for each further
    // queue, which would cost a timeout each time; the first transaction then creates the container.
    let create_once = async || {
        if let Err(error) = create().await {
            crate::log::debug!(error = %chain(&error), "the containers of blobs in transactions were not created");
        }
    };
    storage.transaction_containers().get_or_init(create_once).await;
}
