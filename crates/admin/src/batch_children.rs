//! The places of the children of a batch that have not ended.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use futures_util::{StreamExt, stream};
use jobqueue::__internals::BatchChildren;
use jobqueue::{Error, ErrorKind, QueueName};
use jobqueue_message::times::parse_rfc3339;
use serde::Serialize;

use super::found_letters::raw_letter;
use super::in_time::in_time;
use super::jobs::{MAX_SEARCHED_FOR_JOB, PAGE_SIZE};
use super::membership::Memberships;
use super::{Admin, DeadLetterFilter, DeadLetterPage, JobFilter, JobState, RawJob, WorkerOverview};

/// The most open children that [`Admin::batch`] names.
const MAX_NAMED_CHILDREN: usize = 100;
/// The number of queues that are read concurrently.
pub(super) const CONCURRENT_READS: usize = 8;

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
    /// The place in which the job was found: `running`, `waiting`, `delayed`, `backing_off` or `dead`;
    /// `fanned_out` if the child waits for a nested [batch](Self::batch); `unseen` if the job was not found:
    /// it may be behind the messages that were read, or has just moved or ended, or was lost with its queue.
    pub place: &'static str,
    /// The nested batch whose continuation ends this child, if its job has started a batch.
    pub batch: Option<String>,
    /// The queue in which it was found.
    pub queue: Option<String>,
    /// The error, if the job is a dead letter.
    pub error: Option<String>,
}

/// The children of a batch that were found.
#[derive(Default)]
pub(super) struct FoundChildren {
    /// The children by number.
    pub(super) places: BTreeMap<u64, OpenChild>,
    /// The queues in which children run by the records of workers.
    pub(super) recorded: BTreeSet<String>,
    /// The times at which the messages of these children were inserted, by the storage's clock.
    pub(super) inserted: BTreeMap<u64, SystemTime>,
    /// The queues that could not be read.
    pub(super) unread: BTreeSet<String>,
    /// True if all dead letters were read.
    pub(super) dead_is_exact: bool,
    /// The present workers that write records.
    pub(super) workers: Vec<WorkerOverview>,
}

impl FoundChildren {
    /// Adds the jobs that are children of the batch, in the place of their state. A dead letter stays in its
    /// place, because the record of a worker may be older, unless the message was certainly inserted after
    /// the letter: a redrive leaves letters of a job that was sent twice.
    pub(super) fn add(&mut self, batch: &str, jobs: impl IntoIterator<Item = RawJob>) {
        for job in jobs {
            let of_batch = job.batch.as_ref().filter(|of| of.id == batch);
            let Some(index) = of_batch.and_then(|of| of.index) else { continue };
            let (found, inserted) = (self.inserted.remove(&index), inserted_at(&job));
            let was_dead = self.places.get(&index).is_some_and(|child| child.place == JobState::Dead.name());
            let stays = match job.state {
                JobState::Dead => is_later(found, inserted),
                _ => was_dead && !is_later(inserted, found),
            };
            let kept = if stays { found } else { inserted };
            self.inserted.extend(kept.map(|time| (index, time)));
            if stays {
                continue;
            }
            let child = OpenChild {
                index,
                job: job.id,
                source: Some(job.source),
                place: job.state.name(),
                batch: None,
                queue: Some(job.queue),
                error: job.last_error.filter(|_| job.state == JobState::Dead),
            };
            self.places.insert(index, child);
        }
    }

    /// Adds those of the running jobs whose children are in the place of a dead letter so far.
    fn revive(&mut self, batch: &str, running: &[RawJob]) {
        let dead = self.dead(&BTreeSet::new());
        let is_dead = |job: &&RawJob| index_of(job).is_some_and(|index| dead.contains(&index));
        self.add(batch, running.iter().filter(is_dead).cloned().collect::<Vec<_>>());
    }

    /// Returns the numbers of the children that are dead letters and block the batch.
    pub(super) fn dead(&self, ended: &BTreeSet<u64>) -> BTreeSet<u64> {
        let dead = self.places.values().filter(|child| child.place == JobState::Dead.name());
        dead.map(|child| child.index).filter(|index| !ended.contains(index)).collect()
    }

    /// Returns the numbers of the open children to show, dead letters first.
    pub(super) fn named(&self, batch: &BatchChildren) -> Vec<u64> {
        let dead = self.dead(&batch.ended);
        let all = 0..batch.progress.children;
        let others = all.filter(|index| !batch.ended.contains(index) && !dead.contains(index));
        dead.iter().copied().chain(others).take(MAX_NAMED_CHILDREN).collect()
    }

