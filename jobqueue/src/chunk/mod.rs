//! Handlers that take several jobs in one call, for work that costs little more for a hundred jobs than for
//! one.
//!
//! [`WorkerBuilder::handle_many`] registers an ordinary handler whose runs meet. Each job has its own
//! delivery, with its lease, slot, attempt and end. Its run waits for the verdict of the call that the job
//! takes part in. One of these runs polls the call, so the call ends with the last run, and no task outlives
//! them.

mod collector;
mod handler;
mod job;

use std::sync::Arc;
use std::time::Duration;

use crate::clock::WITHOUT_END;
use crate::error::{Error, ErrorKind};
use crate::handler::Registration;
use crate::message::QueueMessage;
use crate::worker::WorkerBuilder;
use collector::Collector;

pub use handler::ChunkHandler;
pub use job::ChunkJob;

/// The maximum number of jobs in one call of a handler (a *chunk*), and how long the first job waits for
/// others. [`WorkerBuilder::handle_many`] also takes a plain number as the maximum.
///
/// ```
/// use jobqueue::chunk::ChunkOptions;
/// use std::time::Duration;
///
/// let options = ChunkOptions::new(100).linger(Duration::from_millis(200));
/// # let _ = options;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkOptions {
    max: usize,
    linger: Duration,
}

impl ChunkOptions {
    /// Returns options for chunks of up to `max` jobs.
    pub fn new(max: usize) -> Self {
        Self { max, linger: Duration::from_millis(20) }
    }

    jobqueue_storage::setters! {
        /// Sets how long the first job of a chunk waits for others. The default is 20 milliseconds, which is
        /// enough for the jobs of one fetch to meet. A full chunk does not wait. A waiting job holds its slot
        /// and its lease, and the wait counts towards its run time. A shutdown waits for it too, so keep it
        /// far below the [`shutdown_timeout`](WorkerBuilder::shutdown_timeout).
        linger(linger: Duration) = linger.min(WITHOUT_END);
    }
}

impl From<usize> for ChunkOptions {
    fn from(max: usize) -> Self {
        Self::new(max)
    }
}

impl WorkerBuilder {
    /// Adds a handler that takes several jobs in one call, on the queue of their type:
    /// `async fn(Vec<ChunkJob<M>>, State<T>…) -> Result<(), JobError>`. Use it for a database or a service
    /// that accepts many rows in one request.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use jobqueue::chunk::ChunkJob;
    /// use jobqueue::{JobError, QueueMessage, Storage, Worker};
    /// use serde::{Deserialize, Serialize};
    ///
    /// #[derive(Serialize, Deserialize, QueueMessage)]
    /// #[message(queue = "readings", kind = "reading")]
    /// struct Reading { celsius: f64 }
    ///
    /// async fn store(readings: Vec<ChunkJob<Reading>>) -> Result<(), JobError> {
    ///     println!("one INSERT of {} rows", readings.len());
    ///     for reading in readings {
    ///         if reading.message.celsius < -273.15 {
    ///             reading.fail(JobError::dead_letter("colder than possible"));     // this job alone
    ///         }
    ///     }
    ///     Ok(())                                                                   // all others
    /// }
    ///
    /// let storage = Storage::memory();
    /// let sent = [20.5, -300.0, 19.0].map(|celsius| Reading { celsius });
    /// storage.queue::<Reading>().await?.send_all(&sent).await?.into_result()?;
    /// let report = Worker::builder(storage).handle_many(50, store).build()?.run_until_idle().await?;
    /// assert_eq!((report.completed, report.dead_lettered), (2, 1));
    /// # Ok(()) }
    /// ```
    ///
    /// A call begins when its chunk is full, or when its first job has waited for the
    /// [linger](ChunkOptions::linger). Several calls may run concurrently.
    ///
    /// **Each job has its own end.** [`ChunkJob::complete`] and [`ChunkJob::fail`] end one job at once; the
    /// result of the function applies to all jobs without their own verdict. `Err` or a panic fails each of
    /// these jobs, and costs it an attempt.
    ///
    /// **A job that failed is retried alone,** so that it can neither fail its neighbours again, nor take
    /// them along if it kills its process. Only first deliveries share a call, and only of jobs that were not
    /// redriven and that may fail once without becoming dead letters; a delivery that was put back uncounted
    /// does not count. For the same reason,
    /// [`JobError::dead_letter`](crate::JobError::dead_letter) from the function or from a
    /// [retry policy](Self::retry_policy) is a retry for jobs that share the call; `fail` decides about one
    /// job. A policy that dead-letters panics or overlong runs does so for every job of the call. The queue's
    /// [circuit breaker](Self::circuit_breaker) opens only after more failures than one call has jobs.
    ///
    /// **Leases, slots, limits, cancellation and events belong to each job.** A job that is cancelled, or has
    /// lost its lease, before the call is left out of it. During the call the [token](crate::Context::token)
    /// of its context fires, and the other jobs go on. If the function skips a job because of that, end the
    /// job with [`fail`](ChunkJob::fail): `Ok` would complete it, and at a shutdown the tokens of all jobs
    /// fire. The call has the trace of its first job; its log lines are in the span of one of its jobs.
    ///
    /// [`build`](Self::build) fails if the chunk size is 0, or larger than the number of jobs that may run at
    /// once. Set the [`concurrency`](Self::concurrency), 64 by default, to a multiple of the chunk size.
    ///
    /// # Panics
    /// A panic of the function fails the jobs of the call, as a panic of an ordinary handler fails its job;
    /// the worker goes on.
    ///
    /// # Cancel safety
    /// The function's future is dropped as soon as all its jobs have left: each has its verdict, or its
    /// [grace](Self::cancel_grace) is over after it lost its lease, was cancelled, exceeded its run time or
    /// was ended by a shutdown.
    pub fn handle_many<A: 'static, H: ChunkHandler<A>>(
        self,
        options: impl Into<ChunkOptions>,
        handler: H,
    ) -> Self {
        self.handle_many_on(H::Message::QUEUE, options, handler)
    }

    /// Like [`handle_many`](Self::handle_many), but on another queue.
    pub fn handle_many_on<A: 'static, H: ChunkHandler<A>>(
        self,
        queue: impl Into<String>,
        options: impl Into<ChunkOptions>,
        handler: H,
    ) -> Self {
        let options = options.into();
        if options.max == 0 {
            let text = format!("chunks of 0 jobs run nothing of `{}`; give at least 1", H::Message::KIND);
            return self.mistaken(Error::new(ErrorKind::Configuration, text));
        }
        let collector = Arc::new(Collector::new(options, handler));
        let take = move |job, message| Arc::clone(&collector).take(job, message);
        self.register(queue.into(), Registration::in_chunks(options.max, H::check, take))
    }
}
