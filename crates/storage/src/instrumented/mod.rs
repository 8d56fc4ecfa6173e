//! Wraps a storage so that its operations are reported and its load is measured.
//!
//! An observed operation is one [`StorageRequest`]. The storage's [`Throttle`] records every answer of the
//! queues. The wrapper changes no answer, but turns a panic of the storage, or of an interceptor of the
//! application, into an error, so that the code above need not expect panics. Requests that bypass
//! interceptors (orders of groups, links, upkeep, notifications) are called without that protection.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt as _;
use tokio::time::Instant;

use super::throttle::Throttle;
use super::{
    Call, Interceptor, Operation, StorageObserver, StorageRequest, StoreError, StoreErrorKind, Stores,
    Subject,
};
use crate::text::panic_text;

impl Stores {
    /// Returns this storage with an observer of its operations. `throttle` is the load of the storage, from
    /// which the observer gets the wait when the storage throttles.
    #[doc(hidden)]
    pub fn observed(&self, observer: Arc<dyn StorageObserver>, throttle: Arc<Throttle>) -> Self {
        let commits_together = self.queues.guarantees().commits_together;
        let observer = Some((observer, throttle));
        self.intercepted(&Arc::new(Instrumentation {
            observer,
            commits_together,
            ..Instrumentation::default()
        }))
    }

    /// Returns this storage and its load, which records every answer of the queues. A panic of the returned
    /// storage is an error.
    #[doc(hidden)]
    pub fn measured(self) -> (Self, Arc<Throttle>) {
        let throttle = Arc::new(Throttle::new(self.runtime.clone()));
        let instrumentation =
            Instrumentation { throttle: Some(Arc::clone(&throttle)), ..Instrumentation::default() };
        (self.intercepted(&Arc::new(instrumentation)), throttle)
    }
}

/// The work around each operation; by default none.
#[derive(Debug, Default)]
struct Instrumentation {
    /// Records the answers of the queues.
    throttle: Option<Arc<Throttle>>,
    /// The observer of every operation, and the load from which it gets the wait when the storage throttles.
    observer: Option<(Arc<dyn StorageObserver>, Arc<Throttle>)>,
    /// True if an operation on several messages is one request.
    commits_together: bool,
}

impl Instrumentation {
    fn note<T>(&self, operation: Operation, answer: &Result<T, StoreError>) {
        if let Some(throttle) = self.throttle.as_ref().filter(|_| !operation.is_of_blobs()) {
            throttle.note(answer, operation.can_wait());
        }
    }

    fn begin(&self) -> Option<Instant> {
        self.observer.is_some().then(Instant::now)
    }

    /// Reports to the observer an operation that took `requests` requests.
    fn report(
        &self,
        Call { operation, subject }: Call<'_>,
        requests: usize,
        began: Option<Instant>,
        error: Option<&StoreError>,
    ) {
        let Some(((observer, throttle), began)) = self.observer.as_ref().zip(began) else { return };
        observer.observe(&StorageRequest {
            operation,
            queue: match subject {
                Subject::Queue(queue) => Some(queue),
                Subject::Other(_) => None,
            },
            requests,
            took: began.elapsed(),
            error: error.map(StoreError::kind),
            throttled: error.filter(|error| error.is_throttled()).map(|_| throttle.left()),
        });
    }
}

impl Interceptor for Instrumentation {
    async fn call<T: Send>(
        &self,
        call: Call<'_>,
        perform: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let began = self.begin();
        let answer = AssertUnwindSafe(perform).catch_unwind().await;
        let answer = answer.unwrap_or_else(|panic| Err(panicked(call, &*panic)));
        self.note(call.operation, &answer);
        self.report(call, 1, began, answer.as_ref().err());
        answer
    }

    async fn call_all<T: Send>(
        &self,
        call: Call<'_>,
        count: usize,
        perform: impl Future<Output = Vec<Result<T, StoreError>>> + Send,
    ) -> Vec<Result<T, StoreError>> {
        let began = self.begin();
        let answers = AssertUnwindSafe(perform).catch_unwind().await;
        let answers =
            answers.unwrap_or_else(|panic| (0..count).map(|_| Err(panicked(call, &*panic))).collect());
        for answer in &answers {
            self.note(call.operation, answer);
        }
        let requests = if self.commits_together { 1 } else { count };
        let error = answers.iter().find_map(|answer| answer.as_ref().err());
        self.report(call, requests, began, error);
        answers
    }
}

/// Returns the error of a request that panicked, and so has no answer.
fn panicked(Call { operation, subject }: Call<'_>, panic: &(dyn Any + Send)) -> StoreError {
    StoreError::new(StoreErrorKind::Timeout, operation.as_str(), subject)
        .with_detail(format!("the storage panicked: {}", panic_text(panic)))
        .with_ambiguous(operation.is_change())
}
