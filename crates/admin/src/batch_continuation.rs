//! The continuations of batches that wait, run or are dead letters.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::{StreamExt, stream};
use jobqueue::__internals::{BatchChildren, BatchRecord, batch_source};
use serde::Serialize;

use super::batch_children::{CONCURRENT_READS, FoundChildren};
use super::in_time::in_time;
use super::{Admin, JobPlace, JobReference, RawJob};

/// The continuation of a batch whose children have all ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct OpenContinuation {
    /// The job, with its sender, which distinguishes it from jobs that others send with the same id.
    pub job: JobReference,
    /// The place in which it was found.
    pub place: JobPlace,
    /// The error, if the job is a dead letter.
    pub error: Option<String>,
    /// True if the job is certainly in no queue: it has just ended, was purged or has expired, or the child
    /// that ended last has not sent it yet. Never true without the queue: it may be another storage's that
    /// has its blobs here.
    pub is_gone: bool,
    /// True if each further look at the batch searches it at length.
    #[serde(skip)]
    pub has_long_search: bool,
}

/// The first dead letters of all queues, as far as they may block batches.
#[derive(Default)]
pub(super) struct BlockingLetters {
    /// The children by batch, with those that wait in the queues of these letters or run.
    pub(super) children: BTreeMap<String, FoundChildren>,
    /// The senders of the dead letters by id. The id of a continuation is that of its batch.
    pub(super) senders: BTreeMap<String, BTreeSet<String>>,
    /// The senders of the continuations by batch, as far as there are dead letters of the same id.
    pub(super) continuations: BTreeMap<String, String>,
    /// True if all dead letters were read.
    pub(super) is_exact: bool,
}

impl BlockingLetters {
    /// Adds the jobs that are children of batches.
    pub(super) fn add_children(&mut self, jobs: impl IntoIterator<Item = RawJob>) {
        for job in jobs {
            let Some(batch) = job.batch.as_ref().map(|batch| batch.id.clone()) else { continue };
            self.children.entry(batch.clone()).or_default().add(&batch, [job]);
        }
    }

    /// Returns whether the continuation of a batch is a dead letter; `None` if it is not known.
    pub(super) fn has_continuation(&self, batch: &BatchRecord) -> Option<bool> {
        if !may_have_continuation(batch) {
            return Some(false);
        }
        if let Some(senders) = self.senders.get(&batch.id)
            && senders.contains(self.continuations.get(&batch.id)?)
        {
            return Some(true);
        }
        self.is_exact.then_some(false)
    }
}

/// Returns whether the continuation of a batch may have been sent and has not run.
fn may_have_continuation(batch: &BatchRecord) -> bool {
    let ended = batch.ended.len() as u64;
    let has_open = batch.listed_until.is_none() && batch.children.is_some_and(|children| ended < children);
    batch.sealed && !batch.finished && !has_open
}

impl Admin {
    /// Reads the sender of each continuation of `batches` that may be among the dead letters: any producer
    /// may use the id of a batch. Costs a request for each batch whose id a dead letter has.
    pub(super) async fn find_continuations(&self, letters: &mut BlockingLetters, batches: &[BatchRecord]) {
        let named = batches.iter().filter(|batch| may_have_continuation(batch));
        let named = named.filter(|batch| letters.senders.contains_key(&batch.id));
        let named: Vec<String> = named.map(|batch| batch.id.clone()).collect();
        let (storage, found) = (&self.storage, &mut letters.continuations);
        let reads = named.into_iter().map(|batch| async move {
            let source = batch_source(storage, &batch).await;
            (batch, source)
        });
        let mut reads = stream::iter(reads).buffer_unordered(CONCURRENT_READS);
        let reading = async {
            while let Some((batch, source)) = reads.next().await {
                found.extend(source.ok().flatten().map(|source| (batch, source)));
            }
            Ok(())
        };
        // What was not read in time is not known.
        let _ = in_time(reading).await;
    }

    /// Returns the continuation of a batch whose children have all ended; `None` if it has run, or if it
    /// cannot be read.
    pub(super) async fn continuation_of(&self, id: &str, batch: &BatchChildren) -> Option<OpenContinuation> {
        let progress = batch.progress;
        let waits = progress.sealed && !progress.finished && progress.left() == 0;
        let queue = batch.continuation_queue.as_deref().filter(|_| waits)?;
        let reading = async {
            let Some(source) = batch_source(&self.storage, id).await? else { return Ok(None) };
            // The batch itself records that the continuation has run.
            let job = JobReference::new(queue, id).with_source(source);
            self.explain_without_history(&job).await.map(Some)
        };
        let found = in_time(reading).await.ok()??;
        let is_dead = found.place == JobPlace::Dead;
        // Whether its turn has come is read from the logs of all keys, and a job that was not found is
        // searched twice.
        let may_wait = !is_dead && found.place != JobPlace::Running;
        let is_in_order = may_wait && found.message.as_ref().is_some_and(|message| message.in_order);
        let is_missing = found.place == JobPlace::Unseen;
        Some(OpenContinuation {
            job: found.job,
            place: found.place,
            error: found.message.and_then(|message| message.last_error).filter(|_| is_dead),
            is_gone: found.has_ended && found.has_no_letter,
            has_long_search: found.has_long_search || is_in_order || is_missing,
        })
    }
}
