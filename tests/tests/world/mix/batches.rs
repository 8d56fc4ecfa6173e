//! Batches, sent from a job or from outside.

use jobqueue::batch::{Batch, OnDeadLetters};
use jobqueue::testing::world::Node;
use jobqueue::{Context, Error, SendOptions};

use super::messages::{Join, Part};
use super::spec::{Fan, PartOptions};

/// Sends a batch within a job, or continues it.
pub(super) async fn start_within(ctx: &Context, fan: &Fan) -> Result<(), Error> {
    start(ctx.batch(&fan.id).await?, fan).await
}

/// Sends a batch, or continues it.
pub(super) async fn start_outside(node: &Node, fan: &Fan) -> Result<(), Error> {
    start(open(node, fan).await?, fan).await
}

async fn open(node: &Node, fan: &Fan) -> Result<Batch, Error> {
    Ok(node.storage().batch(&fan.id).await?.virtual_time(node.clock()))
}

/// Sends the children of a batch and no more, and begins it anew with fewer. True if that is not refused.
pub(super) async fn interrupt(node: &Node, fan: &Fan) -> Result<bool, Error> {
    let Some((_, fewer)) = fan.children.split_last() else { return Ok(false) };
    let mut batch = open(node, fan).await?;
    if fan.goes_on {
        batch.on_dead_letters(OnDeadLetters::Continue);
    }
    if batch.send_all(parts(fan)).await.is_err() {
        return Ok(false);
    }
    let other = Fan { children: fewer.to_vec(), ..fan.clone() };
    Ok(start(open(node, fan).await?, &other).await.is_ok())
}

async fn start(mut batch: Batch, fan: &Fan) -> Result<(), Error> {
    if fan.goes_on {
        batch.on_dead_letters(OnDeadLetters::Continue);
    }
    batch.send_all(parts(fan)).await?;
    batch.then(&Join { id: fan.id.clone(), script: fan.join.clone() }).await
}

fn parts(fan: &Fan) -> Vec<(Part, SendOptions)> {
    let part = |(index, script): (usize, &_)| {
        let part = Part { id: child(fan, index), script: Clone::clone(script) };
        (part, fan.options.get(index).map_or_else(SendOptions::new, options))
    };
    fan.children.iter().enumerate().map(part).collect()
}

fn options(of: &PartOptions) -> SendOptions {
    let options = of.delay.map_or_else(SendOptions::new, |delay| SendOptions::new().delay(delay));
    of.in_order.as_ref().map_or_else(|| options.clone(), |key| options.clone().key(key.as_str()).in_order())
}

/// The id of a child.
pub(super) fn child(fan: &Fan, index: usize) -> String {
    format!("{}/{index}", fan.id)
}
