//! The blobs of one batch. Most are written once; every process that ends a child reads them. The table in
//! `names` lists for each event the blob that is written, and the process that continues after a crash.
//!
//! Every step can be repeated, and several processes may take it concurrently. A step that must happen once
//! is a blob that is created if absent, or a message whose duplicates do not run.

use std::sync::Arc;
use std::time::SystemTime;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::known::KnownBatch;
use super::names::{BatchId, CHILDREN, GROUP_SIZE, container, group_size, width};
use crate::error::{Error, ErrorKind};
use crate::json_blob::{Edit, JsonBlob, Known, Version};
use crate::settings::Metadata;
use crate::storage::{
    BlobName, BlobPages, BlobProperties, ContainerName, Storage, StoreError, StoreErrorKind, Tries,
    delete_if_present,
};

/// The maximum size of a marker or plan, in bytes.
pub(super) const MAX_BYTES: u64 = 32 * 1024 * 1024;
/// The metadata key on the marker of a failed child, so that a listing shows the failure.
pub(super) const FAILED: &str = "failed";
/// The number of times that a request is sent again if the storage could not serve it.
const RESENDS: u32 = 4;

/// A sealed batch.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) children: u64,
    pub(super) queue: String,
    /// The text of the continuation's message.
    pub(super) text: String,
    /// The [digest](super::sweep::job_digest) of the job that sent the batch, if a job did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) job: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Marker {
    Done(Option<Box<RawValue>>),
    Failed {
        reason: String,
        detail: String,
    },
    /// A group whose children have all ended.
    Group,
}

#[derive(Debug)]
pub(super) struct Ledger<'a> {
    pub(super) storage: &'a Storage,
    pub(super) id: BatchId,
    /// The worker's cache of this batch.
    known: Option<Arc<KnownBatch>>,
}

impl<'a> Ledger<'a> {
    pub(super) fn new(storage: &'a Storage, id: BatchId) -> Self {
        Self { storage, id, known: None }
    }

    pub(super) fn knowing(self, known: Arc<KnownBatch>) -> Self {
        Self { known: Some(known), ..self }
    }

    pub(super) fn document<T>(&self, blob: &BlobName) -> JsonBlob<T> {
        JsonBlob::new(self.storage.blobs(), self.storage.runtime(), blob.clone(), MAX_BYTES)
    }

    /// Creates a blob if it is absent. Returns whether the storage confirmed that this call created it.
    pub(super) async fn create<T: Serialize>(&self, blob: &BlobName, value: &T) -> Result<bool, Error> {
        Ok(self.document(blob).create(value, tries(self.storage)).await?)
    }

    pub(super) async fn replace<T: Serialize>(&self, blob: &BlobName, value: &T) -> Result<(), Error> {
        Ok(self.document(blob).replace(value, tries(self.storage)).await.map(drop)?)
    }

    pub(super) async fn read<T: DeserializeOwned>(&self, blob: &BlobName) -> Result<Option<T>, Error> {
        Ok(self.read_version(&self.document(blob)).await?.map(|version| version.value))
    }

    pub(super) async fn read_version<T: DeserializeOwned>(
        &self,
        document: &JsonBlob<T>,
    ) -> Result<Option<Version<T>>, Error> {
        tries(self.storage).run(|| document.read()).await.map_err(damaged)
    }

    pub(super) async fn remove(&self, blob: &BlobName) -> Result<(), Error> {
        let blobs = &**self.storage.blobs();
        Ok(tries(self.storage).run(|| delete_if_present(blobs, blob)).await?)
    }

    /// Returns the batch's secret. Creates a secret if the batch is new.
    pub(super) async fn make_secret(&self) -> Result<String, Error> {
        let document = self.document::<String>(&self.id.blob("token")?);
        if let Some(known) = self.read_version(&document).await? {
            return Ok(known.value);
        }
        let new = self.storage.runtime().uuid_v4().simple().to_string();
        let make = |found: Option<String>| match found {
            None => Edit::Write(new.clone(), new.clone()),
            Some(known) => Edit::Keep(known),
        };
        Ok(document.change(Known::Absent, make).await.map_err(damaged)?.result)
    }