    /// Returns the queues, first those in which children were found.
    fn seen_first(&self, mut queues: Vec<QueueName>) -> Vec<QueueName> {
        let seen: BTreeSet<_> = self.places.values().filter_map(|child| child.queue.as_deref()).collect();
        queues.sort_by_key(|queue| !seen.contains(queue.as_str()));
        queues
    }

    /// Returns the numbers of the children to show that were not found, and wait for no nested batch.
    fn missing(&self, batch: &BatchChildren) -> BTreeSet<u64> {
        let is_known = |index: &u64| self.places.contains_key(index) || batch.nested.contains_key(index);
        self.named(batch).into_iter().filter(|index| !is_known(index)).collect()
    }
}

/// Returns the number of a child of the batch that is looked at.
fn index_of(job: &RawJob) -> Option<u64> {
    job.batch.as_ref()?.index
}

impl Admin {
    /// Returns the children of a batch that the first messages of the queues and their first dead letters
    /// show. If the storage shows every message, also searches for those that are missing, as far as
    /// [`explain`](Self::explain) searches for one job, and for 8 seconds at most. On other storages the
    /// records of workers show those that run.
    pub(super) async fn children_of(&self, id: &str, batch: &BatchChildren) -> Result<FoundChildren, Error> {
        let queues = self.queue_names().await?.into_iter().filter(|queue| !queue.is_dead_letter());
        let queues: Vec<_> = queues.collect();
        let mut found = FoundChildren { dead_is_exact: true, ..FoundChildren::default() };
        let reads = queues.clone().into_iter().map(|queue| async move {
            let waiting = self.peek(queue.as_str()).await;
            let dead = self.first_dead_letters(&queue).await;
            (queue, waiting, dead)
        });
        let mut reads = stream::iter(reads).buffered(CONCURRENT_READS);
        while let Some((queue, waiting, dead)) = reads.next().await {
            if waiting.as_ref().is_err_and(|e| !means_no_messages(e)) || dead.is_err() {
                found.unread.insert(queue.to_string());
            }
            let dead = dead.unwrap_or_default();
            found.dead_is_exact &=
                dead.complete && dead.letters.iter().all(|letter| letter.claimed.is_none());
            found.add(id, waiting.unwrap_or_default().into_iter().chain(dead.letters));
        }
        found.workers = self.workers().await?;
        let running = found.workers.iter().flat_map(|worker| &worker.record.running);
        let mut running: Vec<_> = running.map(RawJob::of_run).collect();
        Memberships::default().prove(&self.storage, &mut running, Some(id)).await?;
        if self.has_index() {
            // A record is older than the leases that the storage shows: its job may wait again, or be over.
            // But a record of a message that is newer than a dead letter proves that the child is not dead.
            let of_batch = running.iter().filter(|job| job.batch.is_some());
            found.recorded = of_batch.map(|job| job.queue.clone()).collect();
            found.revive(id, &running);
            let (was_exact, queues) = (found.dead_is_exact, found.seen_first(queues));
            let search = async {
                self.search_children(id, batch, &queues, &mut found).await;
                Ok(())
            };
            let has_ended = in_time(search).await.is_ok();
            // Again, for the dead letters behind the first.
            found.revive(id, &running);
            if !has_ended {
                // The search may have ended among the dead letters, or before those that run.
                found.dead_is_exact = was_exact;
                running.retain(|job| index_of(job).is_some_and(|index| !found.places.contains_key(&index)));
                found.add(id, running);
            }
        } else {
            found.add(id, running);
        }
        Ok(found)
    }

    /// Searches for the dead letters behind the first, then for the children to show that are still missing.
    async fn search_children(
        &self,
        id: &str,
        batch: &BatchChildren,
        queues: &[QueueName],
        found: &mut FoundChildren,
    ) {
        if !found.dead_is_exact {
            found.dead_is_exact = true;
            for queue in queues {
                match self.dead_children_in(queue, id).await {
                    Ok((dead, complete)) => {
                        found.dead_is_exact &= complete;
                        found.add(id, dead);
                    }
                    Err(error) if means_no_messages(&error) => {}
                    Err(_) => {
                        found.dead_is_exact = false;
                        found.unread.insert(queue.to_string());
                    }
                }
            }
        }
        let mut missing = found.missing(batch);
        let recorded = queues.iter().filter(|queue| found.recorded.contains(queue.as_str()));
        let recorded = recorded.map(|queue| (queue, JobState::Running));
        let all = queues.iter().flat_map(|queue| JobState::IN_QUEUE.map(|state| (queue, state)));
        for (queue, state) in recorded.chain(all).collect::<Vec<_>>() {
            if missing.is_empty() {
                return;
            }
            let mut pages = 0;
            let mut take = |jobs: Vec<RawJob>| {
                let is_missing = |job: &RawJob| index_of(job).is_some_and(|index| missing.contains(&index));
                found.add(id, jobs.into_iter().filter(is_missing));
                missing.retain(|index| !found.places.contains_key(index));
                pages += 1;
                !missing.is_empty() && pages < MAX_SEARCHED_FOR_JOB / PAGE_SIZE as usize
            };
            let read = self.each_page(queue.as_str(), state, &JobFilter::new().batch(id), &mut take).await;
            if read.is_err_and(|error| !means_no_messages(&error)) {
                found.unread.insert(queue.to_string());
            }
        }
    }

