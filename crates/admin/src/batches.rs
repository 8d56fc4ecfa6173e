//! Batches with their progress, and the children that block a batch.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use futures_util::{StreamExt, stream};
use jobqueue::__internals::{BatchRecord, batch_children, batches};
use jobqueue::{Error, ErrorKind};
use serde::Serialize;

use super::batch_children::{CONCURRENT_READS, FoundChildren, OpenChild};
use super::batch_continuation::{BlockingLetters, OpenContinuation};
use super::membership::Memberships;
use super::text::rfc3339_option;
use super::{Admin, QueueHold, RawJob};

/// The most pages of 5,000 blobs that a listing of all batches reads.
const MAX_PAGES: usize = 40;
/// The depth below which batches are not indented further.
const MAX_INDENT: usize = 20;

/// All batches that were found.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct BatchList {
    /// The batches, in order of id.
    pub batches: Vec<BatchOverview>,
    /// True if these are all batches; otherwise there are too many blobs to list, and batches with later ids
    /// are left out.
    pub complete: bool,
}

/// A batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BatchOverview {
    /// The id.
    pub id: String,
    /// The child of another batch that ends with this batch, if a job of the other batch has started this
    /// one.
    pub parent: Option<ParentBatch>,
    /// The number of children, once the batch is sealed.
    pub children: Option<u64>,
    /// The number of children that are done.
    pub done: u64,
    /// The number of children that were dead-lettered and count as ended until they are redriven and done.
    pub failed: u64,
    /// True if all children that have ended were counted; otherwise the listing stopped before the last of
    /// them.
    pub ended_is_exact: bool,
    /// The number of children that are dead letters and block the batch. A letter of a child of which the
    /// first messages of its queue or the records of workers show a later message does not count.
    pub dead: u64,
    /// True if there are certainly no more dead children. False only if a queue has more than the 32 dead
    /// letters that were read, if a queue cannot be read, or if not all children that have ended were
    /// counted.
    pub dead_is_exact: bool,
    /// True if the continuation is a dead letter, and blocks the batch. `None` if this is not known: it may
    /// be behind the dead letters that were read, or in a queue that cannot be read.
    pub continuation_is_dead: Option<bool>,
    /// True if the sender sends no more children.
    pub sealed: bool,
    /// True if the continuation has run.
    pub finished: bool,
    /// The time of the last change.
    #[serde(serialize_with = "rfc3339_option")]
    pub modified: Option<SystemTime>,
}

/// The child of another batch that ends when this batch ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ParentBatch {
    /// The id of the other batch.
    pub batch: String,
    /// The number of its child.
    pub child: u64,
}

/// A batch with the children that block it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BatchDetail {
    /// The id.
    pub id: String,
    /// The child of another batch that ends with this batch, once this batch is sealed.
    pub parent: Option<ParentBatch>,
    /// The number of children that were sent.
    pub children: u64,
    /// The number of children that are done.
    pub done: u64,
    /// The number of children that were dead-lettered and count as ended until they are redriven and done.
    pub failed: u64,
    /// The number of children that are dead letters and block the batch.
    pub dead: u64,
    /// True if there are certainly no more dead children. False only if a queue has more dead letters than
    /// were read, the first 32, or 10,000 if the storage shows all jobs, or if a queue cannot be read.
    pub dead_is_exact: bool,
    /// True if the sender sends no more children. Before that the batch waits for its sender.
    pub sealed: bool,
    /// True if the continuation has run.
    pub finished: bool,
    /// The queue of the continuation, once the batch is sealed.
    pub continuation_queue: Option<String>,
    /// The continuation, once all children have ended and until it has run. `None` also if it cannot be read.
    pub continuation: Option<OpenContinuation>,
    /// The children that have not ended, dead letters first: at most 100.
    pub open: Vec<OpenChild>,
    /// The queues in which some of these children wait and do not start, each with the reason.
    pub held_up: BTreeMap<String, QueueHold>,
    /// The queues that could not be read: `unseen` children may be there.
    pub unread: Vec<String>,
}

