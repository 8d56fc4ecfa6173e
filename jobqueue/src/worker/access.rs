//! Finds out at the start whether the worker may do what it is going to.

use crate::claim_check::CONTAINER;
use crate::error::{Error, ErrorKind};
use crate::job::outcome::chain;
use crate::name::{ContainerName, QueueName};
use crate::queue::QueueCore;
use crate::storage::{Access, StoreError, StoreErrorKind};

/// Refuses to run on a queue, or without a dead-letter queue, that the worker lacks the right to use.
///
/// Large payloads are not every worker's business: what lacks for them is told, and the worker runs. So does one whose
/// storage cannot be asked just now.
pub(super) async fn check(core: &QueueCore) -> Result<(), Error> {
    let (queues, blobs) = (core.storage.queues(), core.storage.blobs());
    verdict(&core.name, queues.check_access(&core.name, Access::Process).await)?;
    let dead_letter_queue = core.name.dead_letter()?;
    verdict(&dead_letter_queue, queues.check_access(&dead_letter_queue, Access::Send).await)?;
    let container = ContainerName::new(CONTAINER)?;
    if let Err(error) = blobs.check_access(&container, Access::Process).await {
        let queue = &core.name;
        tracing::warn!(%queue, error = %chain(&error), "large payloads cannot be used here");
    }
    Ok(())
}

fn verdict(queue: &QueueName, answer: Result<(), StoreError>) -> Result<(), Error> {
    match answer {
        Err(error) if error.kind() == StoreErrorKind::Unauthorized => {
            let text = format!("the worker may not do what it has to with the queue `{queue}`");
            Err(Error::new(ErrorKind::Storage, text).with_source(error))
        }
        Err(error) => {
            tracing::warn!(%queue, error = %chain(&error), "permissions could not be checked");
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}
