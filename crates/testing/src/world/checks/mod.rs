//! Judges the history of a world: one promise per file.

mod attempts;
mod doubled;
mod effects;
mod evidence;
mod lost;
mod quiet;
mod refused;
mod stale;

use std::collections::BTreeSet;

use jobqueue::storage::{MAX_MESSAGES, Storage};

use super::builder::Finding;
use super::known_messages::job_of;
use super::ledger::Fact;
use super::shared::{Shared, World};
use evidence::{Evidence, is_of_dead_letters};
pub(super) use quiet::{drained, waiting};

/// Returns the findings of all promises.
pub(super) async fn all(shared: &Shared) -> Vec<Finding> {
    let history = shared.ledger.entries();
    let taken = history.iter().filter(|entry| matches!(entry.fact, Fact::TakenAway { .. }));
    let accounted = taken.filter_map(|entry| Some(entry.job.as_ref()?.to_string())).collect();
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

impl World {
    /// Returns whether the message of a run may have been delivered again before an entry of the history, because the process of the run was
    /// killed, stopped or cut off while it had the lease, or because a change of the message failed there. For rules of your own: nothing
    /// else excuses that another process has the message.
    pub fn may_lose_lease(&self, run: u64, before: usize) -> bool {
        let evidence = Evidence { history: self.history(), ..Evidence::default() };
        let mut jobs = evidence.jobs().into_iter();
        jobs.any(|job| {
            let own = job.runs.iter().find(|began| began.number == run);
            own.is_some_and(|own| job.may_lose_lease(own, before))
        })
    }
}

/// Returns the ids of all dead letters, and those of all other messages. Nothing else uses the queues by now.
async fn stored(accounts: &[Storage]) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut dead, mut left) = (BTreeSet::new(), BTreeSet::new());
    for account in accounts {
        let queues = account.queues();
        for queue in queues.list_queues("").await.unwrap_or_default() {
            let ids = if is_of_dead_letters(queue.as_str()) { &mut dead } else { &mut left };
            let get = jobqueue::storage::GetMessages::new(MAX_MESSAGES, HOLD);
            while let Ok(got) = queues.get(&queue, get).await
                && !got.messages.is_empty()
            {
                let texts = got.messages.iter().filter_map(|message| message.text.as_deref().ok());
                ids.extend(texts.filter_map(job_of).map(|id| id.to_string()));
            }
        }
    }
    (dead, left)
}

const HOLD: std::time::Duration = std::time::Duration::from_secs(5);