impl BatchList {
    /// Returns the batches as a tree, from top to bottom, each with the branch to draw before it, such as
    /// `· └ `. A batch that was started by a child of another batch comes below that batch. Unfinished
    /// batches come first, then the most recently changed.
    pub fn tree(&self) -> Vec<(String, &BatchOverview)> {
        let known: BTreeSet<&str> = self.batches.iter().map(|batch| batch.id.as_str()).collect();
        let mut nested = BTreeMap::<&str, Vec<&BatchOverview>>::new();
        let mut roots = Vec::new();
        for batch in &self.batches {
            match batch.parent.as_ref().filter(|parent| known.contains(parent.batch.as_str())) {
                Some(parent) => nested.entry(&parent.batch).or_default().push(batch),
                None => roots.push(batch),
            }
        }
        roots.sort_by_key(|batch| (batch.finished, Reverse(batch.modified)));
        for batches in nested.values_mut() {
            batches.sort_by_key(|batch| batch.parent.as_ref().map(|parent| parent.child));
        }
        let (mut tree, mut left) = (Vec::new(), Vec::new());
        left.extend(roots.into_iter().rev().map(|root| (0, root)));
        while let Some((depth, batch)) = left.pop() {
            let branch = if depth == 0 { "" } else { "└ " };
            tree.push(("· ".repeat(depth.clamp(1, MAX_INDENT) - 1) + branch, batch));
            let below = nested.remove(batch.id.as_str()).unwrap_or_default();
            left.extend(below.into_iter().rev().map(|batch| (depth + 1, batch)));
        }
        // Only a broken program writes batches that contain each other: they have no root, and come last.
        tree.extend(nested.into_values().flatten().map(|batch| (String::new(), batch)));
        tree
    }
}

impl Admin {
    /// Returns all batches whose records are in the storage. Lists one blob per ended child, 5,000 a request,
    /// at most 200,000; if the listing stops there, at least four more requests read the state of the batch
    /// at the cut. Unless all batches are finished, the dead letters of all queues cost a request to list the
    /// queues, two for each queue, and one for each batch that the dead letters name, or whose continuation
    /// may be among them. Dead letters of children cost a request more for their queue, one for each batch
    /// that its first messages name, and the records of [`workers`](Self::workers), with one for each batch
    /// of which a child runs.
    ///
    /// # Errors
    /// [`Storage`](ErrorKind::Storage) if the records cannot be listed.
    pub async fn batches(&self) -> Result<BatchList, Error> {
        let (found, complete) = batches(&self.storage, MAX_PAGES).await?;
        let letters = if found.iter().all(|batch| batch.finished) {
            BlockingLetters { is_exact: true, ..BlockingLetters::default() }
        } else {
            // If the queues cannot be listed, the records still show everything else.
            let mut letters = self.blocking_letters().await.unwrap_or_default();
            self.find_continuations(&mut letters, &found).await;
            letters
        };
        let overview = |batch: BatchRecord| {
            let dead = letters.children.get(&batch.id).filter(|_| !batch.finished);
            // Children after the last listed one may have ended, so their dead letters are not counted.
            let listed = ..=batch.listed_until.unwrap_or(u64::MAX);
            let dead = dead.map_or(0, |found| found.dead(&batch.ended).range(listed).count() as u64);
            let (ended, failed) = (batch.ended.len() as u64, batch.failed.len() as u64);
            let ended_is_exact = batch.listed_until.is_none();
            BatchOverview {
                continuation_is_dead: letters.has_continuation(&batch),
                parent: batch.parent.map(|(batch, child)| ParentBatch { batch, child }),
                children: batch.children,
                done: ended - failed,
                failed,
                ended_is_exact,
                dead,
                dead_is_exact: (letters.is_exact && ended_is_exact)
                    || batch.finished
                    || batch.children == Some(ended + dead),
                sealed: batch.sealed,
                finished: batch.finished,
                modified: batch.modified,
                id: batch.id,
            }
        };
        Ok(BatchList { batches: found.into_iter().map(overview).collect(), complete })
    }

