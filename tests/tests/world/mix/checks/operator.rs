//! Judges the promises to an operator: a pause holds, cancelled jobs do not run, and a canary holds the other
//! jobs back.
//!
//! Judges only worlds without faults, because a process that is cut off learns of none of these requests.

use std::time::Duration;

use jobqueue::{Outcome, QueueMessage};
use jobqueue_testing::world::{Entry, Fact, Finding};

use super::progress::is_single;
use super::{Evidence, finding, is_of};
use crate::mix::diary::Note;
use crate::mix::messages::Work;

/// The time within which workers notice a pause or a request to cancel: half a minute, and the time between a
/// worker's fetch and its handler.
const NOTICE_TIME: Duration = Duration::from_secs(35);

pub(super) fn check(evidence: &Evidence) -> Vec<Finding> {
    if !evidence.diary.plan.is_quiet() {
        return Vec::new();
    }
    let notes = evidence.diary.notes();
    let mut found = Vec::new();
    for (at, (number, note)) in notes.iter().enumerate() {
        match note {
            Note::PausedUntil { millis } => {
                let replaced =
                    notes[at + 1..].iter().find(|(_, note)| matches!(note, Note::PausedUntil { .. }));
                let until = Duration::from_millis(*millis);
                let until = replaced.map_or(until, |(next, _)| until.min(evidence.history[*next].at));
                found.extend(during_pause(evidence, *number, until));
            }
            Note::CancelRequested { id } => found.extend(after_cancellation(evidence, *number, id)),
            Note::AfterCanary { began, canary, jobs } => {
                found.extend(behind_dead_canary(evidence, *began..*number, *canary, jobs));
            }
            _ => {}
        }
    }
    found
}

fn during_pause(evidence: &Evidence, number: usize, until: Duration) -> Option<Finding> {
    let since = evidence.history[number].at + NOTICE_TIME;
    let began = evidence.history[number..].iter().find(|entry| {
        let is_work =
            entry.job.as_deref().is_some_and(|job| evidence.diary.plan.specs().any(|spec| spec.id == job));
        is_work && matches!(entry.fact, Fact::RunBegan { .. }) && entry.at > since && entry.at < until
    })?;
    let job = began.job.as_deref().unwrap_or_default();
    let text = format!(
        "`{}` is paused until {until:?} (entry {number}), and it begins at {:?}",
        Work::QUEUE,
        began.at
    );
    Some(finding("a job begins while its queue is paused", job, text))
}

fn after_cancellation(evidence: &Evidence, number: usize, id: &str) -> Option<Finding> {
    let since = evidence.history[number].at + NOTICE_TIME;
    let own: Vec<&Entry> = evidence.history[number..].iter().filter(|entry| is_of(entry, id)).collect();
    let began = own.iter().find(|entry| entry.at > since && matches!(entry.fact, Fact::RunBegan { .. }))?;
    // A redrive or another send begins the job again. An end of the job is the answer to the request.
    let is_over = |fact: &Fact| {
        matches!(
            fact,
            Fact::Redriven
                | Fact::SendBegan { .. }
                | Fact::Settled { outcome: Outcome::Completed | Outcome::DeadLettered(_), .. }
        )
    };
    let begins_again =
        own.iter().take_while(|entry| entry.number < began.number).any(|entry| is_over(&entry.fact));
    let text = format!("the request was made at entry {number}, and a run begins at {:?}", began.at);
    (!begins_again).then(|| finding("a job runs in spite of its cancellation", id, text))
}

fn behind_dead_canary(
    evidence: &Evidence,
    redrive: std::ops::Range<usize>,
    canary: usize,
    jobs: &[String],
) -> Option<Finding> {
    let (first, others) = jobs.split_at_checked(canary)?;
    // A second message of the job may die although the first one has ended well.
    if others.is_empty() || !first.iter().all(|id| is_single(evidence, id)) {
        return None;
    }
    let dies = |entry: &&Entry| matches!(entry.fact, Fact::Settled { outcome: Outcome::DeadLettered(_), .. });
    let died = evidence.history[redrive]
        .iter()
        .filter(dies)
        .find(|entry| first.iter().any(|id| is_of(entry, id)))?;
    let text = format!("it died at {:?}, and {} others were put back behind it", died.at, others.len());
    Some(finding("others follow a canary that has died", &first[0], text))
}
