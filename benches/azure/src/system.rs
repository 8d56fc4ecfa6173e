//! The measured systems: jobqueue and the bare loop.

use std::sync::Arc;

use azure_core::http::HttpClient;
use clap::ValueEnum;
use jobqueue_bench_harness::Result;

use crate::framework::Framework;
use crate::job::{Size, Thumbnail};
use crate::sdk::Sdk;

/// The number of tasks that send at once.
pub(crate) const SENDERS: u64 = 16;
/// The number of handlers that run at once.
pub(crate) const HANDLERS: usize = 64;

/// The measured system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// The framework.
    Jobqueue,
    /// The bare loop.
    Sdk,
}

impl Kind {
    pub(crate) const BOTH: [Self; 2] = [Self::Jobqueue, Self::Sdk];

    /// Returns the name of the system in figures.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Jobqueue => "jobqueue",
            Self::Sdk => "sdk",
        }
    }
}

/// The address of an account.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) queues: String,
    pub(crate) blobs: String,
    /// The client that answers instead of the network.
    pub(crate) in_process: Option<Arc<dyn HttpClient>>,
}

/// A system with a new queue of its own.
#[derive(Debug, Clone)]
pub(crate) enum System {
    Framework(Framework),
    Sdk(Sdk),
}

impl System {
    pub(crate) async fn open(kind: Kind, place: &Place, size: Size) -> Result<Self> {
        let queue = format!("bench-{}", uuid::Uuid::new_v4().simple());
        Ok(match kind {
            Kind::Jobqueue => Self::Framework(Framework::open(place, &queue).await?),
            Kind::Sdk => Self::Sdk(Sdk::open(place, &queue, size.is_offloaded()).await?),
        })
    }

    /// Sends this number of jobs from [`SENDERS`] tasks, each of which waits for each answer.
    pub(crate) async fn send(&self, jobs: u64, size: Size) -> Result<()> {
        let tasks = (0..SENDERS).map(|task| {
            let (system, job) = (self.clone(), Thumbnail::new(task, size));
            tokio::spawn(async move {
                for _ in (task..jobs).step_by(SENDERS as usize) {
                    match &system {
                        Self::Framework(framework) => framework.send(&job).await?,
                        Self::Sdk(sdk) => sdk.send(&job).await?,
                    }
                }
                Result::Ok(())
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await??;
        }
        Ok(())
    }

    /// Handles this number of waiting jobs until all are deleted. Calls `started` before the first request.
    pub(crate) async fn process(
        &self,
        jobs: u64,
        concurrency: usize,
        started: impl FnOnce() + Send + 'static,
    ) -> Result<()> {
        match self {
            Self::Framework(framework) => framework.process(jobs, concurrency, started).await,
            Self::Sdk(sdk) => {
                started();
                sdk.process(jobs, concurrency).await
            }
        }
    }

    /// Deletes the queue.
    pub(crate) async fn close(self) -> Result<()> {
        match self {
            Self::Framework(framework) => framework.close().await,
            Self::Sdk(sdk) => sdk.close().await,
        }
    }
}
