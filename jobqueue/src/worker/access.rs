//! Finds out at the start whether the worker may do what it is going to.

use crate::claim_check::CONTAINER;
use crate::queue::Channel;
use crate::storage::{Access, StoreError, StoreErrorKind};
use crate::vocabulary::error::{Error, ErrorKind};
use crate::vocabulary::name::{ContainerName, QueueName};
use crate::vocabulary::outcome::chain;

/// Refuses to run on a queue, or without a dead-letter queue, that the worker lacks the right to use.
///
/// Large payloads are not every worker's business: what lacks for them is told, and the worker runs. So does one whose
/// storage cannot be asked just now.
pub(super) async fn check(channel: &Channel) -> Result<(), Error> {
    let (queues, blobs) = (channel.storage.queues(), channel.storage.blobs());
    verdict(&channel.name, queues.check_access(&channel.name, Access::Process).await)?;
    let grave = channel.name.dead_letter()?;
    verdict(&grave, queues.check_access(&grave, Access::Send).await)?;
    let container = ContainerName::new(CONTAINER)?;
    if let Err(error) = blobs.check_access(&container, Access::Process).await {
        let queue = &channel.name;
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
