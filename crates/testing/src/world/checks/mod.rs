//! Judges the history of a world, one promise per file.

mod attempts;
mod copies;
mod doubled;
mod effects;
mod evidence;
mod lost;
mod quiet;
mod refused;
mod stale;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jobqueue::storage::{GetMessages, MAX_MESSAGES, Storage, UpdateMessage};

use super::builder::Finding;
use super::known_messages::job_of;
use super::ledger::{Entry, Fact};
use super::shared::{Shared, World};
use evidence::{Evidence, is_of_dead_letters};
pub(super) use quiet::{drained, waiting};

/// Checks all promises and returns the findings.
pub(super) async fn all(shared: &Shared) -> Vec<Finding> {
    let history = shared.ledger.entries();
    let accounted = accounted(&history);
    let (dead, left) = stored(&shared.accounts).await;
    let evidence = Evidence { history, dead, left, accounted };
    let mut findings = lost::check(&evidence);
    findings.extend(refused::check(&evidence));
    findings.extend(doubled::check(&evidence));
    findings.extend(effects::check(&evidence));
    findings.extend(attempts::check(&evidence));
    findings.extend(stale::check(&evidence));
    findings
}

/// Returns the jobs that were removed on purpose, or may have been.
fn accounted(history: &[Entry]) -> BTreeSet<String> {
    let mut removals: BTreeMap<&str, i32> = BTreeMap::new();
    for entry in history {
        let Some(job) = entry.job.as_deref() else { continue };
        match entry.fact {
            Fact::TakenAway { .. } => *removals.entry(job).or_default() += 1,
            Fact::Kept => *removals.entry(job).or_default() -= 1,
            _ => {}
        }
    }
    let removed = removals.into_iter().filter(|(_, count)| *count > 0);
    removed.map(|(job, _)| job.to_owned()).collect()
}

impl World {
    /// Returns whether the message of a run may have been delivered again before an entry of the history. The
    /// causes are: the process of the run was killed, stopped or cut off while it had the lease; a change of
    /// a message of the job failed there, and no later change of that message succeeded; or its worker ended
    /// before the delivery did. A refusal is no cause: it says that the process no longer has the message.
    /// For your own judges: no other cause allows another process to have the message.
    pub fn may_lose_lease(&self, run: u64, before: usize) -> bool {
        let evidence = Evidence { history: self.history(), ..Evidence::default() };
        let mut jobs = evidence.jobs().into_iter();
        jobs.any(|job| {
            let own = job.runs.iter().find(|began| began.number == run);
            own.is_some_and(|own| job.may_lose_lease(own, before))
        })
    }
}

/// Returns the ids of all dead letters, and the ids of all other messages. Nothing else uses the queues at
/// this point.
async fn stored(accounts: &[Storage]) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut dead, mut left) = (BTreeSet::new(), BTreeSet::new());
    for account in accounts {
        let queues = account.queues();
        for queue in queues.list_queues("").await.unwrap_or_default() {
            let ids = if is_of_dead_letters(queue.as_str()) { &mut dead } else { &mut left };
            let get = GetMessages::new(MAX_MESSAGES, READ_LEASE);
            let mut held = Vec::new();
            while let Ok(got) = queues.get(&queue, get).await
                && !got.messages.is_empty()
            {
                let texts = got.messages.iter().filter_map(|message| message.text.as_deref().ok());
                ids.extend(texts.filter_map(job_of).map(|id| id.to_string()));
                held.extend(got.messages.into_iter().map(|message| message.message));
            }
            // Releases the messages, because the judges of the scenario read the queues next.
            for message in &held {
                let give_back = UpdateMessage::new(Duration::ZERO).ending_lease();
                drop(queues.update(&queue, message, give_back).await);
            }
        }
    }
    (dead, left)
}

/// The lease with which the judge reads messages.
const READ_LEASE: Duration = Duration::from_secs(5);
