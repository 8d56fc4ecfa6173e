//! Checks at start which permissions a signature or role lacks.
//!
//! The service checks permissions first. An operation on a message or blob that cannot exist, or with an
//! impossible argument, therefore changes nothing but still shows the permission: 403 means that it is
//! missing, any other refusal that it is present.

use azure_storage_queue::models::{
    QueueClientDeleteMessageOptions, QueueClientSendMessageOptions, QueueClientUpdateMessageOptions,
};
use bytes::Bytes;

use super::call::{Call, with_receipt};
use super::connection::Connection;
use super::error::{self, BLOBS_ROLE, QUEUES_ROLE};
use super::pipeline::PLACEHOLDER;
use super::xml;
use jobqueue_storage::{
    Access, BlobName, ContainerName, LeaseId, PopReceipt, QueueName, StoreError, StoreErrorKind,
};

/// An id that no message has.
const NO_MESSAGE: &str = "00000000-0000-0000-0000-000000000000";

/// A permission and its purpose.
struct Permission {
    letter: char,
    purpose: &'static str,
}

const READ: Permission = Permission { letter: 'r', purpose: "read settings and lengths" };
const ADD: Permission = Permission { letter: 'a', purpose: "send messages and dead letters" };
const UPDATE: Permission = Permission { letter: 'u', purpose: "extend leases, save checkpoints and retry" };
const PROCESS: Permission = Permission { letter: 'p', purpose: "receive and complete messages" };

/// Tries the operations of `access` on `queue`.
pub(super) async fn queue(
    connection: &Connection,
    queue: &QueueName,
    access: Access,
) -> Result<(), StoreError> {
    let call = Call::reads("probe permissions", queue);
    let mut missing = Missing::default();
    let client = connection.queue(queue).map_err(|_| call.refuse("the queue has no address"))?;
    missing.record(READ, call.run(async { client.get_properties(None).await.map(drop) }).await)?;
    // No message lives for 0 seconds: the service refuses the argument only if sending is allowed.
    let body = Bytes::from(xml::write_message("probe"));
    let options = QueueClientSendMessageOptions {
        message_time_to_live: Some(0),
        ..QueueClientSendMessageOptions::default()
    };
    let send = client.send_message(body.into(), Some(options));
    missing.record(ADD, call.run(async { send.await.map(drop) }).await)?;
    if access == Access::Process {
        let none = PopReceipt::new(NO_MESSAGE);
        let options = QueueClientUpdateMessageOptions {
            method_options: with_receipt(&none),
            ..QueueClientUpdateMessageOptions::default()
        };
        let update = client.update_message(NO_MESSAGE, PLACEHOLDER, 0, Some(options));
        missing.record(UPDATE, call.run(async { update.await.map(drop) }).await)?;
        let options = QueueClientDeleteMessageOptions {
            method_options: with_receipt(&none),
            ..QueueClientDeleteMessageOptions::default()
        };
        let delete = client.delete_message(NO_MESSAGE, PLACEHOLDER, Some(options));
        missing.record(PROCESS, call.run(async { delete.await.map(drop) }).await)?;
    }
    missing.into_result(call, QUEUES_ROLE)
}

/// Tries the operations in `container` that large payloads, leases and fan-out need.
pub(super) async fn blobs(
    connection: &Connection,
    container: &ContainerName,
    access: Access,
) -> Result<(), StoreError> {
    let call = Call::reads("probe permissions", container);
    let mut missing = Missing::default();
    let blob =
        BlobName::new(container.clone(), format!("probe/{}", LeaseId::random(connection.runtime()).expose()))
            .map_err(|error| call.refuse(error.to_string()))?;
    let client = connection.blob(&blob);
    let write = Permission { letter: 'w', purpose: "write large payloads and hold leases" };
    missing.record(write, call.run(async { client.acquire_lease(15, None).await.map(drop) }).await)?;
    if access == Access::Process {
        let read = Permission { letter: 'r', purpose: "read large payloads" };
        missing.record(read, call.run(async { client.get_properties(None).await.map(drop) }).await)?;
        let delete = Permission { letter: 'd', purpose: "delete large payloads" };
        missing.record(delete, call.run(async { client.delete(None).await.map(drop) }).await)?;
    }
    missing.into_result(call, BLOBS_ROLE)
}

/// The permissions that were refused so far.
#[derive(Default)]
struct Missing {
    permissions: Vec<Permission>,
    tried: usize,
    refusal: Option<StoreError>,
}

impl Missing {
    /// Records the answer. Failures that are neither success nor refusal are returned.
    fn record(&mut self, permission: Permission, answer: Result<(), StoreError>) -> Result<(), StoreError> {
        self.tried += 1;
        match answer {
            Err(error) if error.kind() == StoreErrorKind::Unauthorized => {
                self.permissions.push(permission);
                self.refusal = Some(error);
                Ok(())
            }
            Err(error) if error.is_retryable() => Err(error),
            _ => Ok(()),
        }
    }

    fn into_result(self, call: Call<'_>, role: &str) -> Result<(), StoreError> {
        let Some(refusal) = self.refusal else { return Ok(()) };
        // All were refused, so the key, the token or the clock is wrong: the service's own reason shows
        // which.
        if self.permissions.len() == self.tried {
            return Err(refusal);
        }
        let needed: Vec<_> = self
            .permissions
            .iter()
            .map(|missing| format!("{:?} ({})", missing.letter, missing.purpose))
            .collect();
        Err(call
            .error(StoreErrorKind::Unauthorized)
            .with_detail(error::missing(needed.join(", "), role))
            .with_source(refusal))
    }
}
