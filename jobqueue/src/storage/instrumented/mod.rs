//! Wraps a storage so that its operations are traced, and its load is measured.
//!
//! An observed operation is one [event](Event::StorageRequest). A traced operation is one span at DEBUG level, with OpenTelemetry's
//! messaging names. It contains the names of queues and blobs; it never contains receipts, lease ids, metadata or payloads. The [`Throttle`]
//! of the storage takes note of every answer of the queues. The wrapper changes no answer.

mod blobs;
mod queues;

use std::fmt;
use std::sync::Arc;

use tokio::time::Instant;
use tracing::{Instrument, Span, debug_span, field};

use super::throttle::Throttle;
use super::{BlobStore, Operation, QueueStore, Storage, StoreError};
use crate::event::{Event, Observers};
use crate::name::QueueName;

/// Returns `storage` with a span for each operation; `system` is the value of `messaging.system`, such as `sqlite`.
///
/// Both are one storage: when it throttles one of them, users of the other wait too.
pub fn traced(storage: &Storage, system: &'static str) -> Storage {
    storage.wrapped(
        Arc::new(Instrumented { system: Some(system), ..Instrumented::of(storage.queues()) }),
        Arc::new(Instrumented { system: Some(system), ..Instrumented::of(storage.blobs()) }),
    )
}

/// One half of a storage whose operations are observed.
#[derive(Debug)]
pub(super) struct Instrumented<S: ?Sized> {
    inner: Arc<S>,
    /// The load that takes note of the answers.
    throttle: Option<Arc<Throttle>>,
    /// The system that spans name. Without it there are no spans.
    system: Option<&'static str>,
    /// Those who hear of every operation, and the load that they are told of when the storage throttles.
    observers: Option<(Arc<Observers>, Arc<Throttle>)>,
}

/// The subject of an operation.
#[derive(Clone, Copy)]
enum Subject<'a> {
    Queue(&'a QueueName),
    Other(&'a (dyn fmt::Display + Sync)),
}

impl fmt::Display for Subject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queue(queue) => queue.fmt(f),
            Self::Other(other) => other.fmt(f),
        }
    }
}

impl Instrumented<dyn QueueStore> {
    /// Returns queues whose answers `throttle` takes note of.
    pub(super) fn measured(inner: Arc<dyn QueueStore>, throttle: Arc<Throttle>) -> Self {
        Self { throttle: Some(throttle), ..Self::of(&inner) }
    }

    /// Returns the halves of a storage whose operations the observers hear of.
    pub(super) fn observed(
        storage: &Storage,
        observers: Arc<Observers>,
    ) -> (Arc<dyn QueueStore>, Arc<dyn BlobStore>) {
        let observers = Some((observers, Arc::clone(storage.shared_throttle())));
        let blobs = Instrumented { observers: observers.clone(), ..Instrumented::of(storage.blobs()) };
        (Arc::new(Instrumented { observers, ..Instrumented::of(storage.queues()) }), Arc::new(blobs))
    }
}

impl<S: ?Sized> Instrumented<S> {
    /// Returns a wrapper that does nothing yet.
    fn of(inner: &Arc<S>) -> Self {
        Self { inner: Arc::clone(inner), throttle: None, system: None, observers: None }
    }

    /// Returns a wrapper around another store that does the same.
    fn around(&self, inner: Arc<S>) -> Self {
        Self {
            inner,
            throttle: self.throttle.clone(),
            system: self.system,
            observers: self.observers.clone(),
        }
    }

    fn span(&self, operation: Operation, subject: Subject<'_>) -> Span {
        let Some(system) = self.system else { return Span::none() };
        debug_span!(
            "storage",
            messaging.system = system,
            messaging.destination.name = %subject,
            messaging.operation.name = operation.as_str(),
            error.type = field::Empty,
        )
    }

    fn note<T>(&self, operation: Operation, answer: &Result<T, StoreError>) {
        if let Some(throttle) = &self.throttle {
            throttle.note(answer, operation.can_wait());
        }
    }

    /// Returns the time if somebody hears of the operation.
    fn begin(&self) -> Option<Instant> {
        self.observers.is_some().then(Instant::now)
    }

    /// Tells the observers of an operation that took as many requests.
    fn tell(
        &self,
        (operation, subject): (Operation, Subject<'_>),
        requests: usize,
        began: Option<Instant>,
        error: Option<&StoreError>,
    ) {
        let Some(((observers, throttle), began)) = self.observers.as_ref().zip(began) else { return };
        observers.tell(|| Event::StorageRequest {
            operation: operation.as_str(),
            queue: match subject {
                Subject::Queue(queue) => Some(queue.clone()),
                Subject::Other(_) => None,
            },
            requests,
            took: began.elapsed(),
            error: error.map(|error| error.kind().as_str()),
        });
        if error.is_some_and(StoreError::is_throttled) {
            observers.tell(|| Event::Throttled { wait: throttle.left() });
        }
    }

    async fn observe<T>(
        &self,
        operation: Operation,
        subject: Subject<'_>,
        answer: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let (span, began) = (self.span(operation, subject), self.begin());
        let answer = answer.instrument(span.clone()).await;
        self.note(operation, &answer);
        self.tell((operation, subject), 1, began, answer.as_ref().err());
        if let Err(error) = &answer {
            span.record("error.type", field::debug(error.kind()));
        }
        answer
    }

    /// Observes an operation on several messages, which is one request if `is_one`.
    async fn observe_all<T>(
        &self,
        operation: Operation,
        queue: &QueueName,
        is_one: bool,
        answers: impl Future<Output = Vec<Result<T, StoreError>>> + Send,
    ) -> Vec<Result<T, StoreError>> {
        let began = self.begin();
        let answers = answers.instrument(self.span(operation, Subject::Queue(queue))).await;
        answers.iter().for_each(|answer| self.note(operation, answer));
        let requests = if is_one { 1 } else { answers.len() };
        let error = answers.iter().find_map(|answer| answer.as_ref().err());
        self.tell((operation, Subject::Queue(queue)), requests, began, error);
        answers
    }
}
