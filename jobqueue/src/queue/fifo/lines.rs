//! Lines in blobs, and the conditional writes that change them.

use std::time::{Duration, SystemTime};

use bytes::Bytes;

use super::line::{Line, Standing, Ticket, address};
use crate::entropy;
use crate::error::{Error, ErrorKind};
use crate::name::{BlobName, ContainerName, QueueName};
use crate::storage::{BlobStore, Condition, MessageRef, PutBlob, StoreError, StoreErrorKind as Kind};

/// The container of the lines.
const CONTAINER: &str = "jobqueue-order";
const MAX_BYTES: u64 = 16 * 1024 * 1024;
/// How often a change is tried that others are quicker than.
const TRIES: u32 = 40;
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// The lines of a queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lines<'a> {
    blobs: &'a dyn BlobStore,
    queue: &'a QueueName,
}

impl<'a> Lines<'a> {
    pub(crate) fn new(blobs: &'a dyn BlobStore, queue: &'a QueueName) -> Self {
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

    /// Reads a key's line, changes it, and writes it back unless somebody else has changed it meanwhile; then again.
    /// `change` may be applied to what it has changed already: a write whose answer was lost.
    async fn change<T>(&self, key: &str, mut change: impl FnMut(&mut Line) -> T) -> Result<T, Error> {
        let (number, _) = address(key);
        let blob = BlobName::new(self.container()?, format!("{}/{number:04}", self.queue))?;
        let mut failure = None;
        for attempt in 0..TRIES {
            if attempt > 0 {
                let longest = Duration::from_millis(2 << attempt.min(8)).min(LONGEST_PAUSE);
                let pause = entropy::jitter(longest, 0.2..1.0);
                tokio::time::sleep(pause).await;
            }
            match self.change_once(&blob, &mut change).await {
                Ok(Ok(result)) => return Ok(result),
                Ok(Err(error)) => return Err(error),
                Err(e) if raced(e.kind()) || e.is_ambiguous() => failure = Some(e),
                // What asks for patience gets a little: the message is put back, or the sender told.
                Err(e) if e.is_retryable() && attempt < 4 => failure = Some(e),
                Err(e) => return Err(unavailable(e)),
            }
        }
        Err(failure.map_or_else(|| Error::new(ErrorKind::Storage, "the order was not changed"), unavailable))
    }

    async fn change_once<T>(
        &self,
        blob: &BlobName,
        change: &mut impl FnMut(&mut Line) -> T,
    ) -> Result<Result<T, Error>, StoreError> {
        let (before, condition) = match self.blobs.get_blob(blob, MAX_BYTES).await {
            Ok(found) => match serde_json::from_slice::<Line>(&found.data) {
                Ok(line) => (line, Condition::IfMatch(found.properties.etag)),
                Err(e) => {
                    let text = format!("the order in `{blob}` is damaged; clear the queue or delete it");
                    return Ok(Err(Error::new(ErrorKind::Undecodable, text).with_source(e)));
                }
            },
            Err(e) if matches!(e.kind(), Kind::BlobNotFound | Kind::ContainerNotFound) => {
                (Line::default(), Condition::IfAbsent)
            }
            Err(e) => return Err(e),
        };
        let mut line = before.clone();
        let result = change(&mut line);
        if line != before {
            let data = serde_json::to_vec(&line).map_err(|e| invalid(self.queue, e))?;
            let (data, options) = (Bytes::from(data), PutBlob::new().with_condition(condition));
            match self.blobs.put_blob(blob, data.clone(), options.clone()).await {
                Err(e) if e.kind() == Kind::ContainerNotFound => {
                    self.blobs.create_container(blob.container()).await?;
                    self.blobs.put_blob(blob, data, options).await?;
                }
                written => drop(written?),
            }
        }
        Ok(Ok(result))
    }
}

/// Somebody else was quicker.
fn raced(kind: Kind) -> bool {
    matches!(kind, Kind::ConditionNotMet | Kind::BlobAlreadyExists | Kind::BlobNotFound)
}

fn invalid(queue: &QueueName, source: impl std::error::Error + Send + Sync + 'static) -> StoreError {
    StoreError::new(Kind::InvalidInput, "change order", queue).with_source(source)
}

fn unavailable(error: StoreError) -> Error {
    let retryable = error.is_retryable() || error.is_ambiguous() || raced(error.kind());
    Error::new(ErrorKind::Storage, "the order of a key cannot be read or changed")
        .with_retryable(retryable)
        .with_source(error)
}