    /// Returns the children of a batch among the dead letters of a queue, and whether all letters were read.
    async fn dead_children_in(&self, queue: &QueueName, id: &str) -> Result<(Vec<RawJob>, bool), Error> {
        let mut children = Vec::new();
        let letters = self.dead_letter_queue(queue.as_str()).await?;
        let searched = letters.search(MAX_SEARCHED_FOR_JOB, |letter| {
            let job = raw_letter(queue.as_str(), letter);
            let is_child = job.claims(id);
            children.extend(is_child.then(|| job.without_content()));
            is_child
        });
        let complete = searched.await?.is_some_and(|searched| searched.complete);
        Memberships::default().prove(&self.storage, &mut children, Some(id)).await?;
        Ok((children, complete))
    }

    /// Returns the first dead letters of a queue; none if the queue has been deleted, or its name is too long
    /// to have a dead-letter queue.
    pub(super) async fn first_dead_letters(&self, queue: &QueueName) -> Result<DeadLetterPage, Error> {
        match self.dead_letters(queue.as_str(), &DeadLetterFilter::new()).await {
            Err(e) if means_no_messages(&e) => {
                Ok(DeadLetterPage { complete: true, ..DeadLetterPage::default() })
            }
            page => page,
        }
    }
}

/// Returns the time at which a message or a dead letter was inserted, by the storage's clock.
fn inserted_at(job: &RawJob) -> Option<SystemTime> {
    match job.state {
        JobState::Dead => job.dead.as_ref().and_then(|letter| letter.inserted),
        _ => job.inserted.as_deref().and_then(parse_rfc3339),
    }
}

/// Returns whether `one` is certainly later than `other`.
fn is_later(one: Option<SystemTime>, other: Option<SystemTime>) -> bool {
    one.zip(other).is_some_and(|(one, other)| one > other)
}

/// Returns whether the error of a read means that the queue has no messages: it was deleted, or its name is
/// too long to have a dead-letter queue.
fn means_no_messages(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Invalid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RawBatch, RawDeadLetter};

    fn child(state: JobState, inserted: Option<u64>) -> RawJob {
        let time = inserted.map(|seconds| format!("2026-11-29T10:00:{seconds:02}Z"));
        let letter = RawDeadLetter {
            reason: "attempts".to_owned(),
            time: None,
            deliveries: 1,
            worker: None,
            message: None,
            inserted: time.as_deref().and_then(parse_rfc3339),
        };
        RawJob {
            state,
            batch: Some(RawBatch { id: "mosaic".to_owned(), index: Some(0) }),
            inserted: time,
            dead: (state == JobState::Dead).then_some(letter),
            ..RawJob::default()
        }
    }

    fn place<const N: usize>(jobs: [RawJob; N]) -> &'static str {
        let mut found = FoundChildren::default();
        found.add("mosaic", jobs);
        found.places[&0].place
    }

    // round 35 f, C4: the page asked for a redrive of a job that runs.
    #[test]
    fn letter_that_is_left_of_an_earlier_life_hides_no_message() {
        for state in [JobState::Waiting, JobState::Running] {
            let (letter, message) = (child(JobState::Dead, Some(10)), child(state, Some(20)));
            assert_eq!(place([letter.clone(), message.clone()]), state.name());
            assert_eq!(place([message.clone(), letter.clone()]), state.name());
            let died_again = child(JobState::Dead, Some(30));
            assert_eq!(place([letter.clone(), died_again.clone(), message.clone()]), "dead");
            assert_eq!(place([died_again, letter, message]), "dead");
        }
        // Service Bus returns the time at which the message was sent.
        assert_eq!(place([child(JobState::Dead, Some(10)), child(JobState::Running, Some(10))]), "dead");
        assert_eq!(place([child(JobState::Dead, Some(10)), child(JobState::Running, None)]), "dead");
        assert_eq!(place([child(JobState::Running, Some(20)), child(JobState::Dead, None)]), "dead");
    }
}
