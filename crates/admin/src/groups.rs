//! FIFO groups with waiting jobs, and the job that blocks each.

use std::collections::{BTreeMap, BTreeSet};

use jobqueue::__internals::{EntryRecord, GroupRecord, group_of, groups, names_in_order, position_names};
use jobqueue::storage::{MAX_MESSAGES, MessageState, PeekedMessage, StoreErrorKind};
use jobqueue::{Error, QueueName};
use jobqueue_message::envelope::{Identity, Parsed, parse};
use serde::Serialize;

use super::jobs::{MAX_SEARCHED_FOR_JOB, PAGE_SIZE};
use super::queues::not_found;
use super::{Admin, JobState};

/// The FIFO groups of a queue that have jobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct GroupList {
    /// The groups.
    pub groups: Vec<GroupOverview>,
    /// The number of groups that were found, also of those that were removed from the list since.
    pub found: u64,
    /// True if these are all groups, with all their jobs. False if there were more messages than were read:
    /// these may contain further groups, and further jobs of the listed groups.
    pub complete: bool,
}

impl GroupList {
    fn new(groups: Vec<GroupOverview>, complete: bool) -> Self {
        Self { found: groups.len() as u64, groups, complete }
    }
}

/// The jobs of one key that have not ended, in their order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct GroupOverview {
    /// The hash of the key: the logs keep no keys.
    pub group: String,
    /// The key, if a job of the group was seen in the queue.
    pub key: Option<String>,
    /// True if the first entry is certainly the first job of the group. False if there were more jobs than
    /// were read: the first entry may wait for one of these.
    pub is_first_known: bool,
    /// The jobs in the order of their arrival: each waits for the jobs before it that are not skipped.
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
    /// True if its sender has not yet confirmed that its message is stored.
    pub announced: bool,
    /// True if the jobs behind it have skipped it because its message did not arrive. It blocks no other job.
    pub skipped: bool,
    /// True if its message is overdue: the jobs behind it are about to skip it.
    pub overdue: bool,
    /// True if its sender is cancelling it.
    pub cancelling: bool,
}

impl GroupEntry {
    /// Returns the state of the job as text; `None` if it just waits for its turn.
    pub fn state(&self) -> Option<&'static str> {
        match self {
            Self { skipped: true, .. } => Some("abandoned: blocks no other job"),
            Self { cancelling: true, .. } => Some("is being cancelled"),
            Self { overdue: true, .. } => Some("overdue: its message has not arrived"),
            Self { announced: true, .. } => Some("its sender has not confirmed it"),
            _ => None,
        }
    }
}

/// The group of a job.
pub(super) struct GroupOfJob {
    /// The hash of the job.
    pub(super) job: String,
    /// The jobs of the group that were found.
    pub(super) entries: Vec<GroupEntry>,
    /// [`GroupOverview::is_first_known`].
    pub(super) is_first_known: bool,
    /// True if the group has no other jobs.
    pub(super) is_complete: bool,
}

/// The hashes of a group and a job.
type Position = (String, String);
/// A key and an id.
type Names = (Option<String>, String);

impl Admin {
    /// Returns the FIFO groups of a queue that have jobs. The first job of each group runs or is to run, and
    /// the others wait for it. Ids and keys are only known for the jobs that a peek shows. Costs three
    /// requests, and one for each log and each 32 jobs of a key with more of them; keys share 4,096 logs.
    ///
    /// A storage that [keeps the order itself](jobqueue::storage::OrderedGroups) has no logs: there the
    /// groups are read from the first 10,000 messages of each state, or from the first 32 messages if the
    /// storage does not [show which run](Self::shows_running_jobs). If there are more messages, the list is
    /// not [complete](GroupList::complete). On such a storage a call costs up to fifty requests.
    ///
    /// # Errors
    /// [`NotFound`](jobqueue::ErrorKind::NotFound) if there is no such queue;
    /// [`Storage`](jobqueue::ErrorKind::Storage) if the logs cannot be read.
    pub async fn groups(&self, queue: &str) -> Result<GroupList, Error> {
        let name = QueueName::new(queue)?;
        if self.storage.queues().orders_groups(&name).await? {
            return self.groups_of_storage(&name).await;
        }
        let seen = self.seen_in_order(&name).await?;
        Ok(GroupList::new(overviews(groups(&self.storage, name).await?, &seen), true))
    }

    /// Returns the group of a job with a key. The group has no entries if none of its jobs was found.
    pub(super) async fn group_of(&self, queue: &str, key: &str, job: &Identity) -> Result<GroupOfJob, Error> {
        let (name, (group, hash)) = (QueueName::new(queue)?, names_in_order(key, job));
        let GroupList { groups, complete, .. } = if self.storage.queues().orders_groups(&name).await? {
            self.groups_of_storage(&name).await?
        } else {
            let seen = self.seen_in_order(&name).await?;
            let groups = overviews(group_of(&self.storage, name, key, job).await?, &seen);
            GroupList::new(groups, true)
        };
        let found = groups.into_iter().find(|found| found.group == group);
        Ok(GroupOfJob {
            job: hash,
            is_first_known: found.as_ref().is_some_and(|found| found.is_first_known),
            entries: found.map(|found| found.entries).unwrap_or_default(),
            is_complete: complete,
        })
    }

