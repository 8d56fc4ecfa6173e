//! Checks at the start of a worker whether it has the permissions that it needs.

use crate::claim_check::CONTAINER;
use crate::error::{Error, ErrorKind};
use crate::job::outcome::chain;
use crate::queue_core::QueueCore;
use crate::storage::{Access, ContainerName, QueueName, StoreError, StoreErrorKind};

/// Fails if the worker lacks a permission for the queue or for its dead-letter queue.
///
/// Only logs a warning if a permission for blobs is missing, because not every worker handles large payloads,
/// or if the storage cannot check permissions now.
pub(super) async fn check(core: &QueueCore) -> Result<(), Error> {
    let queues = core.storage.queues();
    require_access(&core.name, queues.check_access(&core.name, Access::Process).await)?;
    let dead_letter_queue = core.name.dead_letter()?;
    require_access(&dead_letter_queue, queues.check_access(&dead_letter_queue, Access::Send).await)?;
    let container = ContainerName::new(CONTAINER)?;
    if let Err(error) = core.storage.stores().check_blob_access(&container, Access::Process).await {
        let queue = &core.name;
        crate::log::warn!(%queue, error = %chain(&error), "no access to large payloads");
    }
    Ok(())
}

fn require_access(queue: &QueueName, answer: Result<(), StoreError>) -> Result<(), Error> {
    match answer {
        Err(error) if error.kind() == StoreErrorKind::Unauthorized => {
            let text = format!("the worker lacks permissions for the queue `{queue}`");
            Err(Error::new(ErrorKind::Storage, text).with_source(error))
        }
        Err(error) => {
            crate::log::warn!(%queue, error = %chain(&error), "permissions could not be checked");
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}
