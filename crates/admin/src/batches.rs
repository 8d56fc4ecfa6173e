//! Batches with their progress, and the children that hold one up.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use jobqueue::__internals::{BATCH_SOURCES, BatchRecord, batches, open_children};
use jobqueue::{Error, ErrorKind};
use serde::Serialize;

use super::text::rfc3339_option;
use super::{Admin, DeadLetterFilter};

/// The most pages of 5,000 blobs that are listed.
const PAGES: usize = 40;
/// The depth from which a batch is not indented further.
const DEEPEST: usize = 20;
/// The most children that hold a batch up and are shown.
const MOST: usize = 100;

/// All batches that were found.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct BatchList {
    /// The batches, in order of id.
    pub batches: Vec<BatchOverview>,
    /// True if these are all; otherwise there are too many blobs to look through.
    pub complete: bool,
}

/// A batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BatchOverview {
    /// The id.
    pub id: String,
    /// The child of another batch that ends with this one, if a job of that batch has begun it.
    pub parent: Option<ParentBatch>,
    /// The number of children, once the batch is sealed.
    pub children: Option<u64>,
    /// The number of children that are done.
    pub done: u64,
    /// The number of children that were dead-lettered and count as ended.
    pub failed: u64,
    /// True if no more children are sent.
    pub sealed: bool,
    /// True if the continuation has run.
    pub finished: bool,
    /// The time of the last change.
    #[serde(serialize_with = "rfc3339_option")]
    pub modified: Option<SystemTime>,
}

/// The child of another batch with which a batch ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ParentBatch {
    /// The id of the other batch.
    pub batch: String,
    /// The number of its child.
    pub child: u64,
}

impl ParentBatch {
    fn new(batch: String, child: u64) -> Self {
        Self { batch, child }
    }
}

/// A batch with its blocking children.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BatchDetail {
    /// The id.
    pub id: String,
    /// The child of another batch that ends with this one, once this one is sealed.
    pub parent: Option<ParentBatch>,
    /// The number of children that were sent.
    pub children: u64,
    /// The number of children that are done.
    pub done: u64,
    /// The number of children that were dead-lettered and count as ended.
    pub failed: u64,
    /// True if no more children are sent. Before that a batch waits for its sender.
    pub sealed: bool,
    /// True if the continuation has run.
    pub finished: bool,
    /// The queue of the continuation, once the batch is sealed.
    pub continuation_queue: Option<String>,
    /// The children that have not ended: the first 100.
    pub open: Vec<OpenChild>,
    /// The queues that could not be looked at: children that are `unseen` may be there.
    pub unread: Vec<String>,
}

/// A child that has not ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct OpenChild {
    /// The number of the child.
    pub index: u64,
    /// The id of its job.
    pub job: String,
    /// The place in which it was found: `running`, `waiting`, `dead`; `fanned_out` if it waits for a [batch](Self::batch) of its own;
    /// `unseen` if the job cannot be found.
    pub place: &'static str,
    /// The batch with whose continuation it ends, if its job has begun one.
    pub batch: Option<String>,
    /// The queue in which it was found.
    pub queue: Option<String>,
    /// The error of a dead letter.
    pub error: Option<String>,
}

impl BatchOverview {
    /// Returns the state in words.
    pub fn state(&self) -> &'static str {
        state(self.finished, self.sealed)
    }
}

impl BatchDetail {
    /// Returns the state in words.
    pub fn state(&self) -> &'static str {
        state(self.finished, self.sealed)
    }
}

fn state(finished: bool, sealed: bool) -> &'static str {
    match (finished, sealed) {
        (true, _) => "finished",
        (false, true) => "waits for its children",
        (false, false) => "waits for its sender",
    }
}

impl BatchList {
    /// Returns the batches as a tree, from top to bottom, each behind the branch that leads to it, such as `· └ `: a batch that a child of
    /// another has begun comes below that one. Those that are not finished come first, then those that changed last.
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
            tree.push(("· ".repeat(depth.clamp(1, DEEPEST) - 1) + branch, batch));
            let below = nested.remove(batch.id.as_str()).unwrap_or_default();
            left.extend(below.into_iter().rev().map(|batch| (depth + 1, batch)));
        }
        // A program has written batches that contain each other.
        tree.extend(nested.into_values().flatten().map(|batch| (String::new(), batch)));
        tree
    }
}