    /// Returns the batch's secret; `None` if the batch does not exist.
    pub(super) async fn secret(&self) -> Result<Option<String>, Error> {
        self.read(&self.id.blob("token")?).await
    }

    pub(super) async fn plan(&self) -> Result<Option<Plan>, Error> {
        self.read(&self.id.blob("plan")?).await
    }

    /// Writes the plan, unless a plan exists. The metadata shows the number of children in listings.
    pub(super) async fn seal(&self, plan: &Plan) -> Result<(), Error> {
        let children = |plan: &Plan| Metadata::new().with(CHILDREN, plan.children.to_string());
        let document = self.document(&self.id.blob("plan")?).with_metadata(children);
        Ok(document.create(plan, tries(self.storage)).await.map(drop)?)
    }

    /// Marks a child as ended, then the groups that this completes. Sends the continuation if the batch is
    /// complete.
    pub(super) async fn end_child(&self, index: u64, marker: &Marker) -> Result<(), Error> {
        let failed = |marker: &Marker| match marker {
            Marker::Failed { .. } => Metadata::new().with(FAILED, "true"),
            Marker::Done(_) | Marker::Group => Metadata::new(),
        };
        let document = self.document(&self.id.marker(0, index)?).with_metadata(failed);
        let is_new = document.create(marker, tries(self.storage)).await?;
        if !is_new && matches!(marker, Marker::Done(_)) {
            // The child was dead-lettered and is done after a redrive.
            let replace_failure = |found| match found {
                Some(Marker::Failed { .. }) => Edit::Write(marker.clone(), ()),
                _ => Edit::Keep(()),
            };
            document.change(Known::Nothing, replace_failure).await.map_err(damaged)?;
        }
        self.complete_ancestors(index).await
    }

    /// Returns whether the continuation has run.
    pub(super) async fn has_continued(&self) -> Result<bool, Error> {
        Ok(self.read::<bool>(&self.id.blob("done")?).await?.is_some())
    }

    /// Records that the continuation has run.
    pub(super) async fn note_continued(&self) -> Result<(), Error> {
        self.create(&self.id.blob("done")?, &true).await.map(drop)
    }

    /// Marks the complete groups above the marker of a child. Sends the continuation if all groups are
    /// complete.
    pub(super) async fn complete_ancestors(&self, index: u64) -> Result<(), Error> {
        let complete = |sealed| self.mark_complete_groups(index, sealed);
        match &self.known {
            Some(known) => known.complete_ancestors(index / GROUP_SIZE, complete).await,
            None => complete(None).await.map(drop),
        }
    }

    /// Marks the complete groups above child `index`. `sealed` is the number of the batch's children, if it
    /// is known. Returns that number, if the batch is sealed.
    async fn mark_complete_groups(&self, index: u64, sealed: Option<u64>) -> Result<Option<u64>, Error> {
        let mut children = sealed;
        let mut at = index;
        for level in 0.. {
            // The plan is read after the marker at this level was written: if there is no plan yet, the
            // process that seals the batch later sees the marker.
            if children.is_none() {
                children = self.plan().await?.map(|plan| plan.children);
            }
            // The children of a leaf share one pass, so a child beyond the plan may make the pass for a child
            // of the plan.
            if children.is_some_and(|children| index / GROUP_SIZE * GROUP_SIZE >= children) {
                break;
            }
            if let Some(children) = children.filter(|children| width(*children, level) <= 1) {
                if index < children || self.is_complete(level, 0, 1).await? {
                    self.send_continuation().await?;
                }
                break;
            }
            let group = at / GROUP_SIZE;
            if !self.is_complete(level, group, group_size(children, level, group)).await? {
                break;
            }
            self.create(&self.id.marker(level + 1, group)?, &Marker::Group).await?;
            at = group;
        }
        Ok(children)
    }

