//! Finds one job and explains why it does not run. Reads; changes nothing.

mod explanation;
mod obstacle;
mod senders;

use std::slice;

use jobqueue::{Error, ErrorKind};
use jobqueue_message::envelope::Identity;

use super::jobs::SEARCHED;
use super::membership::Memberships;
use super::{
    Admin, DeadLetterFilter, HistoryFilter, JobFilter, JobReference, JobState, QueueOverview, RawJob,
    WorkerOverview,
};
pub use explanation::{Explanation, JobPlace};
pub use obstacle::Obstacle;
use obstacle::{Looked, bounds, delayed, kind_limit, rate_limit, unknown_kind, unseen, waits_until};
pub use senders::IdentifiedJob;

impl Admin {
    /// Returns the state of a job and the reasons why it does not run. It reads the records of workers, the first 32
    /// messages of the queue and the first 32 dead letters; where the storage shows all jobs, the first 10,000 of each state. Costs up to
    /// fifteen requests, one for each worker, and for a job in order three more with one for each 32 jobs of its key, or, where the storage
    /// keeps the order, those of [`groups`](Self::groups). A job that seems to be in no queue any more costs them twice.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) if there is no such queue; [`Storage`](ErrorKind::Storage) when something cannot be read.
    pub async fn explain(&self, job: &JobReference) -> Result<Explanation, Error> {
        let found = self.look_for(job).await?;
        // A job that moved meanwhile may have been missed in every place.
        if found.has_ended { self.look_for(job).await } else { Ok(found) }
    }

    /// Looks once, in the order in which a job moves.
    async fn look_for(&self, job: &JobReference) -> Result<Explanation, Error> {
        let queue = self.queue(&job.queue).await?;
        let (workers, now) = self.workers_at().await?;
        let (gone, workers): (Vec<_>, Vec<_>) = workers.into_iter().partition(|worker| worker.stale);
        let cancellation = self.cancellation_at(job).await?;
        let mut found = Explanation::new(job);
        found.find_run(&workers);
        if found.place == JobPlace::Unseen {
            found.find_message(self.peek_without_batches(&job.queue).await?);
        }
        let sees_jobs = found.place == JobPlace::Unseen && self.find_by_state(&mut found, &queue).await?;
        let sees_dead = found.place == JobPlace::Unseen && self.find_dead(&mut found, &queue).await?;
        if found.run.is_none() && matches!(found.place, JobPlace::Unseen | JobPlace::Running) {
            found.find_lost_run(&gone, &queue);
        }
        let is_certain = sees_jobs && sees_dead;
        if found.place == JobPlace::Unseen {
            self.find_end(&mut found, is_certain).await;
        }
        if let Some((cancellation, made)) = cancellation {
            found.find_cancellation(cancellation, made);
        }
        // A job that is certainly not in the queue waits for nothing.
        if found.place != JobPlace::Unseen || !is_certain {
            found.look_at_queue(&queue, &workers);
        }
        if let Some(mut message) = found.message.take() {
            Memberships::default().prove(&self.storage, slice::from_mut(&mut message), None).await?;
            if matches!(message.state, JobState::Waiting | JobState::Delayed | JobState::BackingOff) {
                let until = delayed(&message, now).or_else(|| waits_until(&message));
                found.reasons.splice(0..0, until);
                self.look_at_message(&mut found, &message, &queue, &workers).await?;
            }
            found.message = Some(message);
        }
        if found.place == JobPlace::Unseen {
            let looked = match (is_certain, sees_dead) {
                (true, _) => Looked::Everywhere,
                (false, true) => Looked::AtAllDead,
                (false, false) => Looked::AtSome,
            };
            found.reasons.push(unseen(&queue, self.shows_all_jobs(), looked));
        }
        found.has_ended = match found.place {
            JobPlace::Dead => sees_jobs,
            JobPlace::Ended => is_certain,
            _ => found.reasons.iter().any(|reason| reason.code == "not_found"),
        };
        found.summarise();
        Ok(found)
    }

