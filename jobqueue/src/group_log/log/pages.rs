//! Pages: the entries of a group beyond the first ones, in their own documents. The head has a single entry
//! in their place.
//!
//! ```text
//! head   a1 a2 … a20 [pages 7 to 9] a117      a117 joined without a position, behind pages 7 to 9
//! page 7            a21 … a52
//! page 8            a53 … a84
//! page 9            a85 … a116
//! ```

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use super::turn::Place;
use super::{Announced, EndState, EndedJob, Entry, EntryRef, EntryState, GRACE, GroupLog, KeyHash, Millis};
use crate::group_log::entry::{Announcement, Overdue, PAGE};

/// The number of entries of a group at which the head takes over the next page.
const REFILL_AT: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum PageState {
    #[serde(rename = "o")]
    Open,
    /// Entries may count behind the page: it takes no further entries, however few are left in it.
    #[serde(rename = "s")]
    Sealed,
    /// Its entries are being taken over into the head: nothing in the page counts any more.
    #[serde(rename = "c")]
    Closed,
}

/// The reason why a document takes no further entries of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnnounceRefusal {
    /// The entries belong into the last page, or into a new page.
    Full,
    /// The page does not exist, or is closed.
    Closed,
}

impl GroupLog {
    pub(crate) fn first_page(&self, key: KeyHash) -> Option<u64> {
        self.group(key).find_map(|(_, entry)| entry.pages.as_ref()).map(|pages| pages.start)
    }

    /// Returns the number of the page that the next entry of a group belongs into; `None` if the last entry
    /// of the group is in the head.
    pub(crate) fn last_page(&self, key: KeyHash) -> Option<u64> {
        self.group(key).last().and_then(|(_, entry)| entry.pages.as_ref()).map(|pages| pages.end - 1)
    }

    /// Returns the last page of a group if entries of the head are behind it, such as a job that was
    /// acknowledged late.
    pub(crate) fn passed_page(&self, key: KeyHash) -> Option<u64> {
        let is_passed = self.last_page(key).is_none();
        let pages = self.group(key).filter_map(|(_, entry)| entry.pages.as_ref()).last();
        pages.filter(|_| is_passed).map(|pages| pages.end - 1)
    }

    /// Returns whether the head should take over the next page of a group.
    pub(crate) fn is_low(&self, key: KeyHash) -> bool {
        self.group(key).take(REFILL_AT + 1).any(|(_, entry)| entry.state == EntryState::Paged)
    }

    /// Returns whether the head knows the position of a job, or that the job is done.
    pub(crate) fn has_record_of(&self, entry: &EntryRef) -> bool {
        self.has_position(entry) || self.is_done(entry)
    }

    /// Returns whether the head has the position of a job. A skipped job gets a new position, behind all
    /// others.
    pub(crate) fn has_position(&self, entry: &EntryRef) -> bool {
        self.find(entry).is_some_and(|at| self.entries[at].state != EntryState::Skipped)
    }

    /// Announces jobs of one group in the head.
    pub(crate) fn announce_all(
        &mut self,
        all: &[Announcement],
        now: Millis,
    ) -> Result<Vec<Announced>, AnnounceRefusal> {
        let Some(key) = all.first().map(|first| first.entry.key) else { return Ok(Vec::new()) };
        let is_full = self.first_page(key).is_some() || self.group(key).nth(PAGE - 1).is_some();
        self.announce_unless(is_full, all, now)
    }

    /// Announces jobs in a page. `opens`: creates the page if it does not exist. A page that refuses jobs is
    /// sealed: the next page may follow it, which a process with an older head does not know.
    pub(crate) fn announce_in_page(
        &mut self,
        opens: bool,
        all: &[Announcement],
        now: Millis,
    ) -> Result<Vec<Announced>, AnnounceRefusal> {
        match self.page {
            None if opens => (self.page, self.changed) = (Some(PageState::Open), true),
            Some(PageState::Open | PageState::Sealed) => {}
            None | Some(PageState::Closed) => return Err(AnnounceRefusal::Closed),
        }
        let is_full = self.page == Some(PageState::Sealed) || self.entries.len() >= PAGE;
        let announced = self.announce_unless(is_full, all, now);
        if announced.is_err() {
            self.seal();
        }
        announced
    }

    /// Makes a page refuse further jobs.
    pub(crate) fn seal(&mut self) {
        if self.page == Some(PageState::Open) {
            (self.page, self.changed) = (Some(PageState::Sealed), true);
        }
    }

    fn announce_unless(
        &mut self,
        is_full: bool,
        all: &[Announcement],
        now: Millis,
    ) -> Result<Vec<Announced>, AnnounceRefusal> {
        if is_full && !all.iter().all(|job| self.has_record_of(&job.entry)) {
            return Err(AnnounceRefusal::Full);
        }
        Ok(all.iter().map(|job| self.announce(&job.entry, job.nonce, now)).collect())
    }

