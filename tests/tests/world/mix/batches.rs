//! Batches, sent from inside or outside of a job.

use jobqueue::batch::{Batch, OnDeadLetters};
use jobqueue::{Context, Error, SendOptions};
use jobqueue_testing::world::Node;

use super::diary::Note;
use super::messages::{Join, Part};
use super::spec::{Fan, PartOptions, Script};

/// Sends or continues a batch inside a job. Calls `note` before and after.
pub(super) async fn start_within(ctx: &Context, fan: &Fan, note: impl Fn(Note)) -> Result<(), Error> {
    note(Note::BatchBegins { id: fan.id.clone() });
    start(ctx.batch(&fan.id).await?, fan).await?;
    note(Note::Sealed { id: fan.id.clone() });
    Ok(())
}

/// Sends or continues a batch from outside. Calls `note` before and after.
pub(super) async fn start_outside(node: &Node, fan: &Fan, note: impl Fn(Note)) -> Result<(), Error> {
    note(Note::BatchBegins { id: fan.id.clone() });
    start(open(node, fan).await?, fan).await?;
    note(Note::Sealed { id: fan.id.clone() });
    Ok(())
}

async fn open(node: &Node, fan: &Fan) -> Result<Batch, Error> {
    node.storage().batch(&fan.id).await
}

/// Sends the children of a batch but does not seal it, then begins it again with fewer children. Returns true
/// if that is not refused.
pub(super) async fn interrupt(node: &Node, fan: &Fan) -> Result<bool, Error> {
    let Some((_, fewer)) = fan.children.split_last() else { return Ok(false) };
    let mut batch = open(node, fan).await?;
    if fan.goes_on {
        batch.on_dead_letters(OnDeadLetters::Continue);
    }
    if send(&mut batch, fan).await.is_err() {
        return Ok(false);
    }
    let other = Fan { children: fewer.to_vec(), ..fan.clone() };
    Ok(start(open(node, fan).await?, &other).await.is_ok())
}

async fn start(mut batch: Batch, fan: &Fan) -> Result<(), Error> {
    if fan.goes_on {
        batch.on_dead_letters(OnDeadLetters::Continue);
    }
    send(&mut batch, fan).await?;
    batch.then(&Join { id: fan.id.clone(), script: fan.join.clone() }).await
}

async fn send(batch: &mut Batch, fan: &Fan) -> Result<(), Error> {
    let part = |(index, script)| {
        let part = Part { id: child(fan, index), script: Script::clone(script) };
        (part, send_options(&fan.options_of(index)))
    };
    batch.send_all(fan.children.iter().enumerate().map(part).collect::<Vec<_>>()).await
}

fn send_options(of: &PartOptions) -> SendOptions {
    let mut options = SendOptions::new();
    if let Some(delay) = of.delay {
        options = options.delay(delay);
    }
    if let Some(ttl) = of.ttl {
        options = options.ttl(ttl);
    }
    match &of.in_order {
        Some(key) => options.key(key.as_str()).in_order(),
        None => options,
    }
}

/// Returns the id of a child.
pub(super) fn child(fan: &Fan, index: usize) -> String {
    format!("{}/{index}", fan.id)
}
