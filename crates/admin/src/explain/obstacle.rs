//! The reasons why a job does not run, from what the storage and the records of workers show.

use std::time::SystemTime;

use jobqueue::__internals::WorkerRecord;
use jobqueue::Error;
use jobqueue::storage::MAX_MESSAGES;
use jobqueue_storage::text::chain;
use serde::Serialize;

use crate::jobs::MAX_SEARCHED_FOR_JOB;
use crate::listed::{LOG_SEARCH_TIME, SearchReach};
use crate::workers::is_unknown;
use crate::{JobState, QueueOverview, RawJob, WorkerOverview};

/// A reason why a job does not run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Obstacle {
    /// The code, which never changes: `dead_letter`, `cancel_requested`, `paused`, `no_worker`,
    /// `circuit_open`, `unknown_kind`, `unreadable`, `payload_missing`, `delayed_until`, `backing_off`,
    /// `attempts_exhausted`, `too_many_deliveries`, `waits_for_turn`, `deferred`, `no_free_slot`,
    /// `queue_limit`, `kind_limit`, `rate_limit`, `worker_gone`, `not_visible`, `behind_others`,
    /// `behind_dead_letters`, `ended_once`, `not_found`; `workers_unread`, `cancellation_unread`,
    /// `turn_unread` and `payload_unread` if that part of the storage cannot be read.
    pub code: &'static str,
    /// A sentence for operators.
    pub text: String,
}

