//! Erases the message type of handlers: typed outside, untyped inside.

use std::any::{Any, type_name};
use std::error::Error as StdError;
use std::fmt;
use std::future::ready;

use bytes::Bytes;
use futures_util::future::BoxFuture;

use super::extract::{ExtractError, States};
use super::function::{Handler, sealed};
use super::job::Job;
use super::service::{HandlerFuture, JobService};
use crate::codec::decode_any_version;
use crate::error::{Error, ErrorKind};
use crate::job::outcome::{BoxError, JobError, Verdict};
use crate::message::{DecodeError, MessageDefaults, QueueMessage};
use crate::presence::EVERY_KIND;
use crate::storage::StoreError;

/// Decodes a payload of the given version, or of an unknown version, as the handler's message. Also returns
/// the version.
type Decode = fn(Option<u32>, Option<&str>, &[u8]) -> Result<(u32, Box<dyn Any + Send>), DecodeError>;

/// A handler without its types.
pub(crate) struct Registration {
    /// The name of the message type, for texts.
    pub(crate) message_type: &'static str,
    pub(crate) queue: &'static str,
    pub(crate) kind: &'static str,
    /// The kinds of messages that the handler takes. Its own kind is the first.
    pub(crate) kinds: Vec<&'static str>,
    /// True for a relay, which takes messages of every kind.
    pub(crate) takes_all: bool,
    pub(crate) defaults: MessageDefaults,
    /// The newest version that `decode` reads.
    pub(crate) newest: u32,
    pub(crate) decode: Decode,
    pub(crate) check: fn(&States) -> Result<(), ExtractError>,
    /// The maximum number of jobs in one call of the handler.
    pub(crate) chunk: usize,
    pub(crate) service: JobService,
}

impl Registration {
    pub(crate) fn new<A: 'static, H: Handler<A>>(handler: H) -> Self {
        let service = JobService::from_fn(move |mut job: Job| match job.take_message::<H::Message>() {
            Some(message) => running(handler.call(message, &job, sealed::Token)),
            None => failed(ran_twice()),
        });
        Self::of_message::<H::Message>(H::check, service)
    }

    /// Registers a handler whose calls take up to `max` jobs. `handler` adds a job to such a call.
    pub(crate) fn in_chunks<M, H>(
        max: usize,
        check: fn(&States) -> Result<(), ExtractError>,
        handler: H,
    ) -> Self
    where
        M: QueueMessage,
        H: Fn(Job, M) -> BoxFuture<'static, Result<(), JobError>> + Clone + Send + Sync + 'static,
    {
        Self { chunk: max, ..Self::of_message::<M>(check, service_of(handler)) }
    }

    fn of_message<M: QueueMessage>(
        check: fn(&States) -> Result<(), ExtractError>,
        service: JobService,
    ) -> Self {
        Self {
            message_type: type_name::<M>(),
            queue: M::QUEUE,
            kind: M::KIND,
            kinds: M::kinds(),
            takes_all: false,
            defaults: M::DEFAULTS,
            newest: M::VERSION,
            decode: |version, media_type, data| {
                decode_any_version::<M>(version, media_type, data)
                    .map(|(version, message)| (version, Box::new(message) as Box<dyn Any + Send>))
            },
            check,
            chunk: 1,
            service,
        }
    }

    /// Registers a handler for events of every kind. It receives the payload undecoded.
    pub(crate) fn of_every_kind<H>(handler: H) -> Self
    where
        H: Fn(Job, Bytes) -> BoxFuture<'static, Result<(), JobError>> + Clone + Send + Sync + 'static,
    {
        Self {
            message_type: EVERY_KIND,
            queue: "",
            kind: EVERY_KIND,
            kinds: vec![EVERY_KIND],
            takes_all: true,
            defaults: MessageDefaults::new(),
            newest: u32::MAX,
            decode: |version, _, data| Ok((version.unwrap_or(1), Box::new(Bytes::copy_from_slice(data)))),
            check: |_| Ok(()),
            chunk: 1,
            service: service_of(handler),
        }
    }

    pub(crate) fn accepts(&self, kind: &str) -> bool {
        self.takes_all || self.kinds.contains(&kind)
    }
}

fn service_of<M, H>(handler: H) -> JobService
where
    M: 'static,
    H: Fn(Job, M) -> BoxFuture<'static, Result<(), JobError>> + Clone + Send + Sync + 'static,
{
    JobService::from_fn(move |mut job: Job| {
        let Some(message) = job.take_message() else { return failed(ran_twice()) };
        let running = handler(job, message);
        Box::pin(async move { running.await.map_err(failure) })
    })
}

fn running(started: Result<HandlerFuture, ExtractError>) -> HandlerFuture {
    started.unwrap_or_else(|error| failed(JobError::retry(error)))
}

fn failed(error: JobError) -> HandlerFuture {
    Box::pin(ready(Err(failure(error))))
}

/// Returns the error of a layer that calls its service twice: the first call has consumed the message.
fn ran_twice() -> JobError {
    JobError::retry("a layer ran the handler twice; retry by the queue instead")
}

jobqueue_storage::debug_fields! {
    Registration { queue, kind }
}

/// Carries a handler's error through tower's layers, which use boxed errors.
struct Failure(JobError);

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source().source()
    }
}

/// Wraps a handler's error for the layers.
pub(super) fn failure(error: JobError) -> BoxError {
    Box::new(Failure(error))
}

/// Returns whether a handler's error asks for a later delivery without counting an attempt.
pub fn is_snooze(error: &BoxError) -> bool {
    let failure = error.downcast_ref::<Failure>();
    failure.is_some_and(|failure| matches!(failure.0.verdict(), Verdict::Snooze(_)))
}

/// Returns whether the handler failed because the storage did: it returned an error from a call of this
/// framework that may succeed later and was caused by an answer of the storage, that refused a send for now
/// (also because its codec lacks a key), or whose answer was lost. An error that wraps such an error counts
/// as the application's own.
pub fn is_outage(error: &BoxError) -> bool {
    let Some(Failure(failure)) = error.downcast_ref::<Failure>() else { return false };
    let own: &(dyn StdError + 'static) = failure.source();
    let Some(error) = own.downcast_ref::<Error>().filter(|_| failure.verdict() == Verdict::Retry) else {
        return false;
    };
    match error.kind() {
        ErrorKind::LeaseUncertain => true,
        // A refusal without an answer of the storage is back-pressure: the log of a key is full. Or the codec
        // of the message cannot encode now.
        ErrorKind::Unknown | ErrorKind::Rejected => error.is_retryable(),
        _ => error.is_retryable() && StoreError::in_chain(error).is_some(),
    }
}

/// Returns the handler's error unchanged. An error of a layer becomes a failure that is retried.
pub(crate) fn recover(error: BoxError) -> JobError {
    match error.downcast::<Failure>() {
        Ok(failure) => failure.0,
        Err(other) => JobError::retry(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn back_pressure_is_not_a_job_failure() {
        let is_outage = |kind, retryable| {
            let error = Error::new(kind, "the log of its key is full").with_retryable(retryable);
            is_outage(&failure(JobError::from(error)))
        };
        assert!(is_outage(ErrorKind::Rejected, true));
        assert!(!is_outage(ErrorKind::Rejected, false));
        assert!(!is_outage(ErrorKind::Conflict, true));
    }
}
