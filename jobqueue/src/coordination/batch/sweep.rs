//! Removes the blobs of old batches.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use super::names::{BatchId, container, is};
use crate::error::Error;
use crate::storage::{Storage, StoreErrorKind as K};

/// Selects the batches that [`sweep_batches`] removes.
#[derive(Debug, Clone)]
pub struct BatchSweepOptions {
    finished: Duration,
    abandoned: Option<Duration>,
}

impl Default for BatchSweepOptions {
    fn default() -> Self {
        Self { finished: Duration::from_secs(14 * 86_400), abandoned: None }
    }
}

impl BatchSweepOptions {
    /// Selects batches whose continuation ended at least 14 days ago. Unfinished batches are kept forever.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the age at which finished batches are removed. It must be longer than a message can stay in a queue,
    /// including delays and redeliveries: 8 days are enough, unless jobs are sent with longer delays.
    #[must_use]
    pub fn finished(mut self, age: Duration) -> Self {
        self.finished = age;
        self
    }

    /// Also removes unfinished batches in which nothing has happened for this time. Their remaining jobs still run,
    /// but end no child.
    #[must_use]
    pub fn abandoned(mut self, age: Duration) -> Self {
        self.abandoned = Some(age);
        self
    }
}

/// Removes the blobs of old batches and returns the number of removed batches. It can run on any machine,
/// concurrently with itself, and can be interrupted.
///
/// The blobs of a batch stay for a while after its continuation, so that late copies of its messages are recognised.
/// Run this once a day, for instance on a schedule; [`sweep`](crate::maintenance::sweep) does not remove batches.
///
/// # Errors
/// [`Storage`](crate::ErrorKind::Storage) if the storage fails.
///
/// # Cancel safety
/// If the future is dropped, a batch may be half removed; the next call removes the rest.
pub async fn sweep_batches(storage: &Storage, options: BatchSweepOptions) -> Result<u64, Error> {
    let now = storage.runtime().now();
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
            // A blob of another program.
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
        let blob = crate::storage::BlobName::new(container()?, name)?;
        // Deleted last, so that an interrupted sweep finds the rest.
        if blob != done {
            ledger.remove(&blob).await?;
        }
    }
    ledger.remove(&done).await
}
