//! The canary of a redrive: a few jobs go first, and the rest follows only if these end well.

use std::time::Duration;

use jobqueue::Error;
use jobqueue_storage::text::chain;
use tokio::time::{Instant, sleep};

use super::bulk::Bulk;
use super::outcome::SearchMode;
use super::report::{BulkProgress, BulkReport};
use super::{Admin, DeadLetterPlan, PlanOutcome, QueueHold};

/// The time between the first two checks of the canary's jobs. It doubles after each check, up to the
/// maximum, because a check reads jobs until it has found them.
const FIRST_CHECK_INTERVAL: Duration = Duration::from_secs(2);
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// The time after which the wait ends if no check finds the jobs.
const UNSEEN_TIMEOUT: Duration = Duration::from_secs(120);
/// The time after which checks that did not meet all dead letters count, too. By then each letter that a
/// request without an answer has hidden is back: letters are held for longer, or new ones keep coming.
const HIDDEN_TIMEOUT: Duration = Duration::from_secs(600);
/// The least number of checks that must have missed them.
const MIN_UNSEEN_CHECKS: u32 = 3;

/// The reason in the report of a redrive that was stopped during the wait.
const STOPPED_DURING_WAIT: &str =
    "it was stopped before the jobs of the canary, which are back in the queue, had ended";

impl Bulk<'_> {
    /// Puts back the jobs of the canary, waits until they have ended, and puts back the others.
    pub(super) async fn after_canary(&mut self, jobs: u64) -> Result<BulkReport, Error> {
        let limit = self.limit;
        self.limit = Some(limit.map_or(jobs, |limit| limit.min(jobs)));
        let mut first = self.pass(None).await?;
        if !first.skipped.is_empty() && first.stopped.is_none() {
            first.stop("a job of the canary could not be put back; the others were left alone".to_owned());
        }
        let is_over = first.stopped.is_some() || first.count < jobs;
        if is_over || limit.is_some_and(|limit| limit <= jobs) {
            return Ok(first);
        }
        let (done, total) = (first.count, self.total);
        let mut report_wait = |held_up| (self.progress)(BulkProgress { done, total, waits: true, held_up });
        report_wait(None);
        let rest = match self.admin.wait_for_canary(&first.put_back(), report_wait).await {
            Ok(()) => {
                self.limit = limit.map(|limit| limit - first.count);
                self.done_before = first.count;
                (self.progress)(BulkProgress { done, total, waits: false, held_up: None });
                // Letters that arrived after the canary started are not part of the selection.
                self.pass(first.before).await.map_err(|error| chain(&error))
            }
            Err(why) => Err(why),
        };
        match rest {
            Ok(rest) => first.extend(rest),
            Err(why) => first.stop(why),
        }
        Ok(first)
    }
}

/// The checks since a job of the canary was last seen waiting or running, at which some of the jobs were not
/// found. A check that failed does not count. Nor does a check that did not meet all dead letters, if the
/// storage shows all other jobs, within [`HIDDEN_TIMEOUT`] of the first such check.
#[derive(Default)]
struct UnseenChecks {
    checks: u32,
    since: Option<Instant>,
    hidden_since: Option<Instant>,
}

impl UnseenChecks {
    /// Counts a check. Returns whether the jobs were missing often enough, and for long enough, to end the
    /// wait.
    fn count(&mut self) -> bool {
        self.checks += 1;
        let since = *self.since.get_or_insert_with(Instant::now);
        self.checks >= MIN_UNSEEN_CHECKS && since.elapsed() >= UNSEEN_TIMEOUT
    }

    /// Returns whether a check that did not meet all dead letters does not count yet.
    fn may_be_hidden(&mut self) -> bool {
        self.hidden_since.get_or_insert_with(Instant::now).elapsed() < HIDDEN_TIMEOUT
    }
}

