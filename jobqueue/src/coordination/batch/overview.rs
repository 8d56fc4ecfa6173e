//! All batches of a storage, and the children that hold one up.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use super::ledger::{FAILED, Ledger, for_each_blob, page};
use super::names::{BATCH, BatchId, CHILDREN, INDEX, INNER, SWEPT, batch_of, child_of};
use super::{BatchProgress, progress};
use crate::envelope::{Parsed, parse};
use crate::error::Error;
use crate::storage::Storage;

/// The data of a batch that a listing contains.
#[derive(Debug, Clone, Default)]
pub struct BatchRecord {
    /// The id.
    pub id: String,
    /// The batch that waits for this one, and the number of its child that ends with it.
    pub parent: Option<(String, u64)>,
    /// The number of children, once the batch is sealed.
    pub children: Option<u64>,
    /// The number of children that are done.
    pub done: u64,
    /// The number of children that were dead-lettered and count as ended.
    pub failed: u64,
    /// The numbers of the children that have ended.
    pub ended: BTreeSet<u64>,
    /// True if no more children are sent.
    pub sealed: bool,
    /// True if the continuation has run.
    pub finished: bool,
    /// The time of the last change.
    pub modified: Option<SystemTime>,
}

/// Returns all batches that `pages` pages of 5,000 blobs show, and whether these were all.
pub async fn batches(storage: &Storage, pages: usize) -> Result<(Vec<BatchRecord>, bool), Error> {
    let (mut found, mut next) = (BTreeMap::<String, BatchRecord>::new(), None::<String>);
    let (mut parents, mut done) = (Vec::new(), None);
    for _ in 0..pages {
        let page = page(storage, "", next.as_deref()).await?;
        for (name, properties) in page.blobs {
            let Some((id, rest)) = batch_of(&name).filter(|(_, rest)| *rest != SWEPT) else { continue };
            let batch = found.entry(id.to_owned()).or_default();
            id.clone_into(&mut batch.id);
            batch.modified = batch.modified.max(Some(properties.modified));
            if let Some(index) = rest.strip_prefix("handover/").and_then(|index| index.parse().ok()) {
                let inner = properties.metadata.get(INNER).map(ToString::to_string);
                parents.extend(inner.map(|inner| (inner, (id.to_owned(), index))));
            }
            match rest {
                "plan" => {
                    batch.sealed = true;
                    batch.children =
                        properties.metadata.get(CHILDREN).and_then(|children| children.parse().ok());
                }
                "done" => (batch.finished, done) = (true, Some(properties.modified)),
                // The mark is that of a former batch of this id.
                "token" if done < Some(properties.modified) => batch.finished = false,
                marker if marker.starts_with("0/") => {
                    let is_failed = properties.metadata.get(FAILED).is_some();
                    *(if is_failed { &mut batch.failed } else { &mut batch.done }) += 1;
                    batch.ended.extend(child_of(marker));
                }
                _ => {}
            }
        }
        next = page.next;
        if next.is_none() {
            break;
        }
    }
    for (inner, parent) in parents {
        if let Some(batch) = found.get_mut(&inner) {
            batch.parent = Some(parent);
        }
    }
    Ok((found.into_values().collect(), next.is_none()))
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
    /// The batches with whose continuations children end, by the numbers of the children.
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

/// Returns the batch to which a continuation belongs, and the number of its child.
fn parent(continuation: &str) -> Option<(String, u64)> {
    let Ok(Parsed::Event(event)) = parse(continuation) else { return None };
    let headers = event.headers();
    Some((headers.get(BATCH)?.clone(), headers.get(INDEX)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envelope::to_wire;
    use crate::settings::MessageEncoding;

    #[test]
    fn parent_is_found_in_either_encoding() {
        let event = r#"{"specversion":"1.0","id":"1","source":"/s","type":"join","batchid":"outer","batchindex":"7","data":{}}"#;
        for encoding in [MessageEncoding::Plain, MessageEncoding::Base64] {
            assert_eq!(parent(&to_wire(event.to_owned(), encoding)), Some(("outer".to_owned(), 7)));
        }
    }
}
