//! Removing what finished batches leave.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use super::names::{BatchId, container, is};
use crate::storage::{Storage, StoreErrorKind as K};
use crate::vocabulary::error::Error;

/// Which batches [`BatchSweep::run`] removes.
///
/// A batch's blobs stay after its continuation, so that late copies of its messages are recognised. Run a sweep once a
/// day, on a schedule for instance.
#[derive(Debug, Clone, Copy)]
pub struct BatchSweep {
    finished: Duration,
    abandoned: Option<Duration>,
}

impl Default for BatchSweep {
    /// Batches whose continuation ended 14 days ago; unfinished ones are kept for ever.
    fn default() -> Self {
        Self { finished: Duration::from_secs(14 * 86_400), abandoned: None }
    }
}

impl BatchSweep {
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

    /// Removes them, as of `now`; returns how many batches. Safe to run anywhere, by several at once, and to interrupt.
    ///
    /// # Errors
    /// What the storage says.
    ///
    /// # Cancel safety
    /// What is removed stays removed, a batch by half perhaps; the next run goes on.
    pub async fn run(&self, storage: &Storage, now: SystemTime) -> Result<u64, Error> {
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
            let abandoned = self.abandoned.is_some_and(|age| older(found.newest, age));
            if older(found.done, self.finished) || abandoned {
                remove(storage, &id).await?;
                removed += 1;
            }
        }
        Ok(removed)
    }
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
        let blob = crate::vocabulary::name::BlobName::new(container()?, name)?;
        // Last, so that a sweep that is interrupted finds the rest.
        if blob != done {
            ledger.remove(&blob).await?;
        }
    }
    ledger.remove(&done).await
}
