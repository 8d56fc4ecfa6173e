//! Measures the cost of a backlog: the same work with 10 thousand and with a million messages waiting behind
//! it.

use std::sync::Arc;
use std::time::Duration;

use super::mixed::send_and_handle;
use super::process::handle;
use super::{Setting, fill};
use crate::report::Figures;
use crate::subject::{Result, Subject};

/// The pause between filling and measuring. A disk that has just received half a gigabyte is slow for some
/// seconds, which is not a cost of the backlog.
const SETTLING: Duration = Duration::from_secs(10);

pub(super) async fn depth<S: Subject>(setting: &Setting, figures: &mut Figures) -> Result<()> {
    let depths =
        if setting.quick { [("10k", 100), ("1m", 2_000)] } else { [("10k", 10_000), ("1m", 1_000_000)] };
    let jobs = setting.jobs::<S>(100_000);
    for (name, waiting) in depths {
        let store = setting.store()?;
        let subject = Arc::new(S::open(store.path()).await?);
        fill(&*subject, waiting + jobs).await?;
        if !setting.quick {
            tokio::time::sleep(SETTLING).await;
        }
        figures.rate(&format!("process_depth_{name}"), jobs, handle(&*subject, jobs, 64).await?);
        figures.rate(&format!("mixed_depth_{name}"), jobs, send_and_handle(&subject, jobs).await?);
    }
    Ok(())
}