    /// Marks the groups that only the sealing process can complete: the last group of each level, whose size
    /// is known only after the seal. Sends the continuation if the batch is complete.
    pub(super) async fn complete_after_seal(&self, plan: &Plan) -> Result<(), Error> {
        if plan.children == 0 {
            return self.send_continuation().await;
        }
        for level in 0.. {
            let width = width(plan.children, level);
            if width <= 1 {
                let top = self.is_complete(level, 0, 1).await?;
                return if top { self.send_continuation().await } else { Ok(()) };
            }
            let group = (width - 1) / GROUP_SIZE;
            if self.is_complete(level, group, group_size(Some(plan.children), level, group)).await? {
                self.create(&self.id.marker(level + 1, group)?, &Marker::Group).await?;
            }
        }
        Ok(())
    }

    /// Returns whether the first `size` places of a group are all marked.
    async fn is_complete(&self, level: u32, group: u64, size: u64) -> Result<bool, Error> {
        let mut marked = 0;
        let prefix = self.id.group(level, group);
        for_each_blob(self.storage, &prefix, |name, _| {
            let place = name.rsplit('/').next().and_then(|place| place.parse::<u64>().ok());
            marked += u64::from(place.is_some_and(|place| place < size));
        })
        .await?;
        Ok(marked >= size)
    }
}

/// Calls `visit` for each blob whose name begins with `prefix`, in order of name. Returns the time at the
/// beginning by the clock that stamps the blobs, if the storage returns it.
pub(super) async fn for_each_blob(
    storage: &Storage,
    prefix: &str,
    visit: impl FnMut(&str, &BlobProperties),
) -> Result<Option<SystemTime>, Error> {
    for_each_blob_in(storage, &container()?, prefix, visit).await
}

/// Calls `visit` for each blob of `container` whose name begins with `prefix`, as [`for_each_blob`] does.
pub(super) async fn for_each_blob_in(
    storage: &Storage,
    container: &ContainerName,
    prefix: &str,
    mut visit: impl FnMut(&str, &BlobProperties),
) -> Result<Option<SystemTime>, Error> {
    let (mut began, mut pages) = (None, BlobPages::new(&**storage.blobs(), container, prefix));
    while let Some(page) = pages.next(Some(tries(storage))).await? {
        page.blobs.iter().for_each(|(name, properties)| visit(name, properties));
        began = began.or(page.now);
    }
    Ok(began)
}

/// Returns the error for a blob that cannot be read or changed.
pub(super) fn damaged(error: StoreError) -> Error {
    if error.kind() != StoreErrorKind::Corrupt {
        return error.into();
    }
    let text = "a blob of the batch is damaged; the batch cannot continue";
    Error::new(ErrorKind::Undecodable, text).with_source(error)
}

/// Returns the attempts of a request. Every request of this module can be repeated without harm.
pub(super) fn tries(storage: &Storage) -> Tries {
    Tries::brief(storage.runtime(), RESENDS, RESENDS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordination::batch::known::KnownBatches;
    use crate::storage::QueueName;

    /// A child that another start has sent into a sealed batch can make the pass that its leaf shares.
    #[tokio::test(start_paused = true)]
    async fn child_beyond_the_plan_completes_its_leaf() {
        for (children, ended, continues) in [(2, 2, true), (1, 1, true), (2, 1, false), (1, 0, false)] {
            let storage = Storage::memory();
            let known = KnownBatches::default().insert("b", "secret".to_owned());
            let ledger = Ledger::new(&storage, BatchId::new("b").unwrap()).knowing(known);
            let text = r#"{"specversion":"1.0","id":"b","source":"/s","type":"t"}"#.to_owned();
            let plan = Plan { children, queue: "joins".to_owned(), text, job: None };
            ledger.seal(&plan).await.unwrap();
            for index in (0..ended).chain([children]) {
                let marker = ledger.id.marker(0, index).unwrap();
                ledger.create(&marker, &Marker::Done(None)).await.unwrap();
            }
            ledger.complete_ancestors(children).await.unwrap();
            let sent = storage.queues().peek(&QueueName::new("joins").unwrap(), 1).await;
            assert_eq!(sent.is_ok_and(|sent| sent.len() == 1), continues, "{ended} of {children}");
        }
    }
}