    /// Links a page with its first entries behind all entries of a group, whose last page was `last`. Returns
    /// false if another process was faster, so that the entries do not count.
    pub(crate) fn link(&mut self, key: KeyHash, last: Option<u64>, page: u64) -> bool {
        if self.is_paged(key, page) {
            return true;
        }
        if self.last_page(key) != last {
            return false;
        }
        let last = self.group(key).last().map(|(at, _)| at);
        match last.and_then(|at| self.entries[at].pages.as_mut()) {
            Some(pages) => pages.end = page + 1,
            None => self.entries.push(Entry::of_pages(key, page..page + 1)),
        }
        self.changed = true;
        true
    }

    pub(crate) fn is_paged(&self, key: KeyHash, page: u64) -> bool {
        self.group(key).any(|(_, entry)| entry.pages.as_ref().is_some_and(|pages| pages.contains(&page)))
    }

    /// Returns the place of a job that the head does not have, if the job's page is linked.
    pub(super) fn paged(&self, entry: &EntryRef) -> Option<Place> {
        let page = entry.page?;
        self.group(entry.key).find_map(|(index, other)| {
            let pages = other.pages.as_ref().filter(|pages| pages.contains(&page))?;
            Some(Place { index, ahead_in_pages: (page - pages.start) as usize * PAGE })
        })
    }

    /// Returns whether the entries of a page count: it exists, and is not being taken over.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.page, Some(PageState::Open | PageState::Sealed))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.page == Some(PageState::Closed)
    }

    /// Closes a page, so that nothing in it changes any more, and returns it.
    pub(crate) fn close(&mut self) -> Self {
        if self.is_open() {
            (self.page, self.changed) = (Some(PageState::Closed), true);
        }
        self.clone()
    }

    /// Takes over the entries of a closed page, if it is still the first of its group.
    pub(crate) fn adopt(&mut self, key: KeyHash, page: u64, closed: &Self, now: Millis) {
        let is_marker =
            |(_, entry): &(usize, &Entry)| entry.pages.as_ref().is_some_and(|pages| pages.start == page);
        let Some((mut at, _)) = self.group(key).find(is_marker) else { return };
        let is_first = self.group(key).next().is_some_and(|(first, _)| first == at);
        let marked = self.entries[at].overdue.filter(|mark| now.since(mark.last) <= GRACE);
        let overdue = marked.map(|mark| match mark.page {
            // No message has come from this page while deliveries waited for the messages before it: the
            // messages that were due had their time.
            Some(seen) if page < seen => Overdue { page: None, ..mark },
            _ => Overdue::new(now),
        });
        self.changed = true;
        let rest = page + 1..self.entries[at].pages.as_ref().map_or(0, |pages| pages.end);
        if rest.is_empty() {
            self.entries.remove(at);
        } else {
            self.entries[at].pages = Some(rest);
        }
        for EndedJob(job, how) in &closed.ended {
            self.note_ended(&EntryRef { log: 0, key, job: *job, page: None }, *how);
        }
        for entry in &closed.entries {
            if let Some(mut entry) = self.merge(entry, &mut at) {
                if entry.state == EntryState::Stored {
                    entry.overdue = entry.overdue.or(overdue.filter(|mark| entry.due < mark.since));
                }
                self.entries.insert(at, entry);
                at += 1;
            }
        }
        if is_first {
            self.expect_first(key, now);
        }
    }

    /// Returns the entry that a job of a page gets at `at`. Returns `None` if the job is done, or if it
    /// already has a position: then it was sent again by a process that did not know that position.
    fn merge(&mut self, entry: &Entry, at: &mut usize) -> Option<Entry> {
        let own = EntryRef { log: 0, key: entry.key, job: entry.job, page: None };
        let mut entry = entry.clone();
        match self.ended(&own) {
            Some(EndState::Done) => return None,
            Some(EndState::Cancelled) => self.forget_ended(&own),
            Some(EndState::DeadLettered) | None => {}
        }
        let Some(known) = self.find(&own) else { return Some(entry) };
        let found = &mut self.entries[known];
        if found.state == EntryState::Skipped {
            entry.send_again(&found.nonces, found.due);
            self.entries.remove(known);
            *at -= usize::from(known < *at);
            return Some(entry);
        }
        if entry.nonces.iter().any(|nonce| !found.nonces.contains(nonce)) {
            found.send_again(&entry.nonces, entry.due);
            if let Some(first) = &mut found.cancelled_first {
                first.stored |= entry.state == EntryState::Stored;
            }
        }
        if found.state == EntryState::Announced {
            found.state = entry.state;
        }
        None
    }
}
