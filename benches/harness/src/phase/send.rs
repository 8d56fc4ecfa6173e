//! Measures sending.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::Setting;
use crate::report::Figures;
use crate::subject::{Result, Subject};

/// The number of tasks that send at once.
pub(super) const TASKS: usize = 64;

pub(super) async fn one_by_one<S: Subject>(setting: &Setting, figures: &mut Figures) -> Result<()> {
    let store = setting.store()?;
    let subject = S::open(store.path()).await?;
    let jobs = setting.jobs::<S>(10_000);
    let started = Instant::now();
    for number in 0..jobs {
        subject.send(&S::job(number, 0)).await?;
    }
    figures.rate("send_one", jobs, started.elapsed());
    Ok(())
}

pub(super) async fn from_tasks<S: Subject>(setting: &Setting, figures: &mut Figures) -> Result<()> {
    let store = setting.store()?;
    let subject = Arc::new(S::open(store.path()).await?);
    let jobs = setting.jobs::<S>(200_000);
    figures.rate("send_tasks", jobs, send_from_tasks(&subject, jobs).await?);
    Ok(())
}

/// Sends `jobs` jobs from 64 tasks. Returns the time it took.
pub(super) async fn send_from_tasks<S: Subject>(subject: &Arc<S>, jobs: u64) -> Result<Duration> {
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    let started = Instant::now();
    for _ in 0..TASKS {
        let (subject, next) = (Arc::clone(subject), Arc::clone(&next));
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= jobs {
                    return Result::Ok(());
                }
                subject.send(&S::job(number, 0)).await?;
            }
        });
    }
    while let Some(sent) = tasks.join_next().await {
        sent??;
    }
    Ok(started.elapsed())
}

pub(super) async fn all_at_once<S: Subject>(setting: &Setting, figures: &mut Figures) -> Result<()> {
    let store = setting.store()?;
    let subject = S::open(store.path()).await?;
    let jobs: Vec<S::Job> = (0..1_000).map(|number| S::job(number, 0)).collect();
    let rounds = setting.jobs::<S>(200_000).div_ceil(1_000).max(2);
    let started = Instant::now();
    for _ in 0..rounds {
        subject.send_all(&jobs).await?;
    }
    figures.rate("send_all", rounds * 1_000, started.elapsed());
    Ok(())
}