impl Admin {
    /// Waits until all jobs of a plan have ended. Calls `report_wait` after each check at which some have
    /// not, with the reason why they do not start.
    ///
    /// # Errors
    /// The reason why the other jobs must not be put back.
    async fn wait_for_canary(
        &self,
        plan: &DeadLetterPlan,
        mut report_wait: impl FnMut(Option<QueueHold>),
    ) -> Result<(), String> {
        let (mut unseen, mut interval) = (UnseenChecks::default(), FIRST_CHECK_INTERVAL);
        let hides = |outcome: &PlanOutcome| outcome.hidden_letters && self.has_index();
        // A job that no check has found may be behind those that were read.
        let is_behind = |outcome: &PlanOutcome| outcome.more_jobs && outcome.unknown > 0;
        loop {
            let mut outcome = self.check_canary(plan, false).await?;
            // Only if no job of the canary waits or runs: this check receives all dead letters.
            if outcome.as_ref().is_some_and(|outcome| outcome.open == 0 && !is_behind(outcome)) {
                outcome = self.check_canary(plan, true).await?;
                if outcome.is_none() {
                    // A lost answer to this check hides letters anew.
                    unseen.hidden_since = None;
                }
            }
            let held_up = match outcome {
                None => Some(QueueHold::Unread),
                Some(outcome) if outcome.open > 0 || is_behind(&outcome) => {
                    unseen = UnseenChecks::default();
                    let behind = (outcome.open == 0).then_some(QueueHold::ManyJobs);
                    self.hold_of(&plan.queue).await.or(behind)
                }
                Some(outcome) if outcome.unknown == 0 => return Ok(()),
                // A job of the canary may be among the letters that the check has not met.
                Some(outcome) if hides(&outcome) && unseen.may_be_hidden() => Some(QueueHold::HiddenLetters),
                Some(outcome) if unseen.count() => {
                    let why = if hides(&outcome) {
                        "not all dead letters could be looked at, because others hold some, or new ones keep coming"
                    } else {
                        "this storage does not show whether they have ended"
                    };
                    return Err(format!("jobs of the canary are not to be seen: {why}"));
                }
                Some(_) => None,
            };
            report_wait(held_up);
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return Err(STOPPED_DURING_WAIT.to_owned()),
                () = sleep(interval) => {}
            }
            interval = (interval * 2).min(MAX_CHECK_INTERVAL);
        }
    }

    /// Checks the jobs of the canary once. Returns `None` if the storage does not answer.
    ///
    /// # Errors
    /// A job of the canary is a dead letter, or the check failed.
    async fn check_canary(
        &self,
        plan: &DeadLetterPlan,
        receives: bool,
    ) -> Result<Option<PlanOutcome>, String> {
        let outcome = match self.outcome_with(plan, SearchMode { receives, was_put_back: true }).await {
            Err(error) if error.is_retryable() => return Ok(None),
            outcome => outcome.map_err(|error| format!("the canary cannot be watched: {}", chain(&error)))?,
        };
        let (died, all) = (outcome.dead_again.len(), plan.letters.len());
        if let Some(first) = outcome.dead_again.first() {
            let error = first.error.as_deref().unwrap_or("no error is kept");
            return Err(format!("{died} of the {all} jobs of the canary died again: {error}"));
        }
        // All jobs were put back: a letter that exists now is a later one.
        if outcome.left > 0 {
            return Err(format!("{} of the {all} jobs of the canary are dead letters", outcome.left));
        }
        Ok(Some(outcome))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use jobqueue::storage::{ExpiredReceipt, GetMessages, PutMessage, QueueName};
    use jobqueue::{Runtime, memory};
    use serde_json::json;
    use tokio::time::timeout;

    use super::*;
    use crate::{AccessLevel, DeadLetterFilter};

    const MINUTE: Duration = Duration::from_secs(60);

    /// Returns an operator whose searches read 1,000 jobs of a state, of a queue `mails` with 1,010 jobs of
    /// this delay, and the names of the queue and of its dead-letter queue.
    async fn operator(delay: Duration, letters: usize) -> (Admin, QueueName, QueueName) {
        let storage = memory::open_on(Runtime::paused());
        let mut admin = Admin::builder(storage).access(AccessLevel::Operate).build();
        admin.max_searched = 1_000;
        let mails = QueueName::new("mails").unwrap();
        let dead = mails.dead_letter().unwrap();
        for (name, jobs, delay) in [(&mails, 1_010, delay), (&dead, letters, Duration::ZERO)] {
            admin.create_queue(name.as_str()).await.unwrap();
            for number in 0..jobs {
                let id = format!("{name}-{number}");
                let event =
                    json!({"specversion": "1.0", "id": id, "source": "/shop", "type": "mail", "data": {}});
                let put = PutMessage::new(event.to_string()).with_visibility_delay(delay);
                let _ = admin.storage.queues().put(name, put).await.unwrap();
            }
        }
        sleep(Duration::from_secs(1)).await;
        (admin, mails, dead)
    }

    // It ended after two minutes, because a search that was cut off had not shown its job.
    #[tokio::test(start_paused = true)]
    async fn canary_behind_more_jobs_than_are_read_is_waited_for() {
        let (admin, mails, dead) = operator(Duration::ZERO, 3).await;
        let queues = admin.storage.queues();
        let holds = Mutex::new(Vec::new());
        let bulk = admin.redrive("mails").filter(DeadLetterFilter::all()).canary(1);
        let bulk = bulk.on_progress(|progress| holds.lock().unwrap().extend(progress.held_up));
        let receipts = async || {
            let letters = queues.peek(&dead, 32).await.unwrap();
            letters.iter().map(|letter| letter.dequeue_count).collect::<Vec<_>>()
        };
        let working = async {
            sleep(MINUTE).await;
            let before = receipts().await;
            sleep(10 * MINUTE).await;
            assert_eq!((before.len(), &before), (2, &receipts().await), "no check receives dead letters");
            loop {
                let received = queues.get(&mails, GetMessages::new(32, MINUTE)).await.unwrap().messages;
                for leased in &received {
                    queues.delete(&mails, &leased.message, ExpiredReceipt::Refuse).await.unwrap();
                }
                if received.is_empty() {
                    break;
                }
            }
        };
        let (report, ()) = tokio::join!(bulk.run(), working);
        let report = report.unwrap();
        assert_eq!((report.count, report.stopped.as_deref()), (3, None), "{report:?}");
        // No worker writes a record, which says more than the number of jobs.
        assert!(holds.lock().unwrap().iter().all(|hold| *hold == QueueHold::NoWorker));
    }

    // Only the first dead letters were looked at while more jobs waited than are read.
    #[tokio::test(start_paused = true)]
    async fn canary_that_dies_behind_more_jobs_than_are_read_stops_the_redrive() {
        let (admin, mails, dead) = operator(Duration::ZERO, 40).await;
        let queues = admin.storage.queues();
        let holds = Mutex::new(Vec::new());
        let bulk = admin.redrive("mails").filter(DeadLetterFilter::all()).canary(1);
        let bulk = bulk.on_progress(|progress| holds.lock().unwrap().extend(progress.held_up));
        let working = async {
            sleep(MINUTE).await;
            let mut canary = None;
            loop {
                let received = queues.get(&mails, GetMessages::new(32, 600 * MINUTE)).await.unwrap().messages;
                if received.is_empty() {
                    break;
                }
                let is_canary = |text: &str| text.contains("mails-poison-");
                canary = canary
                    .or(received.into_iter().find(|leased| leased.text.as_deref().is_ok_and(is_canary)));
            }
            sleep(10 * MINUTE).await;
            let canary = canary.unwrap();
            let _ = queues.put(&dead, PutMessage::new(canary.text.unwrap())).await.unwrap();
            queues.delete(&mails, &canary.message, ExpiredReceipt::Refuse).await.unwrap();
        };
        let (report, ()) = tokio::join!(timeout(30 * MINUTE, bulk.run()), working);
        let report = report.expect("the death is seen").unwrap();
        assert_eq!(report.count, 1);
        assert!(report.stopped.as_deref().is_some_and(|why| why.contains("died again")), "{report:?}");
        // No job waits meanwhile, so that no reason says more.
        assert!(holds.lock().unwrap().contains(&QueueHold::ManyJobs));
    }

    // The canary seemed to wait behind reminders of the next months.
    #[tokio::test(start_paused = true)]
    async fn canary_does_not_wait_behind_delayed_jobs() {
        let (admin, mails, _) = operator(6_000 * MINUTE, 3).await;
        let queues = admin.storage.queues();
        let bulk = admin.redrive("mails").filter(DeadLetterFilter::all()).canary(1);
        let working = async {
            sleep(MINUTE).await;
            let received = queues.get(&mails, GetMessages::new(32, MINUTE)).await.unwrap().messages;
            assert_eq!(received.len(), 1);
            queues.delete(&mails, &received[0].message, ExpiredReceipt::Refuse).await.unwrap();
        };
        let (report, ()) = tokio::join!(timeout(30 * MINUTE, bulk.run()), working);
        let report = report.expect("the end is seen").unwrap();
        assert_eq!((report.count, report.stopped.as_deref()), (3, None), "{report:?}");
    }
}
