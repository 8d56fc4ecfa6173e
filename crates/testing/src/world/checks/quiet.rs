//! Judges that no message waits forever.

use std::time::Duration;

use jobqueue::storage::{GetMessages, MAX_MESSAGES, QueueName, Storage, StoreError};
use tokio::time::sleep;

use super::Finding;
use crate::world::shared::Shared;

/// Waits until every queue that workers read has been empty in two rounds in a row.
pub(in crate::world) async fn drained(shared: &Shared) {
    let mut empty_rounds = 0;
    while empty_rounds < 2 {
        sleep(Duration::from_secs(5)).await;
        let empty = messages(&shared.accounts).await.is_ok_and(|messages| messages == 0);
        empty_rounds = if empty { empty_rounds + 1 } else { 0 };
        if shared.is_overrun() {
            return;
        }
    }
}

/// Returns the messages that still wait, and the queues that cannot be read.
pub(in crate::world) async fn waiting(shared: &Shared) -> Vec<Finding> {
    let mut found = Vec::new();
    for account in &shared.accounts {
        if let Err(error) = waiting_in(account, &mut found).await {
            let detail = format!("long after the last fault: {error:?}");
            let (what, subject) = ("a queue cannot be read", account.description().to_owned());
            found.push(Finding { what, subject, detail });
        }
    }
    found
}

async fn waiting_in(account: &Storage, found: &mut Vec<Finding>) -> Result<(), StoreError> {
    for queue in worked_on(account).await? {
        // Names the jobs of visible messages, or the queue if all its messages are invisible.
        let get = GetMessages::new(MAX_MESSAGES, Duration::from_secs(1));
        let got = account.queues().get(&queue, get).await?.messages;
        let texts = got.iter().filter_map(|message| message.text.as_deref().ok());
        // Leaves out the slots of a schedule, which keeps sending jobs.
        let ids = texts
            .filter_map(super::job_of)
            .map(|id| id.to_string())
            .filter(|id| !id.starts_with("schedule/"));
        let mut subjects: Vec<String> = ids.collect();
        if subjects.is_empty() && count(account, &queue).await? > 0 {
            subjects.push(queue.to_string());
        }
        found.extend(subjects.into_iter().map(|subject| Finding {
            what: "a message waits forever",
            subject,
            detail: format!("it is still in `{queue}` long after the last fault"),
        }));
    }
    Ok(())
}

async fn messages(accounts: &[Storage]) -> Result<u64, StoreError> {
    let mut all = 0;
    for account in accounts {
        for queue in worked_on(account).await? {
            all += count(account, &queue).await?;
        }
    }
    Ok(all)
}

async fn worked_on(account: &Storage) -> Result<Vec<QueueName>, StoreError> {
    let mut queues = account.queues().list_queues("").await?;
    queues.retain(|queue| !super::is_of_dead_letters(queue.as_str()));
    Ok(queues)
}

async fn count(account: &Storage, queue: &QueueName) -> Result<u64, StoreError> {
    Ok(account.queues().queue_properties(queue).await?.approximate_count)
}
