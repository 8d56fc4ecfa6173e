//! The FIFO groups of a queue, as their logs show them.

use super::entry::{Entry, EntryRef, EntryState};
use super::store::GroupLogs;
use crate::envelope::{Envelope, Identity};
use crate::storage::{QueueName, Storage, StoreError};

/// A group: the jobs of one key that have not ended, oldest first. Keys and jobs are known by hashes only.
#[derive(Debug, Clone)]
pub struct GroupRecord {
    /// The hash of the key.
    pub group: String,
    /// The jobs.
    pub entries: Vec<EntryRecord>,
}

/// The position of a job.
#[derive(Debug, Clone)]
pub struct EntryRecord {
    /// The hash of the job.
    pub job: String,
    /// True if its sender has not yet confirmed that its message is stored.
    pub announced: bool,
    /// True if its message was given up, so that the job blocks no other job.
    pub skipped: bool,
    /// True if its message is overdue: the jobs behind it are about to skip it.
    pub overdue: bool,
    /// True if a process is cancelling it.
    pub cancelling: bool,
}

impl EntryRecord {
    fn of(entry: &Entry) -> Self {
        Self {
            job: format!("{:?}", entry.job),
            announced: entry.state == EntryState::Announced,
            skipped: entry.state == EntryState::Skipped,
            overdue: entry.overdue.is_some(),
            cancelling: entry.mark().is_some(),
        }
    }
}

/// Returns the hashes by which the group and the job of an event are known; `None` if the event has no order.
pub fn position_names(event: &Envelope) -> Option<(String, String)> {
    if !super::is_in_order(event) {
        return None;
    }
    Some(names_in_order(event.key.as_deref()?, &event.identity()))
}

/// Returns the hashes by which the group of a key is known, and a job in it.
pub fn names_in_order(key: &str, job: &Identity) -> (String, String) {
    let EntryRef { key, job, .. } = EntryRef::new(key, job);
    (format!("{key:?}"), format!("{job:?}"))
}

/// Returns the groups of a queue that have jobs. Costs a listing, and a request for each log and each page.
pub async fn groups(storage: &Storage, queue: QueueName) -> Result<Vec<GroupRecord>, StoreError> {
    let mut groups = Vec::new();
    for log in GroupLogs::new(storage, queue).stored().await? {
        groups.extend(groups_of(&log.into_entries()?));
    }
    Ok(groups)
}

/// Returns the group of a job's key; `None` if none of its jobs is left. Costs a request for its log and for
/// each page of that log.
pub async fn group_of(
    storage: &Storage,
    queue: QueueName,
    key: &str,
    job: &Identity,
) -> Result<Option<GroupRecord>, StoreError> {
    let entry = EntryRef::new(key, job);
    let log = GroupLogs::new(storage, queue).stored_log_of(&entry).await?;
    let group = format!("{:?}", entry.key);
    Ok(groups_of(&log.into_entries()?).into_iter().find(|found| found.group == group))
}

fn groups_of(entries: &[Entry]) -> Vec<GroupRecord> {
    let mut groups = Vec::<GroupRecord>::new();
    for entry in entries {
        let group = format!("{:?}", entry.key);
        let record = EntryRecord::of(entry);
        match groups.iter_mut().find(|known| known.group == group) {
            Some(known) => known.entries.push(record),
            None => groups.push(GroupRecord { group, entries: vec![record] }),
        }
    }
    groups
}
