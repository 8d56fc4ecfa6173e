//! Removes the entries that the log had at an earlier time, because the messages of that time are gone.

use std::collections::{BTreeMap, BTreeSet};

use super::{GroupLog, Millis};
use crate::group_log::entry::{EndState, Entry, EntryState, KeyHash};

/// The entries that a log and its pages had at an earlier time.
#[derive(Debug, Default)]
pub(in crate::group_log) struct FormerEntries {
    /// The nonces of each job's sends, and whether its entry was only announced, not confirmed.
    sends: BTreeMap<(KeyHash, KeyHash), (Vec<u64>, bool)>,
    ended: BTreeMap<KeyHash, EndState>,
}

impl FormerEntries {
    /// Collects the entries of the head of a log and of its pages.
    pub(in crate::group_log) fn of<'a>(documents: impl Iterator<Item = &'a GroupLog>) -> Self {
        let mut former = Self::default();
        for log in documents {
            let job_entries = log.entries.iter().filter(|entry| entry.pages.is_none());
            former.sends.extend(job_entries.map(|entry| {
                let is_announced = entry.state == EntryState::Announced;
                ((entry.key, entry.job), (entry.nonces.clone(), is_announced))
            }));
            former.ended.extend(log.ended.iter().map(|ended| (ended.0, ended.1)));
        }
        former
    }

    /// Returns whether the entry is unchanged: the job was not sent again, and no send was confirmed that may
    /// have stored its message since.
    fn has(&self, entry: &Entry) -> bool {
        let former = self.sends.get(&(entry.key, entry.job));
        former.is_some_and(|(nonces, was_announced)| {
            *nonces == entry.nonces && (!was_announced || entry.state == EntryState::Announced)
        })
    }
}

impl GroupLog {
    /// Returns the key and the number of each page that is linked.
    pub(in crate::group_log) fn linked_pages(&self) -> impl Iterator<Item = (KeyHash, u64)> {
        let of_entry = |entry: &Entry| {
            let key = entry.key;
            entry.pages.clone().into_iter().flatten().map(move |page| (key, page))
        };
        self.entries.iter().flat_map(of_entry)
    }

    /// Removes the entries and the ended jobs that have not changed since.
    pub(in crate::group_log) fn forget(&mut self, former: &FormerEntries, now: Millis) {
        let before = self.entries.len() + self.ended.len();
        let mut groups = BTreeSet::new();
        self.entries.retain(|entry| {
            let is_gone = former.has(entry);
            groups.extend(is_gone.then_some(entry.key));
            !is_gone
        });
        self.ended.retain(|ended| former.ended.get(&ended.0) != Some(&ended.1));
        self.changed |= self.entries.len() + self.ended.len() != before;
        for key in groups {
            self.expect_first(key, now);
        }
    }
}
