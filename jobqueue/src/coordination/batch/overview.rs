//! All batches of a storage, and the children for which a batch waits.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use super::ledger::{FAILED, Ledger, for_each_blob, tries};
use super::names::{BATCH, BatchId, CHILDREN, INDEX, INNER, batch_of, child_of, container};
use super::{BatchProgress, progress};
use crate::envelope::{Parsed, parse};
use crate::error::Error;
use crate::storage::{BlobPages, BlobProperties, Storage};

/// The data of a batch that a listing shows.
#[derive(Debug, Clone, Default)]
pub struct BatchRecord {
    /// The id.
    pub id: String,
    /// The batch that waits for this one, and the number of its child that ends with it.
    pub parent: Option<(String, u64)>,
    /// The number of children, once the batch is sealed.
    pub children: Option<u64>,
    /// The numbers of the children that have ended; for a sealed batch, only children of its plan.
    pub ended: BTreeSet<u64>,
    /// The numbers of the children that were dead-lettered and count as ended.
    pub failed: BTreeSet<u64>,
    /// The last child whose end was listed, if the listing stopped within this batch: later children may have
    /// ended too.
    pub listed_until: Option<u64>,
    /// True if no more children are sent.
    pub sealed: bool,
    /// True if the continuation has run.
    pub finished: bool,
    /// The time of the last change.
    pub modified: Option<SystemTime>,
}

/// Returns the batches that `pages` pages of 5,000 blobs show, and whether these are all batches. The state
/// of the batch in which the last page ends is read separately, in as many pages as it has, because its blobs
/// are listed after the markers of its children.
pub async fn batches(storage: &Storage, pages: usize) -> Result<(Vec<BatchRecord>, bool), Error> {
    let (mut found, container) = (BatchListing::default(), container()?);
    let mut listing = BlobPages::new(&**storage.blobs(), &container, "");
    for _ in 0..pages {
        let page = listing.next(Some(tries(storage))).await?.unwrap_or_default();
        page.blobs.iter().for_each(|(name, properties)| found.add(name, properties));
        if page.next.is_none() {
            return Ok((found.batches(), true));
        }
    }
    if let Some((id, listed_until)) = found.last.take() {
        for rest in ["done", "handover/", "plan"] {
            let prefix = format!("{id}/{rest}");
            for_each_blob(storage, &prefix, |name, properties| found.add(name, properties)).await?;
        }
        found.records.entry(id).or_default().listed_until = listed_until;
    }
    Ok((found.batches(), false))
}

/// The batches that a listing shows.
#[derive(Default)]
struct BatchListing {
    records: BTreeMap<String, BatchRecord>,
    /// Each batch that a child has begun, with the batch and the number of that child.
    parents: Vec<(String, (String, u64))>,
    /// The batch of the last blob, and the child if the blob is the marker of a child.
    last: Option<(String, Option<u64>)>,
}

impl BatchListing {
    /// Adds a blob. The blobs of a batch are added in order of name.
    fn add(&mut self, name: &str, properties: &BlobProperties) {
        let Some((id, rest)) = batch_of(name) else { return };
        let batch = self.records.entry(id.to_owned()).or_default();
        id.clone_into(&mut batch.id);
        batch.modified = batch.modified.max(Some(properties.modified));
        let child = rest.strip_prefix("0/").and_then(|_| child_of(rest));
        match rest {
            "plan" => {
                batch.sealed = true;
                batch.children = properties.metadata.get(CHILDREN).and_then(|children| children.parse().ok());
            }
            "done" => batch.finished = true,
            _ => {
                batch.ended.extend(child);
                batch.failed.extend(child.filter(|_| properties.metadata.get(FAILED).is_some()));
                let handed_over = rest.strip_prefix("handover/").and_then(|index| index.parse().ok());
                let inner = handed_over.zip(properties.metadata.get(INNER));
                self.parents.extend(inner.map(|(index, inner)| (inner.to_string(), (id.to_owned(), index))));
            }
        }
        self.last = Some((id.to_owned(), child));
    }

    fn batches(mut self) -> Vec<BatchRecord> {
        for (inner, parent) in self.parents {
            if let Some(batch) = self.records.get_mut(&inner) {
                batch.parent = Some(parent);
            }
        }
        for batch in self.records.values_mut() {
            // A start that ran concurrently with the sealing start may have sent more children.
            let children = batch.children.unwrap_or(u64::MAX);
            batch.ended.retain(|child| *child < children);
            batch.failed.retain(|child| *child < children);
        }
        self.records.into_values().collect()
    }
}

/// A batch, and which of its children have ended.
#[derive(Debug, Clone)]
pub struct BatchChildren {
    /// The progress of the batch.
    pub progress: BatchProgress,
    /// The numbers of the children that have ended.
    pub ended: BTreeSet<u64>,
    /// The queue of the continuation, once the batch is sealed.
    pub continuation_queue: Option<String>,
    /// The batch that waits for this one, and the number of its child that ends with it.
    pub parent: Option<(String, u64)>,
    /// The batches with whose continuations children end, by the number of the child.
    pub nested: BTreeMap<u64, String>,
}