impl Obstacle {
    pub(super) fn new(code: &'static str, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    /// Returns the obstacle that a part of the storage cannot be read, so that other obstacles may be
    /// missing.
    pub(super) fn unread(code: &'static str, text: &str, error: &Error) -> Self {
        Self::new(code, format!("{text}: {}", chain(error)))
    }
}

/// Returns the pause of a queue as an obstacle.
pub(super) fn paused(queue: &QueueOverview) -> Option<Obstacle> {
    let pause = queue.pause.as_ref()?;
    let text = format!("the queue is paused{pause}: workers fetch nothing from it");
    Some(Obstacle::new("paused", text.escape_debug().to_string()))
}

pub(super) fn no_worker() -> Obstacle {
    Obstacle::new(
        "no_worker",
        "no worker with a present record serves the queue; `jobqueue doctor` says whether workers can write their records",
    )
}

/// Returns the delay or back-off of a job, if the storage shows its end.
pub(super) fn delay_or_back_off(message: &RawJob, now: SystemTime) -> Option<Obstacle> {
    let due = message.due.as_deref()?;
    match message.state {
        JobState::Delayed => Some(Obstacle::new("delayed_until", format!("it is delayed until {due}"))),
        JobState::Waiting if message.is_due_after_turn(now) => {
            let text = format!("it is delayed until {due}, also when its turn has come");
            Some(Obstacle::new("delayed_until", text))
        }
        JobState::BackingOff => {
            let end = if message.attempts == 1 { "" } else { "s" };
            let text = format!("it is tried again at {due}, after {} failed attempt{end}", message.attempts);
            Some(Obstacle::new("backing_off", text))
        }
        _ => None,
    }
}

/// Returns a delay that is longer than the storage's, unless it is over.
pub(super) fn long_delay(message: &RawJob, now: SystemTime) -> Option<Obstacle> {
    let not_before = message.delayed_until()?;
    let text = || format!("it is delayed until {}", jobqueue_message::times::rfc3339(not_before));
    (not_before > now).then(|| Obstacle::new("delayed_until", text()))
}

/// The places that were searched to their end without finding a job.
#[derive(Debug, Clone, Copy)]
pub(super) struct Searched {
    /// True if all jobs that wait or run were read.
    pub(super) jobs: bool,
    /// True if all dead letters were read.
    pub(super) dead: bool,
}

/// Returns the reasons why a job was not found: the places that were not searched to their end, if there are
/// any.
pub(super) fn reasons_unseen(queue: &QueueOverview, reach: SearchReach, searched: Searched) -> Vec<Obstacle> {
    if searched.jobs && searched.dead {
        let text = "it is not in the queue: it has ended, or never existed";
        return vec![Obstacle::new("not_found", text)];
    }
    let mut reasons = Vec::new();
    if !searched.jobs {
        reasons.push(unseen_among_jobs(queue, reach));
    }
    if !searched.dead {
        let text = behind_dead_letters(queue, reach, searched.jobs);
        reasons.push(Obstacle::new("behind_dead_letters", text));
    }
    reasons
}

fn unseen_among_jobs(queue: &QueueOverview, reach: SearchReach) -> Obstacle {
    if reach == SearchReach::OfEachState {
        let text = format!(
            "it is not among the first {MAX_SEARCHED_FOR_JOB} jobs of any state; search for it by state"
        );
        Obstacle::new("behind_others", text)
    } else if reach == SearchReach::InTime {
        let text = format!(
            "it is not among the jobs that could be read in {LOG_SEARCH_TIME:?}, or the storage does not show all of them; search for it by state"
        );
        Obstacle::new("behind_others", text)
    } else if queue.visible_is_exact {
        let text =
            "it is not visible: it is delayed, backing off, leased by a worker or ended, or it never existed";
        Obstacle::new("not_visible", text)
    } else {
        let text = "it is not among the first 32 visible messages; inspect the queue to see more";
        Obstacle::new("behind_others", text)
    }
}

/// Returns where else a job may be than among the dead letters that were read; `sees_jobs` if it neither
/// waits nor runs.
fn behind_dead_letters(queue: &QueueOverview, reach: SearchReach, sees_jobs: bool) -> String {
    let else_it =
        if sees_jobs { "no job of this id waits or runs; it has ended, or is" } else { "it may be" };
    match queue.dead_letters {
        Some(count) => {
            let looked_at = match reach {
                SearchReach::OfEachState => format!("the first {MAX_SEARCHED_FOR_JOB}"),
                SearchReach::InTime => format!("those that could be read in {LOG_SEARCH_TIME:?}"),
                SearchReach::Peeked => format!("the first {MAX_MESSAGES}"),
            };
            format!("{else_it} one of about {count} dead letters, of which {looked_at} were looked at")
        }
        None => format!("{else_it} a dead letter: these cannot be read now"),
    }
}

/// Returns the limits that a job has reached: it is dead-lettered when it is next received.
pub(super) fn reached_limits(message: &RawJob, queue: &QueueOverview) -> Vec<Obstacle> {
    let setting = |name: &str| queue.settings.get(name).and_then(|value| value.parse::<u32>().ok());
    let mut reached = Vec::new();
    if message.problem.is_some() {
        let text = "its message cannot be read as an event; it will be dead-lettered unless the queue has one type only";
        reached.push(Obstacle::new("unreadable", text));
    }
    if setting(jobqueue_message::settings::POISON_THRESHOLD).is_some_and(|most| message.attempts >= most) {
        let text = format!("it has failed {} times, and will be dead-lettered", message.attempts);
        reached.push(Obstacle::new("attempts_exhausted", text));
    }
    if setting(jobqueue_message::settings::MAX_DELIVERIES).is_some_and(|most| message.dequeue_count > most) {
        let text = format!(
            "it was received {} times; if these deliveries count, it will be dead-lettered",
            message.dequeue_count
        );
        reached.push(Obstacle::new("too_many_deliveries", text));
    }
    reached
}

pub(super) fn unknown_kind(message: &RawJob, workers: &[WorkerOverview]) -> Option<Obstacle> {
    let text = || format!("no running worker has a handler for the kind `{}`", message.kind.escape_debug());
    is_unknown(&message.queue, &message.kind, workers).then(|| Obstacle::new("unknown_kind", text()))
}

/// Returns the obstacle of open circuits among the workers that fetch from a queue: as the first of two if no
/// worker that is certainly alive has a closed circuit, and else as the second.
pub(super) fn circuits<'a>(
    queue: &str,
    fetching: impl Iterator<Item = &'a WorkerOverview> + Clone,
) -> (Option<Obstacle>, Option<Obstacle>) {
    let is_of_some = fetching.clone().any(|worker| has_closed_circuit(queue, worker));
    let circuit = open_circuit(queue, fetching);
    if is_of_some { (None, circuit) } else { (circuit, None) }
}

