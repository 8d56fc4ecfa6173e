//! FIFO groups whose jobs wait, and for whom.

use std::collections::BTreeMap;

use jobqueue::__internals::{groups, position_names};
use jobqueue::storage::MAX_MESSAGES;
use jobqueue::{Error, QueueName};
use jobqueue_message::envelope::{Parsed, parse};
use serde::Serialize;

use super::Admin;
use super::queues::not_found;

/// The jobs of one key that have not ended, in their order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct GroupOverview {
    /// The hash of the key: the logs keep no keys.
    pub group: String,
    /// The key, if one of its jobs was seen in the queue.
    pub key: Option<String>,
    /// The jobs, first come first: each waits for those before it that are not skipped.
    pub entries: Vec<GroupEntry>,
}

/// The position of a job in its group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct GroupEntry {
    /// The hash of the job.
    pub job: String,
    /// The id of the job, if its message was seen in the queue.
    pub id: Option<String>,
    /// True if its sender has not confirmed yet that its message is stored.
    pub announced: bool,
    /// True if the jobs behind it have abandoned it because its message did not arrive. It blocks no other job.
    pub skipped: bool,
    /// True if those behind it wait for its message in vain, and are about to give it up.
    pub overdue: bool,
    /// True if its sender cancels it.
    pub cancelling: bool,
}

/// A key and an id.
type Names = (Option<String>, String);

impl Admin {
    /// Returns the FIFO groups of a queue that have jobs. The first job of each runs or is to run, and the others wait for it. Ids and
    /// keys are shown of the jobs that a peek shows. Costs three requests, and one for each log; keys share 4,096 logs.
    ///
    /// A storage that [keeps the order itself](jobqueue::storage::OrderedGroups) has no logs: there the groups are those of the first
    /// 32 messages, and more may wait behind them.
    ///
    /// # Errors
    /// [`NotFound`](jobqueue::ErrorKind::NotFound) if there is no such queue; [`Storage`](jobqueue::ErrorKind::Storage) when the logs cannot
    /// be read.
    ///
    /// # Cancel safety
    /// It only reads.
    pub async fn groups(&self, queue: &str) -> Result<Vec<GroupOverview>, Error> {
        let name = QueueName::new(queue)?;
        let queues = self.storage.queues();
        let peeked = queues.peek(&name, MAX_MESSAGES).await;
        let peeked = peeked.map_err(|error| not_found(error, &name))?;
        let mut in_order = Vec::<((String, String), Names)>::new();
        for text in peeked.iter().filter_map(|message| message.text.as_deref().ok()) {
            let Ok(Parsed::Event(event)) = parse(text) else { continue };
            if let Some(names) = position_names(&event) {
                in_order.push((names, (event.key.clone(), event.id.to_string())));
            }
        }
        if queues.orders_groups(&name).await? {
            return Ok(in_sequence(in_order));
        }
        let seen: BTreeMap<_, _> = in_order.into_iter().collect();
        let groups = groups(&self.storage, name).await?;
        let overview = groups.into_iter().map(|group| {
            let id = |job: &str| seen.get(&(group.group.clone(), job.to_owned())).map(|(_, id)| id.clone());
            let key = seen.iter().find(|((known, _), _)| *known == group.group);
            GroupOverview {
                key: key.and_then(|(_, (key, _))| key.clone()),
                entries: group
                    .entries
                    .iter()
                    .map(|entry| GroupEntry {
                        id: id(&entry.job),
                        job: entry.job.clone(),
                        announced: entry.announced,
                        skipped: entry.skipped,
                        overdue: entry.overdue,
                        cancelling: entry.cancelling,
                    })
                    .collect(),
                group: group.group.clone(),
            }
        });
        Ok(overview.collect())
    }
}

/// Returns the groups of a storage that keeps the order itself: each message waits for those of its group before it.
fn in_sequence(messages: Vec<((String, String), Names)>) -> Vec<GroupOverview> {
    let mut groups = Vec::<GroupOverview>::new();
    for ((group, job), (key, id)) in messages {
        let entry = GroupEntry {
            job,
            id: Some(id),
            announced: false,
            skipped: false,
            overdue: false,
            cancelling: false,
        };
        match groups.iter_mut().find(|known| known.group == group) {
            Some(known) => known.entries.push(entry),
            None => groups.push(GroupOverview { group, key, entries: vec![entry] }),
        }
    }
    groups
}
