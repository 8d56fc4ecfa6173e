//! Judges the history of a world: one promise per file.

mod attempts;
mod doubled;
mod lost;
mod quiet;
mod refused;
mod stale;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(super) use quiet::{drained, waiting};

use super::builder::Finding;
use super::ledger::{Entry, Fact, subject};
use super::shared::Shared;
use crate::storage::{MAX_MESSAGES, Storage};

/// The evidence that the checks read.
pub(super) struct Evidence {
    pub(super) history: Vec<Entry>,
    /// The ids in the dead-letter queues at the end.
    pub(super) dead: BTreeSet<String>,
    /// The ids of jobs that were removed on purpose: cancelled, purged, cleared.
    pub(super) accounted: BTreeSet<String>,
}

impl Evidence {
    /// Returns the entries of each job, in order.
    pub(super) fn by_job(&self) -> BTreeMap<Arc<str>, Vec<&Entry>> {
        let mut jobs: BTreeMap<Arc<str>, Vec<&Entry>> = BTreeMap::new();
        for entry in &self.history {
            if let Some(id) = entry.fact.job() {
                jobs.entry(Arc::clone(id)).or_default().push(entry);
            }
        }
        jobs
    }
}

/// Returns the findings of all promises.
pub(super) async fn all(shared: &Shared) -> Vec<Finding> {
    let history = shared.ledger.entries();
    let accounted = history.iter().filter_map(|entry| match &entry.fact {
        Fact::TakenAway { id, .. } => Some(id.to_string()),
        _ => None,
    });
    let accounted = accounted.collect();
    let evidence = Evidence { dead: dead(&shared.accounts).await, history, accounted };
    let mut findings = lost::check(&evidence);
    findings.extend(refused::check(&evidence));
    findings.extend(doubled::check(&evidence));
    findings.extend(attempts::check(&evidence));
    findings.extend(stale::check(&evidence));
    findings
}

/// Returns the ids of all dead letters. Nothing else uses the queues by now.
async fn dead(accounts: &[Storage]) -> BTreeSet<String> {
    let mut ids = BTreeSet::new();
    for account in accounts {
        let queues = account.queues();
        for queue in queues.list_queues("").await.unwrap_or_default() {
            if !queue.as_str().contains("-poison") {
                continue;
            }
            let get = crate::storage::GetMessages { count: MAX_MESSAGES, visibility: HOLD };
            while let Ok(got) = queues.get(&queue, get).await
                && !got.messages.is_empty()
            {
                let texts = got.messages.iter().filter_map(|message| message.text.as_deref().ok());
                ids.extend(texts.filter_map(id));
            }
        }
    }
    ids
}

const HOLD: std::time::Duration = std::time::Duration::from_secs(5);

fn id(text: &str) -> Option<String> {
    let event: serde_json::Value = serde_json::from_str(text).ok()?;
    let source = event.get("source")?.as_str()?;
    Some(subject(source, event.get("id")?.as_str()?).to_string())
}