/// Returns a batch with its children; `None` if there is no such batch.
pub async fn children(storage: &Storage, id: &str) -> Result<Option<BatchChildren>, Error> {
    let ledger = Ledger::new(storage, BatchId::new(id)?);
    let mut ended = BTreeSet::new();
    let found = progress::read(&ledger, |marker| ended.extend(child_of(marker))).await?;
    let Some((progress, plan)) = found else { return Ok(None) };
    let parent = plan.as_ref().and_then(|plan| parent(&plan.text));
    let (prefix, mut nested) = (format!("{id}/handover/"), BTreeMap::new());
    for_each_blob(storage, &prefix, |name, properties| {
        let index = name.strip_prefix(&prefix).and_then(|index| index.parse().ok());
        nested.extend(index.zip(properties.metadata.get(INNER).map(ToString::to_string)));
    })
    .await?;
    let continuation_queue = plan.map(|plan| plan.queue);
    Ok(Some(BatchChildren { progress, ended, continuation_queue, parent, nested }))
}

/// Returns the batch in which a continuation ends a child, and the number of that child.
fn parent(continuation: &str) -> Option<(String, u64)> {
    let Ok(Parsed::Event(event)) = parse(continuation) else { return None };
    let headers = event.headers();
    Some((headers.get(BATCH)?.clone(), headers.get(INDEX)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordination::batch::ledger::Plan;
    use crate::envelope::to_wire;
    use crate::settings::{MessageEncoding, Metadata};
    use crate::storage::{PutBlob, put_creating};

    /// Puts a batch that has continued. Its first `ended` children have ended, and number 0 has failed and
    /// begun a batch.
    async fn put(storage: &Storage, id: &str, ended: u64, children: u64) {
        let ledger = Ledger::new(storage, BatchId::new(id).unwrap());
        for index in 0..ended {
            let marker = ledger.id.marker(0, index).unwrap();
            let metadata = if index == 0 { Metadata::new().with(FAILED, "true") } else { Metadata::new() };
            let options = PutBlob::if_absent().with_metadata(metadata);
            put_creating(&**storage.blobs(), &marker, "1".into(), options).await.unwrap();
        }
        ledger.hand_over(0, &BatchId::new(&format!("{id}-inner")).unwrap(), None).await.unwrap();
        let plan = Plan { children, queue: "joins".to_owned(), text: String::new(), job: None };
        ledger.seal(&plan).await.unwrap();
        ledger.make_secret().await.unwrap();
        ledger.note_continued().await.unwrap();
    }

    #[tokio::test]
    async fn batch_in_which_a_listing_ends_keeps_its_state() {
        let storage = Storage::memory();
        put(&storage, "b", 5_001, 5_001).await;
        put(&storage, "b-inner", 0, 0).await;
        put(&storage, "c", 0, 0).await;
        let (listed, complete) = batches(&storage, 1).await.unwrap();
        let [batch, inner] = &listed[..] else { panic!("{listed:?}") };
        assert!(!complete);
        assert_eq!(inner.parent, Some(("b".to_owned(), 0)));
        assert!(batch.sealed && batch.finished, "{batch:?}");
        assert_eq!(batch.children, Some(5_001));
        let ended = batch.ended.len() as u64;
        assert!(ended < 5_001 && batch.listed_until == Some(ended - 1), "{batch:?}");
        let (listed, complete) = batches(&storage, 2).await.unwrap();
        assert!(complete && listed.iter().all(|batch| batch.listed_until.is_none()));
        assert_eq!(listed[0].ended.len(), 5_001);
        assert_eq!(listed[0].failed.len(), 1);
    }

    // The tombstones of a year must not fill the listing.
    #[tokio::test]
    async fn tombstones_take_no_place_in_a_listing() {
        let storage = Storage::memory();
        put(&storage, "z", 1, 1).await;
        for number in 0..5_001 {
            let tombstone = BatchId::new(&format!("a-{number:04}")).unwrap().tombstone().unwrap();
            put_creating(&**storage.blobs(), &tombstone, "{}".into(), PutBlob::if_absent()).await.unwrap();
        }
        let (listed, complete) = batches(&storage, 1).await.unwrap();
        assert_eq!(listed.len(), 1, "{listed:?}");
        assert!(complete && listed[0].id == "z");
    }

    #[tokio::test]
    async fn children_beyond_the_plan_are_not_counted() {
        let storage = Storage::memory();
        put(&storage, "b", 3, 2).await;
        let (listed, _) = batches(&storage, 1).await.unwrap();
        assert_eq!(listed[0].ended.len(), 2);
        assert_eq!(listed[0].failed.len(), 1);
    }

    #[test]
    fn parent_is_found_in_either_encoding() {
        let event = r#"{"specversion":"1.0","id":"1","source":"/s","type":"join","batchid":"outer","batchindex":"7","data":{}}"#;
        for encoding in [MessageEncoding::Plain, MessageEncoding::Base64] {
            assert_eq!(parent(&to_wire(event.to_owned(), encoding)), Some(("outer".to_owned(), 7)));
        }
    }
}
