//! Judges that no payload is missing while a message or a dead letter needs it, and that none is left
//! afterwards.

use std::collections::BTreeSet;
use std::time::Duration;

use jobqueue::batch::{BatchSweepOptions, sweep_batches};
use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::maintenance::{SweepOptions, sweep};
use jobqueue::storage::{ContainerName, StoreErrorKind};
use jobqueue::{Error, QueueMessage};
use jobqueue_testing::world::{Finding, World};
use tokio::time::sleep;

use super::finding;
use crate::mix::actors::subject;
use crate::mix::messages::{Former, Part, Work};
use crate::mix::plan::Plan;

const TWO_MONTHS: Duration = Duration::from_secs(60 * 86_400);

/// Returns the ids of all dead letters, and findings about their payloads.
pub(super) async fn dead_letters(world: &World) -> (BTreeSet<String>, Vec<Finding>) {
    let (mut ids, mut found) = (BTreeSet::new(), Vec::new());
    if let Err(error) = read::<Work>(world, &mut ids, &mut found, true).await {
        found.push(finding("dead letters cannot be read", "work", format!("{error:?}")));
    }
    for read in [
        read::<Part>(world, &mut ids, &mut found, false).await,
        read::<Former>(world, &mut ids, &mut found, false).await,
    ] {
        if let Err(error) = read {
            found.push(finding("dead letters cannot be read", "parts", format!("{error:?}")));
        }
    }
    (ids, found)
}

async fn read<M: QueueMessage>(
    world: &World,
    ids: &mut BTreeSet<String>,
    found: &mut Vec<Finding>,
    payloads: bool,
) -> Result<(), Error> {
    let queue = world.storage().queue::<M>().await?;
    let dead = queue.dead_letters()?;
    for letter in dead.list().await?.letters {
        let job = subject(&letter.source, &letter.id);
        ids.insert(job.clone());
        let reason = letter.reason.to_string();
        if reason.starts_with("payload") || reason.starts_with("decode") || reason == "newer_version" {
            let detail = format!("it was dead-lettered as {reason}: {:?}", letter.error);
            found.push(finding("a payload is missing", &job, detail));
        } else if payloads && let Err(error) = dead.message(&letter).await {
            found.push(finding("the payload of a dead letter is missing", &job, format!("{error:?}")));
        }
    }
    Ok(())
}

/// Returns the blobs that are left after all dead letters are purged and two months have passed.
pub(super) async fn orphans(world: &World, plan: &Plan) -> Vec<Finding> {
    // Sweeps do not touch the payloads of sharded queues.
    if plan.spread.1 > 1 {
        return Vec::new();
    }
    match left(world).await {
        Ok(found) => found,
        Err(error) => vec![finding("blobs cannot be swept", "sweep", format!("{error:?}"))],
    }
}

async fn left(world: &World) -> Result<Vec<Finding>, Error> {
    let storage = &world.accounts()[0];
    sleep(TWO_MONTHS).await;
    sweep_all(world).await?;
    // Dead letters and their payloads stay forever.
    let mut found = Vec::new();
    let work = storage.queue::<Work>().await?;
    for letter in work.dead_letters()?.list().await?.letters {
        if let Err(error) = work.dead_letters()?.message(&letter).await {
            let job = subject(&letter.source, &letter.id);
            found.push(finding("a sweep deletes the payload of a dead letter", &job, format!("{error:?}")));
        }
    }
    // Letters that were read become visible again after ten minutes at most.
    sleep(Duration::from_secs(700)).await;
    let _ = work.dead_letters()?.purge(DeadLetterOptions::new().filter(|_| true)).await?;
    let parts = storage.queue::<Part>().await?;
    let _ = parts.dead_letters()?.purge(DeadLetterOptions::new().filter(|_| true)).await?;
    work.clear().await?;
    // Removes slots of a schedule that were sent when the workers ended, because a sweep looks only for
    // orphans of queues without messages.
    parts.clear().await?;
    sleep(TWO_MONTHS).await;
    sweep_all(world).await?;
    for container in
        ["jobqueue-payloads", "jobqueue-once", "jobqueue-completed", "jobqueue-unique", "jobqueue-batches"]
    {
        let name = ContainerName::new(container)?;
        let blobs = match storage.blobs().list_blobs(&name, "", None).await {
            Err(error) if error.kind() == StoreErrorKind::ContainerNotFound => continue,
            page => page?.blobs,
        };
        for (blob, _) in blobs {
            let blob = format!("{container}/{blob}");
            found.push(finding("a blob is left over", &blob, "after two months".to_owned()));
        }
    }
    Ok(found)
}

async fn sweep_all(world: &World) -> Result<(), Error> {
    let storage = &world.accounts()[0];
    let _ = sweep(storage, SweepOptions::new().drained_queues(true)).await?;
    let batches = BatchSweepOptions::new().abandoned(Duration::from_secs(86_400));
    sweep_batches(storage, batches).await.map(drop)
}
