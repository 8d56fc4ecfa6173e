//! jobqueue on Azure Storage, as its users use it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jobqueue::azure::Options;
use jobqueue::{Event, JobError, Outcome, Queue, Storage, Worker};
use jobqueue_bench_harness::Result;
use jobqueue_test_support::azurite::connection_string;
use tokio::sync::Notify;

use crate::job::Thumbnail;
use crate::system::Place;

async fn handle(_: Thumbnail) -> std::result::Result<(), JobError> {
    Ok(())
}

#[derive(Debug, Clone)]
pub(crate) struct Framework {
    storage: Storage,
    queue: Queue<Thumbnail>,
}

impl Framework {
    pub(crate) async fn open(place: &Place, queue: &str) -> Result<Self> {
        let mut options = Options::from_connection_string(&connection_string(&place.queues, &place.blobs))?;
        if let Some(client) = &place.in_process {
            options = options.in_process(Arc::clone(client));
        }
        let storage = Storage::open(options).await?;
        let queue = storage.queue_named(queue).await?;
        Ok(Self { storage, queue })
    }

    pub(crate) async fn send(&self, job: &Thumbnail) -> Result<()> {
        self.queue.send(job).await?;
        Ok(())
    }

    pub(crate) async fn process(
        &self,
        jobs: u64,
        concurrency: usize,
        started: impl FnOnce() + Send + 'static,
    ) -> Result<()> {
        let (done, all) = (AtomicU64::new(0), Arc::new(Notify::new()));
        let (tell, started) = (Arc::clone(&all), Mutex::new(Some(started)));
        let worker = Worker::builder(self.storage.clone())
            .handle_on(self.queue.name().as_str(), handle)
            .concurrency(concurrency)
            .on_event(move |event| match event {
                Event::Listening { .. } => {
                    let started = started.lock().unwrap_or_else(PoisonError::into_inner).take();
                    started.into_iter().for_each(|started| started());
                }
                // The event follows the deletion of the message.
                Event::Finished { outcome: Outcome::Completed, .. }
                    if done.fetch_add(1, Ordering::AcqRel) + 1 == jobs =>
                {
                    tell.notify_one();
                }
                _ => {}
            })
            .build()?;
        // The caller wants the time of the last deletion; stopping comes after it and is not awaited.
        let until = Arc::clone(&all);
        let mut running = tokio::spawn(worker.run_until(std::future::pending()));
        tokio::select! {
            () = until.notified() => {
                running.abort();
                Ok(())
            }
            ended = &mut running => Err(format!("the worker ended: {ended:?}").into()),
        }
    }

    /// Runs a worker on the empty queue for some time.
    pub(crate) async fn idle(&self, time: Duration) -> Result<()> {
        let worker =
            Worker::builder(self.storage.clone()).handle_on(self.queue.name().as_str(), handle).build()?;
        let report = worker.run_until(tokio::time::sleep(time)).await?;
        if report.completed == 0 { Ok(()) } else { Err("the queue was not empty".into()) }
    }

    pub(crate) async fn close(self) -> Result<()> {
        Ok(self.storage.queues().delete_queue(self.queue.name()).await?)
    }
}
