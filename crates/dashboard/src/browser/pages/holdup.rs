//! The part of the page of a queue that shows how fast its jobs end, and what holds them up.

use std::time::Duration;

use jobqueue_admin::{
    KeyBacklog, KeyCount, QueueExplanation, QueueOverview, RawJob, SlotHolder, SlotUse, shell_word,
};

use super::rows::shown;
use crate::browser::app::AuthorizedRequest;
use crate::browser::looks::Look;
use crate::browser::redact::Field;
use crate::browser::text::{Timed, age, error_text, line};

/// The most kinds of running jobs, and the most keys, on a page.
const MAX_ROWS: usize = 20;

pub(crate) struct HoldUp {
    pub(crate) summary: Timed,
    pub(crate) ended: String,
    pub(crate) empty_in: String,
    pub(crate) slots: String,
    pub(crate) holders: Vec<Holder>,
    pub(crate) more_holders: usize,
    pub(crate) reasons: Vec<Reason>,
}

pub(crate) struct Holder {
    pub(crate) kind: String,
    pub(crate) queue: String,
    pub(crate) worker: String,
    pub(crate) jobs: u64,
    pub(crate) longest: String,
}

pub(crate) struct Reason {
    pub(crate) code: &'static str,
    pub(crate) text: Timed,
    pub(crate) command: String,
}

/// The keys with the most waiting jobs.
pub(crate) struct Keys {
    pub(crate) rows: Vec<KeyRow>,
    pub(crate) more: u64,
    pub(crate) without_key: Option<u64>,
    pub(crate) complete: bool,
}

pub(crate) struct KeyRow {
    pub(crate) key: String,
    pub(crate) jobs: u64,
    pub(crate) in_order: bool,
}

impl HoldUp {
    /// Returns `None` for a dead-letter queue, whose messages wait for no worker.
    pub(crate) fn of(
        request: &AuthorizedRequest,
        look: &Look,
        queue: &QueueOverview,
        next: Result<&[RawJob], &str>,
    ) -> Option<Self> {
        if queue.name.ends_with(jobqueue_storage::DEAD_LETTER_SUFFIX) {
            return None;
        }
        let found = explanation(request, look, queue, next);
        let holders = found.slots.iter().flat_map(|slots| &slots.holders);
        // The page shows elsewhere that these cannot be read.
        let is_elsewhere = |code| ["queue_unread", "workers_unread"].contains(&code);
        let reasons = found.reasons.iter().filter(|reason| !is_elsewhere(reason.code));
        let reason = |reason: &jobqueue_admin::QueueObstacle| Reason {
            code: reason.code,
            text: Timed::of(&error_text(&reason.text)),
            command: command(&reason.command),
        };
        Some(Self {
            summary: Timed::of(&error_text(&found.summary)),
            ended: found.pace.ended_text().unwrap_or_else(|| "?".to_owned()),
            empty_in: found.empty_in.to_string(),
            slots: found.slots.as_ref().map_or_else(|| "?".to_owned(), slots),
            holders: holders.clone().take(MAX_ROWS).map(Holder::new).collect(),
            more_holders: holders.count().saturating_sub(MAX_ROWS),
            reasons: reasons.map(reason).collect(),
        })
    }
}

/// Explains a queue by the shared look, and by the next jobs or the reason why these cannot be read.
pub(crate) fn explanation(
    request: &AuthorizedRequest,
    look: &Look,
    queue: &QueueOverview,
    next: Result<&[RawJob], &str>,
) -> QueueExplanation {
    let pace = request.app.looks.pace(&queue.name);
    let workers = look.figures.workers.as_deref().map_err(String::as_str);
    QueueExplanation::of(queue, workers, next, pace)
}

fn slots(found: &SlotUse) -> String {
    format!("{} of this queue on {} slots{}", found.running, found.slots, found.as_of())
}

/// Returns a command to copy. It names no storage: the dashboard does not know how an operator reaches it.
fn command(words: &[String]) -> String {
    let words = words.iter().map(|word| shell_word(word));
    ["jobqueue".to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(" ")
}

impl Holder {
    fn new(holder: &SlotHolder) -> Self {
        let longest = Duration::try_from_secs_f64(holder.longest_seconds);
        Self {
            kind: line(&holder.kind),
            queue: line(&holder.queue),
            worker: line(&holder.worker),
            jobs: holder.jobs,
            longest: longest.map_or_else(|_| "-".to_owned(), age),
        }
    }
}

impl Keys {
    pub(crate) fn of(request: &AuthorizedRequest, queue: &str, found: &KeyBacklog) -> Self {
        let row = |count: &KeyCount| {
            let key = count.key.as_deref().map(|key| shown(request, queue, "", Field::Key, key));
            let group = || format!("(group {})", line(count.group.as_deref().unwrap_or_default()));
            KeyRow { key: key.unwrap_or_else(group), jobs: count.jobs, in_order: count.in_order }
        };
        Self {
            rows: found.keys.iter().take(MAX_ROWS).map(row).collect(),
            more: found.distinct.saturating_sub(MAX_ROWS as u64),
            without_key: found.without_key,
            complete: found.complete,
        }
    }
}
