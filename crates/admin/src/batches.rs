//! Batches with their progress, and the children that hold one up.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use futures_util::{StreamExt, stream};
use jobqueue::__internals::{BatchRecord, batch_children, batches};
use jobqueue::{Error, ErrorKind, QueueName};
use serde::Serialize;

use super::membership::Memberships;
use super::text::rfc3339_option;
use super::{Admin, DeadLetterFilter, DeadLetterPage, QueueHold, RawJob, WorkerOverview};

/// The number of looks at batches that are made at once.
const AT_ONCE: usize = 8;
/// The most pages of 5,000 blobs that are listed.
const PAGES: usize = 40;
/// The depth from which a batch is not indented further.
const DEEPEST: usize = 20;
/// The most open children that are named.
const MOST: usize = 100;

/// All batches that were found.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct BatchList {
    /// The batches, in order of id.
    pub batches: Vec<BatchOverview>,
    /// True if these are all; otherwise there are too many blobs to look through, and batches with later ids are left out.
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
    /// The number of children that were dead-lettered and count as ended: until they are redriven and done.
    pub failed: u64,
    /// True if all children that have ended were counted; otherwise the listing ended before the last of them.
    pub ended_is_exact: bool,
    /// The number of children that were found among the dead letters and hold the batch up.
    pub dead: u64,
    /// True if there are certainly no more; otherwise a queue has more than the 32 dead letters that were looked at, or cannot be read, or
    /// not all children that have ended were counted.
    pub dead_is_exact: bool,
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
    /// The number of children that were dead-lettered and count as ended: until they are redriven and done.
    pub failed: u64,
    /// The number of children that were found among the dead letters and hold the batch up.
    pub dead: u64,
    /// True if there are certainly no more; otherwise a queue has more than the 32 dead letters that were looked at, or cannot be read.
    pub dead_is_exact: bool,
    /// True if no more children are sent. Before that a batch waits for its sender.
    pub sealed: bool,
    /// True if the continuation has run.
    pub finished: bool,
    /// The queue of the continuation, once the batch is sealed.
    pub continuation_queue: Option<String>,
    /// The children that have not ended, those that are dead letters first: at most 100.
    pub open: Vec<OpenChild>,
    /// The queues in which some of these wait and do not begin, each with the reason.
    pub held_up: BTreeMap<String, QueueHold>,
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
    /// The sender of its job, if the job was found: other senders may use the same id.
    pub source: Option<String>,
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
    /// and stops after 200,000: of the batch in which it stops, four more requests read the state. The dead letters of all queues cost a request to list the queues, two for each, and one for each
    /// batch that they name.
    ///
    /// # Errors
    /// [`Storage`](ErrorKind::Storage) when the records cannot be listed.
    pub async fn batches(&self) -> Result<BatchList, Error> {
        let (found, complete) = batches(&self.storage, PAGES).await?;
        let (dead, looked_at_all) = match found.iter().all(|batch| batch.finished) {
            true => (BTreeMap::new(), true),
            // The records say the rest, also if the queues cannot be listed.
            false => self.dead_children().await.unwrap_or_default(),
        };
        let overview = |batch: BatchRecord| {
            let dead = dead.get(&batch.id).filter(|_| !batch.finished);
            // Whether later ones have ended is not known.
            let listed = ..=batch.listed_until.unwrap_or(u64::MAX);
            let blocks = |child: &&u64| !batch.ended.contains(child);
            let dead = dead.map_or(0, |dead| dead.range(listed).filter(blocks).count() as u64);
            let (ended, failed) = (batch.ended.len() as u64, batch.failed.len() as u64);
            let ended_is_exact = batch.listed_until.is_none();
            BatchOverview {
                parent: batch.parent.map(|(batch, child)| ParentBatch { batch, child }),
                children: batch.children,
                done: ended - failed,
                failed,
                ended_is_exact,
                dead,
                dead_is_exact: (looked_at_all && ended_is_exact)
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

    /// Returns the numbers of the children of each batch that are found among the dead letters, and whether all dead letters were looked at.
    async fn dead_children(&self) -> Result<(BTreeMap<String, BTreeSet<u64>>, bool), Error> {
        let queues = self.queue_names().await?.into_iter().filter(|queue| !queue.is_dead_letter());
        let looks = queues.map(|queue| async move { self.some_dead_letters(&queue).await });
        let (mut dead, mut is_exact) = (BTreeMap::<_, BTreeSet<_>>::new(), true);
        let mut looks = stream::iter(looks).buffer_unordered(AT_ONCE);
        while let Some(look) = looks.next().await {
            let page = look.unwrap_or_default();
            is_exact &= page.complete && page.letters.iter().all(|letter| letter.claimed.is_none());
            for batch in page.letters.into_iter().filter_map(|letter| letter.batch) {
                dead.entry(batch.id).or_default().extend(batch.index);
            }
        }
        Ok((dead, is_exact))
    }

    /// Returns the first dead letters of a queue; none of one that was deleted since, or whose name is too long for dead letters.
    async fn some_dead_letters(&self, queue: &QueueName) -> Result<DeadLetterPage, Error> {
        match self.dead_letters(queue.as_str(), &DeadLetterFilter::new()).await {
            Err(e) if has_none(&e) => Ok(DeadLetterPage { complete: true, ..DeadLetterPage::default() }),
            page => page,
        }
    }

    /// Returns a batch with the children that hold it up, as far as peeks of all queues, their dead letters and the workers' records show
    /// them. Costs seven requests, one for each further 5,000 children that have ended, three for each queue, and three more
    /// where a child waits in it, one for each batch that its jobs name, and one for each worker.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) if there is no such batch; [`Invalid`](ErrorKind::Invalid) for an id that is not allowed;
    /// [`Storage`](ErrorKind::Storage) when something cannot be read.
    pub async fn batch(&self, id: &str) -> Result<BatchDetail, Error> {
        let missing =
            || Error::new(ErrorKind::NotFound, format!("there is no batch `{}`", id.escape_debug()));
        let found = batch_children(&self.storage, id).await?.ok_or_else(missing)?;
        let (progress, ended) = (found.progress, found.ended);
        let FoundChildren { places, unread, dead_is_exact, workers } = match progress.left() {
            0 => FoundChildren { dead_is_exact: true, ..FoundChildren::default() },
            _ => self.children_of(id).await?,
        };
        let dead = places.iter().filter(|(index, child)| child.place == "dead" && !ended.contains(*index));
        let dead: BTreeSet<u64> = dead.map(|(index, _)| *index).collect();
        let others = (0..progress.children).filter(|index| !ended.contains(index) && !dead.contains(index));
        let child = |index: u64| {
            let batch = found.nested.get(&index).cloned();
            let place = if batch.is_some() { "fanned_out" } else { "unseen" };
            let job = format!("{id}/{index}");
            let unseen = OpenChild { index, job, source: None, place, batch: None, queue: None, error: None };
            OpenChild { batch, ..places.get(&index).cloned().unwrap_or(unseen) }
        };
        let open: Vec<_> = dead.iter().copied().chain(others).take(MOST).map(child).collect();
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
            dead: dead.len() as u64,
            dead_is_exact,
            sealed: progress.sealed,
            finished: progress.finished,
            continuation_queue: found.continuation_queue.clone(),
            open,
            held_up,
            unread,
        })
    }

    /// Returns the children of a batch that can be seen anywhere.
    async fn children_of(&self, id: &str) -> Result<FoundChildren, Error> {
        let (mut places, mut unread, mut dead_is_exact) = (BTreeMap::new(), Vec::new(), true);
        let queues = self.queue_names().await?.into_iter().filter(|queue| !queue.is_dead_letter());
        let looks = queues.map(|queue| async move {
            let waiting = self.peek(queue.as_str()).await;
            let dead = self.some_dead_letters(&queue).await;
            (queue, waiting, dead)
        });
        let mut looks = stream::iter(looks).buffered(AT_ONCE);
        while let Some((queue, waiting, dead)) = looks.next().await {
            if waiting.as_ref().is_err_and(|e| !has_none(e)) || dead.is_err() {
                unread.push(queue.to_string());
            }
            let dead = dead.unwrap_or_default();
            dead_is_exact &= dead.complete && dead.letters.iter().all(|letter| letter.claimed.is_none());
            for (jobs, place) in [(waiting.unwrap_or_default(), "waiting"), (dead.letters, "dead")] {
                for job in jobs {
                    let Some(index) = job.batch.filter(|batch| batch.id == id).and_then(|batch| batch.index)
                    else {
                        continue;
                    };
                    let error = job.last_error.filter(|_| place == "dead");
                    let queue = Some(queue.to_string());
                    let (job, source) = (job.id, Some(job.source));
                    places.insert(index, OpenChild { index, job, source, place, batch: None, queue, error });
                }
            }
        }
        let workers = self.workers().await?;
        let running = workers.iter().flat_map(|worker| &worker.record.running);
        let mut running: Vec<_> = running.map(RawJob::of_run).collect();
        Memberships::default().prove(&self.storage, &mut running, Some(id)).await?;
        for job in running {
            let Some(index) = job.batch.and_then(|batch| batch.index) else { continue };
            let (queue, source) = (Some(job.queue), Some(job.source));
            let (job, place) = (job.id, "running");
            places.insert(index, OpenChild { index, job, source, place, batch: None, queue, error: None });
        }
        Ok(FoundChildren { places, unread, dead_is_exact, workers })
    }
}

/// Returns whether a queue that cannot be looked at has no messages: it was deleted since, or its name is too long for dead letters.
fn has_none(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Invalid)
}

/// The children of a batch that a look has found.
#[derive(Default)]
struct FoundChildren {
    /// The children by their numbers.
    places: BTreeMap<u64, OpenChild>,
    /// The queues that could not be looked at.
    unread: Vec<String>,
    /// True if all dead letters were looked at.
    dead_is_exact: bool,
    /// The present workers that write records.
    workers: Vec<WorkerOverview>,
}