    /// Returns the jobs in order that a peek shows.
    async fn seen_in_order(&self, queue: &QueueName) -> Result<BTreeMap<Position, Names>, Error> {
        let peeked = self.storage.queues().peek(queue, MAX_MESSAGES).await;
        let peeked = peeked.map_err(|error| not_found(error, queue))?;
        Ok(peeked.iter().filter_map(in_order).collect())
    }

    /// Returns the groups of a storage that keeps the order itself. The first job of a group may run, be
    /// delayed or wait for its next attempt; the jobs behind it wait.
    async fn groups_of_storage(&self, queue: &QueueName) -> Result<GroupList, Error> {
        let queues = self.storage.queues();
        let not_found = |error| not_found(error, queue);
        let Some(index) = &queues.powers().index else {
            let peeked = queues.peek(queue, MAX_MESSAGES).await.map_err(not_found)?;
            // A message that the peek does not show may be the first of a group. If the messages cannot be
            // counted, there may be such a message.
            let shows_all = match queues.queue_properties(queue).await {
                Ok(properties) => properties.approximate_count <= peeked.len() as u64,
                Err(error) if error.kind() == StoreErrorKind::Unsupported => false,
                Err(error) => return Err(not_found(error)),
            };
            let groups = in_sequence(peeked.iter().filter_map(in_order), shows_all);
            return Ok(GroupList::new(groups, shows_all));
        };
        let (mut first, mut waiting, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
        let (mut is_first_known, mut complete) = (true, true);
        for state in JobState::IN_QUEUE.into_iter().filter_map(JobState::of_messages) {
            let (mut next, mut searched) = (None, 0);
            loop {
                let page =
                    index.messages(queue, state, next.as_deref(), PAGE_SIZE).await.map_err(not_found)?;
                searched += page.messages.len();
                let new = page.messages.iter().filter(|(message, _)| seen.insert(message.id.clone()));
                let new = new.filter_map(|(message, _)| in_order(message));
                if state == MessageState::Waiting {
                    waiting.extend(new)
                } else {
                    first.extend(new)
                }
                next = page.next;
                if next.is_none() || searched >= MAX_SEARCHED_FOR_JOB {
                    break;
                }
            }
            // Messages that wait for another of their group come after all other waiting messages, so the
            // first of each group that is found was read before them.
            is_first_known &= next.is_none() || state == MessageState::Waiting;
            complete &= next.is_none();
        }
        let groups = in_sequence(first.into_iter().chain(waiting), is_first_known);
        Ok(GroupList::new(groups, complete))
    }
}

/// Returns groups of logs, with the keys and ids that were seen in the queue.
fn overviews(
    groups: impl IntoIterator<Item = GroupRecord>,
    seen: &BTreeMap<Position, Names>,
) -> Vec<GroupOverview> {
    let overview = |GroupRecord { group, entries }: GroupRecord| {
        let key = seen.iter().find(|((known, _), _)| *known == group);
        let key = key.and_then(|(_, (key, _))| key.clone());
        let entry = |entry: EntryRecord| GroupEntry {
            id: seen.get(&(group.clone(), entry.job.clone())).map(|(_, id)| id.clone()),
            job: entry.job,
            announced: entry.announced,
            skipped: entry.skipped,
            overdue: entry.overdue,
            cancelling: entry.cancelling,
        };
        let entries = entries.into_iter().map(entry).collect();
        GroupOverview { key, is_first_known: true, entries, group }
    };
    groups.into_iter().map(overview).collect()
}

/// Returns the position of a job in order, with its key and id.
fn in_order(message: &PeekedMessage) -> Option<(Position, Names)> {
    let Ok(Parsed::Event(event)) = parse(message.text.as_deref().ok()?) else { return None };
    let names = position_names(&event)?;
    Some((names, (event.key.clone(), event.id.to_string())))
}

/// Returns the groups of messages in order: each message waits for the messages of its group before it.
fn in_sequence(
    messages: impl Iterator<Item = (Position, Names)>,
    is_first_known: bool,
) -> Vec<GroupOverview> {
    let (mut groups, mut places) = (Vec::<GroupOverview>::new(), BTreeMap::new());
    for ((group, job), (key, id)) in messages {
        let entry = GroupEntry {
            job,
            id: Some(id),
            announced: false,
            skipped: false,
            overdue: false,
            cancelling: false,
        };
        let place = *places.entry(group.clone()).or_insert(groups.len());
        match groups.get_mut(place) {
            Some(known) => known.entries.push(entry),
            None => groups.push(GroupOverview { group, key, is_first_known, entries: vec![entry] }),
        }
    }
    groups
}
