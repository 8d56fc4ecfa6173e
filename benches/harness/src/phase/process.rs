//! Processes waiting messages with handlers that do nothing. The clock stops when the last job is handled;
//! then the worker is stopped, which settles it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Setting, fill};
use crate::report::{Figures, Unit};
use crate::seen::Seen;
use crate::subject::{Result, Subject};

pub(super) async fn plain<S: Subject>(setting: &Setting, figures: &mut Figures) -> Result<()> {
    let jobs = setting.jobs::<S>(200_000);
    let time = once::<S>(setting, jobs, 64).await?;
    figures.rate("process_64", jobs, time);
    Ok(())
}

pub(super) async fn best<S: Subject>(setting: &Setting, figures: &mut Figures) -> Result<()> {
    let jobs = setting.jobs::<S>(400_000);
    let mut best = (Duration::MAX, 0);
    for &concurrency in S::BEST {
        best = best.min((once::<S>(setting, jobs, concurrency).await?, concurrency));
    }
    figures.rate("process_best", jobs, best.0);
    figures.put("process_best_concurrency", best.1 as f64, Unit::Count);
    Ok(())
}

async fn once<S: Subject>(setting: &Setting, jobs: u64, concurrency: usize) -> Result<Duration> {
    let store = setting.store()?;
    let subject = S::open(store.path()).await?;
    fill(&subject, jobs).await?;
    handle(&subject, jobs, concurrency).await
}

/// Returns the time until a new worker has handled `jobs` of the waiting jobs.
pub(super) async fn handle<S: Subject>(subject: &S, jobs: u64, concurrency: usize) -> Result<Duration> {
    let seen = Arc::new(Seen::default());
    let started = Instant::now();
    let worker = subject.work(concurrency, Arc::clone(&seen)).await?;
    seen.wait_for(jobs).await?;
    let time = started.elapsed();
    subject.stop(worker).await?;
    Ok(time)
}
