//! Records the runs of a worker's handlers and the outcomes of its deliveries.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use jobqueue::__internals::{is_outage, is_snooze};
use jobqueue::Event;
use jobqueue::handler::{Job, JobService};
use scopeguard::guard;
use tower_layer::Layer;
use tower_service::Service;

use super::ledger::{Fact, RunEnd, subject};
use super::shared::Shared;

/// Records the start and the end of every run.
#[derive(Debug, Clone)]
pub(super) struct Observer {
    pub(super) shared: Arc<Shared>,
    pub(super) node: Arc<str>,
}

impl Observer {
    /// Records the outcome of a delivery.
    pub(super) fn record(&self, event: &Event) {
        let Event::Finished { job, outcome, .. } = event else { return };
        let id = job.as_ref().map(|job| subject(&job.source, &job.id));
        let (inserted, delivery) =
            job.as_ref().map_or((None, 0), |job| (Some(job.inserted), job.dequeue_count));
        self.shared.ledger.add(
            &self.node,
            id,
            Fact::Settled { inserted, delivery, outcome: outcome.clone() },
        );
    }
}

impl<S> Layer<S> for Observer {
    type Service = Observed<S>;

    fn layer(&self, inner: S) -> Observed<S> {
        Observed { inner, observer: self.clone() }
    }
}

/// A handler whose runs are recorded.
#[derive(Clone)]
pub(super) struct Observed<S> {
    inner: S,
    observer: Observer,
}

type Running = Pin<Box<dyn Future<Output = Result<(), jobqueue::job::BoxError>> + Send>>;

impl Service<Job> for Observed<JobService> {
    type Response = ();
    type Error = jobqueue::job::BoxError;
    type Future = Running;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), jobqueue::job::BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, job: Job) -> Running {
        let Observer { shared, node } = self.observer.clone();
        let (info, run) = (job.info(), shared.next_run());
        let id = subject(&info.source, &info.id);
        let began = Fact::RunBegan {
            run,
            inserted: info.inserted,
            delivery: info.dequeue_count,
            attempt: info.attempt,
            max_attempts: info.max_attempts,
        };
        shared.ledger.note_of(&node, &id, began);
        let running = self.inner.call(job);
        // Records the end also if the handler is dropped or panics.
        let mut end = guard(RunEnd::Dropped, move |end| {
            let end = if std::thread::panicking() { RunEnd::Failed } else { end };
            shared.ledger.note_of(&node, &id, Fact::RunEnded { run, end });
        });
        Box::pin(async move {
            let returned = running.await;
            *end = match &returned {
                Ok(()) => RunEnd::Done,
                Err(error) if is_snooze(error) => RunEnd::Snoozed,
                Err(error) if is_outage(error) => RunEnd::Outage,
                Err(_) => RunEnd::Failed,
            };
            returned
        })
    }
}
