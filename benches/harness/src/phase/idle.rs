//! Measures the cost of a worker without work, and the memory of a large backlog. Both are measured in a
//! process of their own.

use super::{Setting, fill};
use crate::child::{Other, Role};
use crate::report::{Figures, Unit};
use crate::subject::{Result, Subject};

pub(super) async fn idle(setting: &Setting, figures: &mut Figures) -> Result<()> {
    let store = setting.store()?;
    let seconds = if setting.quick { 1 } else { 20 };
    let told = Other::start(Role::Idle, store.path(), seconds).await?.told().await?;
    figures.put("idle_cpu", told.cpu.as_secs_f64() / seconds as f64 * 100.0, Unit::PercentOfCore);
    Ok(())
}

pub(super) async fn memory<S: Subject>(setting: &Setting, figures: &mut Figures) -> Result<()> {
    let store = setting.store()?;
    let waiting = if setting.quick { 2_000 } else { 1_000_000 };
    let subject = S::open(store.path()).await?;
    fill(&subject, waiting).await?;
    drop(subject);
    let told = Other::start(Role::Memory, store.path(), setting.jobs::<S>(20_000)).await?.told().await?;
    figures.put("memory_1m", told.memory.1, Unit::Mebibytes);
    Ok(())
}
