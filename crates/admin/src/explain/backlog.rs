//! The keys that hold the backlog of a queue.

use std::collections::BTreeMap;

use jobqueue::Error;
use serde::Serialize;

use crate::jobs::{MAX_SEARCHED_FOR_JOB, PAGE_SIZE};
use crate::{Admin, GroupOverview, JobFilter, JobState};

/// The most keys that are returned.
const MAX_KEYS: usize = 100;

/// The keys of the jobs that wait in a queue; only of jobs in order, if the storage does not show its jobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct KeyBacklog {
    /// The keys with the most jobs, at most 100.
    pub keys: Vec<KeyCount>,
    /// The number of different keys.
    pub distinct: u64,
    /// The number of waiting jobs without a key; `None` if the storage does not show its jobs, and the other
    /// figures are those of jobs in order.
    pub without_key: Option<u64>,
    /// True if all jobs were counted.
    pub complete: bool,
}

/// The jobs of one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct KeyCount {
    /// The key; `None` if only its [group](Self::group) is known.
    pub key: Option<String>,
    /// The hash of the key, where logs keep the order of the jobs.
    pub group: Option<String>,
    /// The number of jobs that wait; in a group, of those that have not ended.
    pub jobs: u64,
    /// True if jobs of the key run one at a time, in their order.
    pub in_order: bool,
}

impl Admin {
    /// Returns the keys of the jobs that wait in a queue: where the storage [shows which
    /// run](Self::shows_running_jobs), of the first 10,000 that wait, at a request for each 1,000. On other
    /// storages returns the keys of the [groups](Self::groups) of jobs in order, at the cost of these.
    ///
    /// # Errors
    /// [`NotFound`](jobqueue::ErrorKind::NotFound) if there is no such queue;
    /// [`Storage`](jobqueue::ErrorKind::Storage) if its jobs or the logs cannot be read.
    pub async fn key_backlog(&self, queue: &str) -> Result<KeyBacklog, Error> {
        if !self.has_index() {
            let found = self.groups(queue).await?;
            let keys = found.groups.into_iter().map(KeyCount::of).filter(|count| count.jobs > 0);
            return Ok(KeyBacklog::new(keys.collect(), None, found.complete));
        }
        let (mut keys, mut without_key) = (BTreeMap::<String, KeyCount>::new(), 0);
        let (mut next, mut searched) = (None::<String>, 0);
        loop {
            let page = JobFilter::new().limit(PAGE_SIZE as usize).from(next);
            let page = self.find_jobs(queue, JobState::Waiting, &page, MAX_SEARCHED_FOR_JOB).await?;
            searched += page.jobs.len();
            for job in page.jobs {
                let Some(key) = job.key else {
                    without_key += 1;
                    continue;
                };
                let count = keys.entry(key.clone()).or_insert_with(|| KeyCount::new(key));
                count.jobs += 1;
                count.in_order |= job.in_order;
            }
            next = page.next;
            if next.is_none() || searched >= MAX_SEARCHED_FOR_JOB {
                let keys = keys.into_values().collect();
                return Ok(KeyBacklog::new(keys, Some(without_key), next.is_none()));
            }
        }
    }
}

impl KeyBacklog {
    fn new(mut keys: Vec<KeyCount>, without_key: Option<u64>, complete: bool) -> Self {
        let distinct = keys.len() as u64;
        // The sort is stable: keys with as many jobs stay in their order.
        keys.sort_by_key(|count| std::cmp::Reverse(count.jobs));
        keys.truncate(MAX_KEYS);
        Self { keys, distinct, without_key, complete }
    }
}

impl KeyCount {
    fn new(key: String) -> Self {
        Self { key: Some(key), group: None, jobs: 0, in_order: false }
    }

    fn of(group: GroupOverview) -> Self {
        let jobs = group.entries.iter().filter(|entry| !entry.skipped).count() as u64;
        Self { key: group.key, group: Some(group.group), jobs, in_order: true }
    }
}
