//! The service that layers wrap: a handler whose types are erased.
//!
//! It uses only the traits of `tower-service` and `tower-layer`, which have no features. If it used the crate
//! `tower`, an application that enables another feature of `tower` would recompile this crate.

use std::future::poll_fn;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use tower_service::Service;

use super::job::Job;
use crate::job::outcome::BoxError;

/// A running handler, including the layers around it.
pub(crate) type HandlerFuture = BoxFuture<'static, Result<(), BoxError>>;

/// A handler, together with the layers already put around it.
///
/// [`WorkerBuilder::layer`](crate::WorkerBuilder::layer) passes it to a layer. It is a
/// `tower_service::Service<Job>` whose response is `()` and whose error is a [`BoxError`]. A clone runs the
/// same handler.
pub struct JobService(Box<dyn CloneService>);

impl JobService {
    pub(crate) fn new<S>(inner: S) -> Self
    where
        S: Service<Job, Response = ()> + Clone + Send + Sync + 'static,
        S::Future: Send + 'static,
        S::Error: Into<BoxError>,
    {
        Self(Box::new(Boxed(inner)))
    }

    /// Returns a service that runs `function` for each job, and is always ready.
    pub(crate) fn from_fn<F>(function: F) -> Self
    where
        F: Fn(Job) -> HandlerFuture + Clone + Send + Sync + 'static,
    {
        Self(Box::new(FromFn(function)))
    }

    /// Waits until the service is ready, and runs it for one job.
    pub(crate) async fn oneshot(mut self, job: Job) -> Result<(), BoxError> {
        poll_fn(|context| self.poll_ready(context)).await?;
        self.call(job).await
    }
}

impl Clone for JobService {
    fn clone(&self) -> Self {
        self.0.boxed_clone()
    }
}

jobqueue_storage::debug_fields! {
    JobService {}
}

impl Service<Job> for JobService {
    type Response = ();
    type Error = BoxError;
    type Future = HandlerFuture;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, job: Job) -> HandlerFuture {
        self.0.call(job)
    }
}

trait CloneService: Service<Job, Response = (), Error = BoxError, Future = HandlerFuture> + Send + Sync {
    fn boxed_clone(&self) -> JobService;
}

impl<S> CloneService for S
where
    S: Service<Job, Response = (), Error = BoxError, Future = HandlerFuture> + Clone + Send + Sync + 'static,
{
    fn boxed_clone(&self) -> JobService {
        JobService(Box::new(self.clone()))
    }
}

/// Boxes the future and the error of a service.
#[derive(Clone)]
struct Boxed<S>(S);

impl<S> Service<Job> for Boxed<S>
where
    S: Service<Job, Response = ()>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
{
    type Response = ();
    type Error = BoxError;
    type Future = HandlerFuture;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, job: Job) -> HandlerFuture {
        let running = self.0.call(job);
        Box::pin(async move { running.await.map_err(Into::into) })
    }
}

#[derive(Clone)]
struct FromFn<F>(F);

impl<F: Fn(Job) -> HandlerFuture> Service<Job> for FromFn<F> {
    type Response = ();
    type Error = BoxError;
    type Future = HandlerFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, job: Job) -> HandlerFuture {
        (self.0)(job)
    }
}
