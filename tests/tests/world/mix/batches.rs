//! Batches, sent from a job or from outside.

use jobqueue::batch::{Batch, OnDeadLetters};
use jobqueue::{Context, Error, Storage};

use super::messages::{Join, Part};
use super::spec::Fan;

/// Sends a batch within a job, or continues it.
pub(super) async fn start_within(ctx: &Context, fan: &Fan) -> Result<(), Error> {
    start(ctx.batch(&fan.id).await?, fan).await
}

/// Sends a batch, or continues it.
pub(super) async fn start_outside(storage: &Storage, fan: &Fan) -> Result<(), Error> {
    start(storage.batch(&fan.id).await?, fan).await
}

async fn start(mut batch: Batch, fan: &Fan) -> Result<(), Error> {
    if fan.goes_on {
        batch.on_dead_letters(OnDeadLetters::Continue);
    }
    let part = |(index, script): (usize, &_)| Part { id: child(fan, index), script: Clone::clone(script) };
    let parts: Vec<Part> = fan.children.iter().enumerate().map(part).collect();
    batch.send_all(parts).await?;
    batch.then(&Join { id: fan.id.clone(), script: fan.join.clone() }).await
}

/// The id of a child.
pub(super) fn child(fan: &Fan, index: usize) -> String {
    format!("{}/{index}", fan.id)
}
