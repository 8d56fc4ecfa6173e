//! A worker in the background, whose deliveries a test awaits one by one, in real time.

use std::time::Duration;

use jobqueue::{Event, JobInfo, Outcome, Report, WorkerBuilder};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// The time limit of a step of a test, generous enough for a busy machine.
const STEP_TIMEOUT: Duration = Duration::from_secs(120);

/// A worker that has started to poll.
#[derive(Debug)]
pub struct Running {
    stop: oneshot::Sender<()>,
    worker: JoinHandle<Result<Report, jobqueue::Error>>,
    events: mpsc::UnboundedReceiver<Event>,
}

/// The end of a delivery.
#[derive(Debug)]
pub struct Ended {
    /// The job, if the message contained one.
    pub job: Option<JobInfo>,
    /// The outcome of the delivery.
    pub outcome: Outcome,
    /// The error, if there was one.
    pub error: Option<String>,
}

impl Ended {
    /// Returns the name of the outcome.
    pub fn name(&self) -> &'static str {
        self.outcome.as_str()
    }
}

impl Running {
    /// Starts the worker and waits until it polls.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn start(builder: WorkerBuilder) -> Self {
        let (sender, events) = mpsc::unbounded_channel();
        let listener = move |event: &Event| drop(sender.send(event.clone()));
        let worker = builder.on_event(listener).build().expect("a worker that fits together");
        let (stop, stopped) = oneshot::channel();
        let worker = tokio::spawn(worker.run_until(async { drop(stopped.await) }));
        let mut running = Self { stop, worker, events };
        running.until(|event| matches!(event, Event::Listening { .. }).then_some(())).await;
        running
    }

    /// Returns the next event for which `find` returns a value.
    ///
    /// # Panics
    /// If no such event occurs within two minutes.
    pub async fn until<T>(&mut self, find: impl Fn(Event) -> Option<T>) -> T {
        let next = async {
            loop {
                let event = self.events.recv().await.expect("a worker that still runs");
                if let Some(found) = find(event) {
                    return found;
                }
            }
        };
        tokio::time::timeout(STEP_TIMEOUT, next).await.expect("what is waited for happens")
    }

    /// Returns the end of the next delivery.
    pub async fn ended(&mut self) -> Ended {
        self.until(|event| match event {
            Event::Finished { job, outcome, error, .. } => {
                Some(Ended { job: job.map(|job| (*job).clone()), outcome, error })
            }
            _ => None,
        })
        .await
    }

    /// Stops the worker.
    ///
    /// # Panics
    /// If the worker does not stop, or failed.
    pub async fn stop(self) -> Report {
        drop(self.stop);
        let report = tokio::time::timeout(STEP_TIMEOUT, self.worker).await.expect("a worker that stops");
        report.expect("no panic").expect("a worker that ran")
    }
}
