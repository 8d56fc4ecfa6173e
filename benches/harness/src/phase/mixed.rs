//! Sending and processing at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Setting;
use super::send::send_from_tasks;
use crate::report::Figures;
use crate::seen::Seen;
use crate::subject::{Result, Subject};

pub(super) async fn mixed<S: Subject>(setting: &Setting, figures: &mut Figures) -> Result<()> {
    let store = setting.store()?;
    let subject = Arc::new(S::open(store.path()).await?);
    let jobs = setting.jobs::<S>(150_000);
    figures.rate("mixed", jobs, send_and_handle(&subject, jobs).await?);
    Ok(())
}

/// Returns the time until 64 tasks have sent `jobs` jobs and 64 handlers have handled as many.
pub(super) async fn send_and_handle<S: Subject>(subject: &Arc<S>, jobs: u64) -> Result<Duration> {
    let seen = Arc::new(Seen::default());
    let started = Instant::now();
    let worker = subject.work(64, Arc::clone(&seen)).await?;
    send_from_tasks(subject, jobs).await?;
    seen.wait_for(jobs).await?;
    let time = started.elapsed();
    subject.stop(worker).await?;
    Ok(time)
}