impl Admin {
    /// Returns all batches whose records are in the storage. Every child that has ended has a blob: listing costs one request for 5,000,
    /// and stops after 200,000.
    ///
    /// # Errors
    /// [`Storage`](ErrorKind::Storage) when the records cannot be listed.
    ///
    /// # Cancel safety
    /// It only reads.
    pub async fn batches(&self) -> Result<BatchList, Error> {
        let (found, complete) = batches(&self.storage, PAGES).await?;
        let overview = |batch: BatchRecord| BatchOverview {
            id: batch.id,
            parent: batch.parent.map(|(batch, child)| ParentBatch::new(batch, child)),
            children: batch.children,
            done: batch.done,
            failed: batch.failed,
            sealed: batch.sealed,
            finished: batch.finished,
            modified: batch.modified,
        };
        Ok(BatchList { batches: found.into_iter().map(overview).collect(), complete })
    }

    /// Returns a batch with the children that hold it up, as far as peeks of all queues, their dead letters and the workers' records show
    /// them. Costs six requests, one for 5,000 children that have ended, and three for each queue and one for each worker.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) if there is no such batch; [`Invalid`](ErrorKind::Invalid) for an id that is not allowed;
    /// [`Storage`](ErrorKind::Storage) when something cannot be read.
    ///
    /// # Cancel safety
    /// It only reads.
    pub async fn batch(&self, id: &str) -> Result<BatchDetail, Error> {
        let missing =
            || Error::new(ErrorKind::NotFound, format!("there is no batch `{}`", id.escape_debug()));
        let open = open_children(&self.storage, id, MOST).await?.ok_or_else(missing)?;
        let (places, unread) = match open.first.is_empty() {
            true => Default::default(),
            false => self.children_of(id).await?,
        };
        let child = |index: u64| {
            let batch = open.nested.get(&index).cloned();
            let elsewhere = if batch.is_some() { "fanned_out" } else { "unseen" };
            let unseen =
                FoundChild { job: format!("{id}/{index}"), place: elsewhere, queue: None, error: None };
            let FoundChild { job, place, queue, error } = places.get(&index).cloned().unwrap_or(unseen);
            OpenChild { index, job, place, batch, queue, error }
        };
        let progress = open.progress;
        Ok(BatchDetail {
            id: id.to_owned(),
            parent: open.parent.clone().map(|(batch, child)| ParentBatch::new(batch, child)),
            children: progress.children,
            done: progress.done,
            failed: progress.failed,
            sealed: progress.sealed,
            finished: progress.finished,
            continuation_queue: open.continuation_queue,
            open: open.first.iter().copied().map(child).collect(),
            unread,
        })
    }

    /// Returns the children of a batch that can be seen anywhere, by their numbers, and the queues that could not be looked at.
    async fn children_of(&self, id: &str) -> Result<(BTreeMap<u64, FoundChild>, Vec<String>), Error> {
        let (mut places, mut unread) = (BTreeMap::new(), Vec::new());
        for queue in self.queue_names().await?.iter().filter(|queue| !queue.is_dead_letter()) {
            let waiting = self.peek(queue.as_str()).await;
            let dead = match queue.dead_letter() {
                Ok(_) => self.dead_letters(queue.as_str(), &DeadLetterFilter::new()).await,
                Err(too_long) => Err(too_long.into()),
            };
            let dead = dead.map(|page| page.letters);
            // A queue that was deleted since, or whose name is too long for dead letters, has none.
            let is_read = |e: &Error| matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Invalid);
            if [&waiting, &dead].iter().any(|jobs| jobs.as_ref().is_err_and(|e| !is_read(e))) {
                unread.push(queue.to_string());
            }
            for (jobs, place) in
                [(waiting.unwrap_or_default(), "waiting"), (dead.unwrap_or_default(), "dead")]
            {
                for job in jobs {
                    let Some(index) = job.batch.filter(|batch| batch.id == id).and_then(|batch| batch.index)
                    else {
                        continue;
                    };
                    let error = job.last_error.filter(|_| place == "dead");
                    let queue = Some(queue.to_string());
                    places.insert(index, FoundChild { job: job.id, place, queue, error });
                }
            }
        }
        for worker in self.workers().await? {
            let running = worker.record.running.into_iter();
            for job in running.filter(|job| job.source.starts_with(BATCH_SOURCES)) {
                let index = job.id.strip_prefix(id).and_then(|rest| rest.strip_prefix('/')?.parse().ok());
                if let Some(index) = index {
                    let queue = Some(job.queue);
                    places.insert(index, FoundChild { job: job.id, place: "running", queue, error: None });
                }
            }
        }
        Ok((places, unread))
    }
}

/// The place in which a child was found.
#[derive(Clone)]
struct FoundChild {
    /// The id of the job: that of a continuation if the child ends with it.
    job: String,
    place: &'static str,
    queue: Option<String>,
    error: Option<String>,
}