/// Returns how many of the workers that serve a queue fetch nothing from it because all jobs that they ran
/// failed. If the records of all other workers are late, the text says that these may have died.
fn open_circuit<'a>(queue: &str, workers: impl Iterator<Item = &'a WorkerOverview>) -> Option<Obstacle> {
    let (open, closed): (Vec<_>, Vec<_>) = workers.partition(|worker| worker.record.has_open_circuit(queue));
    if open.is_empty() {
        return None;
    }
    if closed.is_empty() {
        let text = "all jobs of the queue fail, and workers have paused fetching (their circuits are open)";
        return Some(Obstacle::new("circuit_open", text));
    }
    let all = open.len() + closed.len();
    let has = if open.len() == 1 { "has" } else { "have" };
    let mut text = format!(
        "all jobs of the queue fail on {} of {all} workers, which {has} paused fetching (by an open circuit)",
        open.len()
    );
    if closed.iter().all(|worker| worker.is_late()) {
        let longest = closed.iter().map(|worker| worker.age_seconds).fold(0.0, f64::max);
        text.push_str(&format!(
            "; the others have written no record for up to {longest:.0} s, and may have died"
        ));
    }
    Some(Obstacle::new("circuit_open", text))
}

/// Returns whether a worker that is certainly alive fetches from a queue.
fn has_closed_circuit(queue: &str, worker: &WorkerOverview) -> bool {
    !worker.record.has_open_circuit(queue) && !worker.is_late()
}

/// Returns the reason why no worker that fetches from a queue can start another of its jobs: the queue's
/// limit, or a lack of slots.
pub(super) fn no_slot<'a>(
    queue: &str,
    mut workers: impl Iterator<Item = &'a WorkerRecord> + Clone,
) -> Option<Obstacle> {
    if workers.clone().any(|worker| worker.has_slot_for(queue)) {
        return None;
    }
    let has_others = workers.clone().any(|worker| worker.running_total < worker.slots.into());
    let most: u64 = workers.clone().map(|worker| worker.slots_for(queue)).sum();
    let is_at_most = workers.all(|worker| worker.running_of(queue) >= worker.slots_for(queue));
    if !has_others || !is_at_most {
        return Some(Obstacle::new(
            "no_free_slot",
            "all slots that the workers have for this queue are in use",
        ));
    }
    let text = format!(
        "the workers' limit for the queue is reached: {most} jobs at once (its own, or the slots that are not reserved for other queues)"
    );
    Some(Obstacle::new("queue_limit", text))
}

/// Returns the limit of the kind, if it is reached on all workers that handle the kind.
pub(super) fn kind_limit(message: &RawJob, workers: &[WorkerOverview]) -> Option<Obstacle> {
    let mut most = 0;
    let knows = |worker: &&WorkerOverview| {
        let mut queues = worker.record.queues.iter();
        queues.any(|queue| queue.name == message.queue && queue.takes(&message.kind))
    };
    let fetching = workers.iter().filter(|worker| !worker.stale && !worker.record.draining);
    for worker in fetching.filter(knows) {
        let mut limits = worker.record.queues.iter().flat_map(|queue| &queue.limits);
        let limits = limits.find(|limits| limits.cover(&message.kind))?;
        let limit = limits.concurrency?;
        if worker.record.running_that(|job| limits.cover(&job.kind)) < limit {
            return None;
        }
        most += limit;
    }
    let kind = message.kind.escape_debug();
    let text = format!("the workers' limit for the kind `{kind}` is reached: {most} jobs at once");
    (most > 0).then(|| Obstacle::new("kind_limit", text))
}

/// Returns the rate at which jobs of the kind start, if it is limited on all workers that handle the kind.
/// Whether it holds up the job now, no record shows. A worker whose record is late may have died.
pub(super) fn rate_limit(message: &RawJob, workers: &[WorkerOverview]) -> Option<Obstacle> {
    let text = |limit: String| Obstacle::new("rate_limit", format!("it may wait for {limit}"));
    rate_limit_text(message, workers).map(text)
}

/// Returns the text about the rate limit: `the rate limit of the kind …`.
pub(super) fn rate_limit_text(message: &RawJob, workers: &[WorkerOverview]) -> Option<String> {
    let mut most = 0.0;
    let fetching = workers.iter().filter(|worker| !worker.stale && !worker.record.draining);
    for worker in fetching.filter(|worker| !worker.is_late()) {
        let mut queues = worker.record.queues.iter().filter(|queue| queue.name == message.queue);
        let Some(queue) = queues.find(|queue| queue.takes(&message.kind)) else { continue };
        most += queue.limits.iter().find(|limits| limits.cover(&message.kind))?.per_second?;
    }
    let kind = message.kind.escape_debug();
    (most > 0.0).then(|| format!("the rate limit of the kind `{kind}`: {most} jobs a second"))
}
