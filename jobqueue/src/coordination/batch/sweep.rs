//! Removing what finished batches leave.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::names::{BatchId, container, is};
use crate::clock::{Clock, SystemClock};
use crate::error::Error;
use crate::storage::{Storage, StoreErrorKind as K};

/// The batches that [`sweep_batches`] removes.
#[derive(Debug, Clone)]
pub struct BatchSweepOptions {
    finished: Duration,
    abandoned: Option<Duration>,
    clock: Arc<dyn Clock>,
}

impl Default for BatchSweepOptions {
    fn default() -> Self {
        Self { finished: Duration::from_secs(14 * 86_400), abandoned: None, clock: Arc::new(SystemClock) }
    }
}

impl BatchSweepOptions {
    /// Batches whose continuation ended 14 days ago; unfinished ones are kept for ever.
    pub fn new() -> Self {
        Self::default()
    }

    /// Batches that finished this long ago. Longer than a message can wait in a queue, visibility and redeliveries
    /// included, is safe; 8 days are, unless jobs are sent with longer delays.
    #[must_use]
    pub fn finished(mut self, age: Duration) -> Self {
        self.finished = age;
        self
    }

    /// Also batches that are not finished and in which nothing has happened for this long. What is left of them in queues
    /// still runs; its end leads nowhere.
    #[must_use]
    pub fn abandoned(mut self, age: Duration) -> Self {
        self.abandoned = Some(age);
        self
    }

    /// Takes the time from `clock`, for tests.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }
}

/// Removes what old batches have left; returns how many batches. Safe to run anywhere, by several at once, and to interrupt.
///
/// A batch's blobs stay after its continuation, so that late copies of its messages are recognised. Run a sweep once a
/// day, on a schedule for instance; [`sweep`](crate::sweep) leaves batches alone.
///
/// # Errors
/// What the storage says.
///
/// # Cancel safety
/// What is removed stays removed, a batch by half perhaps; the next run goes on.
pub async fn sweep_batches(storage: &Storage, options: BatchSweepOptions) -> Result<u64, Error> {
    let now = options.clock.now();
    let container = container()?;
    let mut batches: BTreeMap<String, Found> = BTreeMap::new();
    let mut next: Option<String> = None;
    loop {
        let page = match storage.blobs().list_blobs(&container, "", next.as_deref()).await {
            Err(e) if is(&e, K::ContainerNotFound) => return Ok(0),
            page => page?,
        };
        for (name, properties) in page.blobs {
            let Some((id, rest)) = name.split_once('/') else { continue };
            // What another program has put there is not ours.
            if BatchId::new(id).is_err() {
                continue;
            }
            let found = batches.entry(id.to_owned()).or_default();
            found.newest = found.newest.max(Some(properties.modified));
            if rest == "done" {
                found.done = Some(properties.modified);
            }
        }
        next = page.next;
        if next.is_none() {
            break;
        }
    }
    let mut removed = 0;
    for (id, found) in batches {
        let older = |at: Option<SystemTime>, age| {
            at.is_some_and(|at| now.duration_since(at).is_ok_and(|passed| passed > age))
        };
        let abandoned = options.abandoned.is_some_and(|age| older(found.newest, age));
        if older(found.done, options.finished) || abandoned {
            remove(storage, &id).await?;
            removed += 1;
        }
    }
    Ok(removed)
}

#[derive(Debug, Default)]
struct Found {
    done: Option<SystemTime>,
    newest: Option<SystemTime>,
}

async fn remove(storage: &Storage, id: &str) -> Result<(), Error> {
    let id = BatchId::new(id)?;
    let ledger = super::ledger::Ledger { storage, id: id.clone() };
    let done = id.blob("done")?;
    for name in ledger.names(&format!("{}/", id.as_str())).await? {
        let blob = crate::name::BlobName::new(container()?, name)?;
        // Last, so that a sweep that is interrupted finds the rest.
        if blob != done {
            ledger.remove(&blob).await?;
        }
    }
    ledger.remove(&done).await
}
