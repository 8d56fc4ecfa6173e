//! No message waits forever.

use std::time::Duration;

use jobqueue::storage::{GetMessages, MAX_MESSAGES, QueueName, Storage};
use tokio::time::sleep;

use super::Finding;
use crate::world::shared::Shared;

/// Waits until every queue that workers read is empty.
pub(in crate::world) async fn drained(shared: &Shared) {
    let mut quiet = 0;
    while quiet < 2 {
        sleep(Duration::from_secs(5)).await;
        let empty = messages(&shared.accounts).await == 0;
        quiet = if empty { quiet + 1 } else { 0 };
        if shared.is_overrun() {
            return;
        }
    }
}

/// Returns the messages that still wait.
pub(in crate::world) async fn waiting(shared: &Shared) -> Vec<Finding> {
    let mut found = Vec::new();
    for account in &shared.accounts {
        for queue in worked_on(account).await {
            // Messages that are visible now, and those that would become visible.
            let get = GetMessages::new(MAX_MESSAGES, Duration::from_secs(1));
            let got = account.queues().get(&queue, get).await.map(|got| got.messages).unwrap_or_default();
            let texts = got.iter().filter_map(|message| message.text.as_deref().ok());
            // A schedule continues to send.
            let ids = texts
                .filter_map(super::job_of)
                .map(|id| id.to_string())
                .filter(|id| !id.starts_with("schedule/"));
            let mut subjects: Vec<String> = ids.collect();
            if subjects.is_empty() && count(account, &queue).await > 0 {
                subjects.push(queue.to_string());
            }
            found.extend(subjects.into_iter().map(|subject| Finding {
                what: "a message waits forever",
                subject,
                detail: format!("it is still in `{queue}` long after the last fault"),
            }));
        }
    }
    found
}

async fn messages(accounts: &[Storage]) -> u64 {
    let mut all = 0;
    for account in accounts {
        for queue in worked_on(account).await {
            all += count(account, &queue).await;
        }
    }
    all
}

async fn worked_on(account: &Storage) -> Vec<QueueName> {
    let mut queues = account.queues().list_queues("").await.unwrap_or_default();
    queues.retain(|queue| !super::is_of_dead_letters(queue.as_str()));
    queues
}

async fn count(account: &Storage, queue: &QueueName) -> u64 {
    account.queues().queue_properties(queue).await.map_or(0, |properties| properties.approximate_count)
}
