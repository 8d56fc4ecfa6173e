//! Measures the time from just before the send to the handler's start on an idle queue.

use std::sync::Arc;
use std::time::Duration;

use super::Setting;
use crate::child::{Other, Role};
use crate::report::Figures;
use crate::seen::{Seen, nanos_now};
use crate::subject::{Result, Subject};

/// The pause between two sends, so that the queue is idle again.
const PAUSE: Duration = Duration::from_millis(10);

pub(super) async fn same_process<S: Subject>(setting: &Setting, figures: &mut Figures) -> Result<()> {
    let store = setting.store()?;
    let subject = S::open(store.path()).await?;
    let seen = Arc::new(Seen::default());
    let worker = subject.work(64, Arc::clone(&seen)).await?;
    let samples = samples(setting);
    for number in 0..samples {
        tokio::time::sleep(PAUSE).await;
        subject.send(&S::job(number, nanos_now())).await?;
        seen.wait_for(number + 1).await?;
    }
    figures.delays("latency", &seen.sorted_delays());
    subject.stop(worker).await
}

pub(super) async fn other_process<S: Subject>(setting: &Setting, figures: &mut Figures) -> Result<()> {
    let store = setting.store()?;
    let subject = S::open(store.path()).await?;
    let samples = samples(setting);
    let other = Other::start(Role::Handle, store.path(), samples).await?;
    for number in 0..samples {
        tokio::time::sleep(5 * PAUSE).await;
        subject.send(&S::job(number, nanos_now())).await?;
    }
    figures.delays("latency_other", &other.told().await?.delays);
    Ok(())
}

fn samples(setting: &Setting) -> u64 {
    if setting.quick { 10 } else { 300 }
}
