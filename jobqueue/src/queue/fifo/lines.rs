//! Lines in blobs, and the conditional writes that change them.

use std::sync::Arc;
use std::time::SystemTime;

use super::line::{Line, Standing, Ticket, address};
use crate::error::{Error, ErrorKind};
use crate::json_blob::{Edit, JsonBlob, is_raced};
use crate::name::{BlobName, ContainerName, QueueName};
use crate::storage::{BlobStore, MessageRef, StoreError, StoreErrorKind as Kind};

/// The container of the lines.
const CONTAINER: &str = "jobqueue-order";
const MAX_BYTES: u64 = 16 * 1024 * 1024;

/// The lines of a queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lines<'a> {
    blobs: &'a Arc<dyn BlobStore>,
    queue: &'a QueueName,
}

impl<'a> Lines<'a> {
    pub(crate) fn new(blobs: &'a Arc<dyn BlobStore>, queue: &'a QueueName) -> Self {
        Self { blobs, queue }
    }

    /// Gives a message a place at the end; false if there is no room.
    pub(super) async fn join(&self, ticket: &Ticket<'_>) -> Result<bool, Error> {
        self.change(ticket.key, |line| line.join(ticket)).await
    }

    /// Whether it is the message's turn. It joins its line if it has no place.
    pub(crate) async fn stand(&self, ticket: &Ticket<'_>, now: SystemTime) -> Result<Standing, Error> {
        self.change(ticket.key, |line| line.stand(ticket, now)).await
    }

    /// The job is done; false if a newer delivery has its turn.
    pub(crate) async fn finish(&self, ticket: &Ticket<'_>) -> Result<bool, Error> {
        self.change(ticket.key, |line| line.finish(ticket)).await
    }

    /// The message is to be moved elsewhere, or was taken back; false if a newer delivery has its turn.
    pub(crate) async fn leave(&self, ticket: &Ticket<'_>) -> Result<bool, Error> {
        self.change(ticket.key, |line| line.leave(ticket)).await
    }

    /// The message is about to be taken back.
    pub(super) async fn begin_cancellation(
        &self,
        ticket: &Ticket<'_>,
        message: &MessageRef,
        now: SystemTime,
    ) -> Result<(), Error> {
        self.change(ticket.key, |line| line.begin_cancellation(ticket, message, now)).await
    }

    /// The message was not taken back.
    pub(super) async fn keep(&self, ticket: &Ticket<'_>) -> Result<(), Error> {
        self.change(ticket.key, |line| line.keep(ticket)).await
    }

    /// Deletes all lines.
    pub(super) async fn clear(&self) -> Result<(), StoreError> {
        let container = self.container().map_err(|e| invalid(self.queue, e))?;
        let mut marker = None;
        loop {
            let page =
                self.blobs.list_blobs(&container, &format!("{}/", self.queue), marker.as_deref()).await;
            let page = match page {
                Err(e) if e.kind() == Kind::ContainerNotFound => return Ok(()),
                page => page?,
            };
            for (name, _) in page.blobs {
                let blob = BlobName::new(container.clone(), name).map_err(|e| invalid(self.queue, e))?;
                match self.blobs.delete_blob(&blob, None).await {
                    Err(e) if e.kind() != Kind::BlobNotFound => return Err(e),
                    _ => {}
                }
            }
            marker = page.next;
            if marker.is_none() {
                return Ok(());
            }
        }
    }

    fn container(&self) -> Result<ContainerName, crate::name::NameError> {
        ContainerName::new(CONTAINER)
    }

    async fn change<T>(&self, key: &str, mut change: impl FnMut(&mut Line) -> T) -> Result<T, Error> {
        let (number, _) = address(key);
        let name = BlobName::new(self.container()?, format!("{}/{number:04}", self.queue))?;
        let blob = JsonBlob::new(self.blobs, name, MAX_BYTES);
        let changed = blob.change(|before: Option<Line>| {
            let before = before.unwrap_or_default();
            let mut line = before.clone();
            let result = change(&mut line);
            if line == before { Edit::Keep(result) } else { Edit::Write(line, result) }
        });
        changed.await.map_err(unavailable)
    }
}

fn invalid(queue: &QueueName, source: impl std::error::Error + Send + Sync + 'static) -> StoreError {
    StoreError::new(Kind::InvalidInput, "change order", queue).with_source(source)
}

fn unavailable(error: StoreError) -> Error {
    let retryable = error.is_retryable() || error.is_ambiguous() || is_raced(error.kind());
    Error::new(ErrorKind::Storage, "the order of a key cannot be read or changed")
        .with_retryable(retryable)
        .with_source(error)
}