    /// Returns the first dead letters of each queue, with the children that wait in the same queues or run: a
    /// redrive may have left a letter of such a child.
    async fn blocking_letters(&self) -> Result<BlockingLetters, Error> {
        let queues = self.queue_names().await?.into_iter().filter(|queue| !queue.is_dead_letter());
        let reads = queues.map(|queue| async move {
            let dead = self.first_dead_letters(&queue).await.unwrap_or_default();
            let has_children = dead.letters.iter().any(|letter| letter.batch.is_some());
            let waiting = if has_children { self.peek(queue.as_str()).await } else { Ok(Vec::new()) };
            (dead, waiting.unwrap_or_default())
        });
        let mut found = BlockingLetters { is_exact: true, ..BlockingLetters::default() };
        let mut reads = stream::iter(reads).buffer_unordered(CONCURRENT_READS);
        while let Some((dead, waiting)) = reads.next().await {
            found.is_exact &= dead.complete && dead.letters.iter().all(|letter| letter.claimed.is_none());
            for letter in &dead.letters {
                found.senders.entry(letter.id.clone()).or_default().insert(letter.source.clone());
            }
            found.add_children(dead.letters.into_iter().chain(waiting));
        }
        if !found.children.is_empty() {
            let workers = self.workers().await.unwrap_or_default();
            let running = workers.iter().flat_map(|worker| &worker.record.running).map(RawJob::of_run);
            let of_known = |job: &RawJob| {
                job.claimed.as_ref().is_some_and(|claimed| found.children.contains_key(&claimed.batch))
            };
            let mut running: Vec<_> = running.filter(of_known).collect();
            Memberships::default().prove(&self.storage, &mut running, None).await?;
            found.add_children(running);
        }
        Ok(found)
    }

    /// Returns a batch with the children that block it, as far as peeks of all queues, their dead letters and
    /// the records of workers show them. Costs seven requests, one for each further 5,000 children that have
    /// ended, three for each queue and three more if a child waits in it, one for each batch that its jobs
    /// name, and one for each worker. Once all children have ended, the continuation is searched instead, as
    /// [`explain`](Self::explain) searches a job.
    ///
    /// If the storage [shows which jobs run](Self::shows_running_jobs), children and dead letters that are not
    /// among the first are searched as [`explain`](Self::explain) searches a job: among the first 10,000 of each
    /// state in each queue, at a request for each 1,000, and one more for each such page that names the
    /// batch. The search ends once all children to show were found.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) if there is no such batch; [`Invalid`](ErrorKind::Invalid) for an id
    /// that is not allowed; [`Storage`](ErrorKind::Storage) if something cannot be read.
    pub async fn batch(&self, id: &str) -> Result<BatchDetail, Error> {
        let missing =
            || Error::new(ErrorKind::NotFound, format!("there is no batch `{}`", id.escape_debug()));
        let found = batch_children(&self.storage, id).await?.ok_or_else(missing)?;
        let progress = found.progress;
        let continuation = self.continuation_of(id, &found).await;
        let open = match progress.left() {
            0 => FoundChildren { dead_is_exact: true, ..FoundChildren::default() },
            _ => self.children_of(id, &found).await?,
        };
        let (dead, named) = (open.dead(&found.ended).len() as u64, open.named(&found));
        let FoundChildren { places, unread, dead_is_exact, workers, .. } = open;
        let child = |index: u64| {
            let batch = found.nested.get(&index).cloned();
            let place = if batch.is_some() { "fanned_out" } else { "unseen" };
            let job = format!("{id}/{index}");
            let unseen = OpenChild { index, job, source: None, place, batch: None, queue: None, error: None };
            OpenChild { batch, ..places.get(&index).cloned().unwrap_or(unseen) }
        };
        let open: Vec<_> = named.into_iter().map(child).collect();
        let waiting =
            open.iter().filter(|child| child.place == "waiting").filter_map(|child| child.queue.clone());
        let mut held_up = BTreeMap::new();
        for queue in waiting.collect::<BTreeSet<_>>() {
            let hold = self.queue(&queue).await.ok().and_then(|overview| overview.hold(&workers));
            held_up.extend(hold.map(|hold| (queue, hold)));
        }
        Ok(BatchDetail {
            id: id.to_owned(),
            parent: found.parent.clone().map(|(batch, child)| ParentBatch { batch, child }),
            children: progress.children,
            done: progress.done,
            failed: progress.failed,
            dead,
            dead_is_exact,
            sealed: progress.sealed,
            finished: progress.finished,
            continuation_queue: found.continuation_queue.clone(),
            continuation,
            open,
            held_up,
            unread: unread.into_iter().collect(),
        })
    }
}