    /// Finds a job among all messages of its queue, if the storage shows them. Returns whether it is certainly not there.
    async fn find_by_state(&self, found: &mut Explanation, queue: &QueueOverview) -> Result<bool, Error> {
        if !self.shows_all_jobs() {
            return Ok(queue.length == Some(0));
        }
        let filter = JobFilter::of(&found.job, SEARCHED).without_batches();
        let mut sees_all = true;
        for state in JobState::IN_QUEUE {
            let page = self.jobs(&found.job.queue, state, &filter).await?;
            found.find_message(page.jobs);
            if found.place != JobPlace::Unseen {
                return Ok(false);
            }
            sees_all &= page.next.is_none();
        }
        Ok(sees_all)
    }

    /// Finds a job among the dead letters. Returns whether it is certainly not there.
    async fn find_dead(&self, found: &mut Explanation, queue: &QueueOverview) -> Result<bool, Error> {
        let all = DeadLetterFilter::new();
        let dead = match self.dead_letters_without_batches(&found.job.queue, &all).await {
            // The overview says it if their queue cannot be read.
            Err(_) if queue.dead_letters.is_none() => return Ok(false),
            dead => dead?,
        };
        found.find_message(dead.letters);
        Ok(dead.complete)
    }

    /// Finds the end of a job in the history, which proves that it has ended only if it `is_certain` that it is in no queue.
    async fn find_end(&self, found: &mut Explanation, is_certain: bool) {
        let of_job = HistoryFilter::new().queue(&found.job.queue).id(&found.job.id);
        // The operator may not be allowed to read the history: then nothing is known of it.
        let jobs = self.history(&of_job).await.map_or_else(|_| Vec::new(), |page| page.jobs);
        let Some(end) = jobs.into_iter().find(|end| found.job.is(&end.source, &end.id)) else { return };
        // A dead letter may have been put back since, or be among those that were not looked at; the message of an uncertain
        // completion may be delivered again.
        if is_certain || end.outcome == "completed" {
            found.place = JobPlace::Ended;
        }
        if !is_certain && end.outcome != "dead_lettered" {
            let text = format!(
                "it ended at {}; the storage does not show whether a message of the same id is in the queue",
                end.ended.escape_debug()
            );
            found.reasons.push(Obstacle::new("ended_once", text));
        }
        found.ended = Some(end);
    }

    async fn look_at_message(
        &self,
        found: &mut Explanation,
        message: &RawJob,
        queue: &QueueOverview,
        workers: &[WorkerOverview],
    ) -> Result<(), Error> {
        found.reasons.extend(bounds(message, queue));
        found.reasons.extend(unknown_kind(message, workers));
        found.reasons.extend(kind_limit(message, workers));
        found.reasons.extend(rate_limit(message, workers));
        if let Err(error) = self.check_payload(message).await
            && error.kind() == ErrorKind::Undecodable
        {
            found.reasons.push(Obstacle::new("payload_missing", jobqueue_storage::text::chain(&error)));
        }
        if let Some(deferral) = &message.deferral {
            let text = format!(
                "it was put back {} times since {}: {}",
                deferral.count, deferral.since, deferral.cause
            );
            found.reasons.push(Obstacle::new("deferred", text));
        }
        if message.in_order {
            found.reasons.extend(self.turn(message).await?);
        }
        Ok(())
    }

    /// Returns the turn of a job as an obstacle, if it waits for another job of its key.
    async fn turn(&self, message: &RawJob) -> Result<Option<Obstacle>, Error> {
        let Some(key) = message.key.as_deref() else { return Ok(None) };
        let identity = Identity::new(message.source.as_str(), message.id.as_str());
        let Some((group, job)) = self.group_of(&message.queue, key, &identity).await? else {
            return Ok(None);
        };
        let waits: Vec<_> = group.entries.iter().filter(|entry| !entry.skipped).collect();
        let Some(at) = waits.iter().position(|entry| entry.job == job) else { return Ok(None) };
        if at == 0 {
            let text = "it may wait for another job of its key: there are more jobs than were looked at";
            return Ok((!group.is_first_known).then(|| Obstacle::new("waits_for_turn", text)));
        }
        let first = waits[0].id.as_deref().unwrap_or("one that is not visible");
        let overdue = if waits[0].overdue { ", whose message is overdue" } else { "" };
        let text = format!(
            "it is number {} of {} of its key, and waits for {}{overdue}",
            at + 1,
            waits.len(),
            first.escape_debug()
        );
        Ok(Some(Obstacle::new("waits_for_turn", text)))
    }
}
