//! Promises about journals of ended jobs.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::prelude::*;
use jobqueue::storage::{JournalEntry, JournalPage, JournalQuery, JournalStore};

const YEAR: Duration = Duration::from_secs(366 * 86_400);

/// The journal of a subject, with entries of a queue that no other promise uses.
struct TestJournal {
    journal: Arc<dyn JournalStore>,
    queue: Arc<str>,
    /// A time of whole microseconds.
    start: SystemTime,
}

impl TestJournal {
    fn new(subject: &Subject) -> Result<Self, Broken> {
        let journal = subject.storage().stores().blob_powers.journal.clone();
        let journal = journal.ok_or_else(|| Broken::new("the storage keeps no journal"))?;
        let queue = Arc::from(subject.queue_name()?.as_str());
        // Entries with the same time and number are one entry, whatever their queue. The random start keeps
        // the entries of other promises and runs apart.
        let random = uuid::Uuid::new_v4().as_u64_pair().1 % (YEAR.as_secs() * 1_000_000);
        let start = SystemTime::UNIX_EPOCH + Duration::from_micros(1_800_000_000_000_007 + random);
        Ok(Self { journal, queue, start })
    }

    /// Returns the entry of a completed job that ended this many microseconds after the start.
    fn entry(&self, micros: u64) -> JournalEntry {
        let ended = self.start + Duration::from_micros(micros);
        JournalEntry {
            ended,
            number: micros,
            queue: Arc::clone(&self.queue),
            id: Arc::from(format!("job-{micros}")),
            source: Arc::from("//shop"),
            kind: Arc::from("mail"),
            key: None,
            outcome: Arc::from(JournalEntry::COMPLETED),
            reason: None,
            attempt: 1,
            inserted: ended - Duration::from_secs(5),
            ran: Duration::from_micros(1_700),
            error: None,
            worker: Arc::from("w"),
            trace: None,
        }
    }

    /// Returns the entry of a job that was dead-lettered.
    fn failure(&self, micros: u64, error: &str) -> JournalEntry {
        JournalEntry {
            outcome: Arc::from("dead_lettered"),
            key: Some(Arc::from("ada")),
            reason: Some(Arc::from("rejected")),
            error: Some(Arc::from(error)),
            trace: Some(Arc::from("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")),
            number: u64::MAX - micros,
            ..self.entry(micros)
        }
    }

    async fn append(&self, entries: &[JournalEntry]) -> Result<(), Broken> {
        Ok(self.journal.append(Arc::from(entries)).await?)
    }

    async fn search(&self, set: impl FnOnce(&mut JournalQuery)) -> Result<JournalPage, Broken> {
        let mut query = JournalQuery::default();
        (query.queue, query.limit) = (Some(self.queue.to_string()), 1_000);
        set(&mut query);
        Ok(self.journal.search(&query).await?)
    }

    /// Searches page by page.
    async fn pages(&self, limit: usize) -> Result<Vec<JournalEntry>, Broken> {
        let (mut entries, mut until) = (Vec::new(), None);
        loop {
            let page = self.search(|query| (query.limit, query.until) = (limit, until)).await?;
            if let Some(to) = page.searched_to {
                ensure!(
                    page.entries.iter().all(|entry| entry.ended > to),
                    "an entry is repeated by the next page"
                );
                ensure!(
                    until.is_none_or(|until| to < until),
                    "a page does not reach further back than the page before it"
                );
            }
            entries.extend(page.entries);
            until = page.searched_to;
            if until.is_none() {
                return Ok(entries);
            }
        }
    }
}

promises! { "journal" if |storage| storage.stores().blob_powers.journal.is_some();
    /// A search returns entries as they were appended, the newest first.
    async fn returns_what_was_appended(subject) {
        let journal = TestJournal::new(subject)?;
        let (old, new) = (journal.entry(1), journal.failure(2, "no such \"address\"\u{1f600}"));
        journal.append(&[old.clone(), new.clone()]).await?;
        let page = journal.search(|_| {}).await?;
        ensure!(page.entries == [new, old], "found {:?}", page.entries);
        ensure!(page.searched_to.is_none(), "there is nothing more, but the page says {:?}", page.searched_to);
    }

    /// An entry that is appended twice is stored once.
    async fn keeps_a_repeated_entry_once(subject) {
        let journal = TestJournal::new(subject)?;
        let entries = [journal.entry(1), journal.entry(2)];
        journal.append(&entries[..1]).await?;
        journal.append(&entries).await?;
        let found = journal.search(|_| {}).await?.entries;
        ensure!(found.len() == 2, "found {found:?}");
    }

    /// Entries that ended at the same time are separate entries, and are on one page.
    async fn keeps_entries_of_one_moment_together(subject) {
        let journal = TestJournal::new(subject)?;
        let same = |number| JournalEntry { number, ..journal.entry(2) };
        journal.append(&[journal.entry(1), same(10), same(11), same(12), journal.entry(3)]).await?;
        let page = journal.search(|query| query.limit = 2).await?;
        ensure!(page.entries.len() == 4, "found {:?}", page.entries);
    }

    /// All pages together have every entry once, whatever the page size.
    async fn pages_neither_repeat_nor_miss_an_entry(subject) {
        let journal = TestJournal::new(subject)?;
        let mut entries: Vec<_> = (0..40).map(|n| JournalEntry { number: n, ..journal.entry(n / 3) }).collect();
        journal.append(&entries).await?;
        entries.sort_by_key(|entry| entry.number);
        for limit in [1, 2, 7, 39, 40, 41] {
            let mut found = journal.pages(limit).await?;
            ensure!(found.is_sorted_by(|newer, older| newer.ended >= older.ended), "not the newest first");
            found.sort_by_key(|entry| entry.number);
            ensure!(found == entries, "pages of {limit} have {} of {} entries", found.len(), entries.len());
        }
    }

    /// A search selects by id, key, kind, outcome and a part of the error, and by any combination of them.
    async fn selects_by_each_field(subject) {
        let journal = TestJournal::new(subject)?;
        let other = JournalEntry { kind: Arc::from("letter"), ..journal.entry(3) };
        let entries = [journal.entry(1), journal.failure(2, "no such address"), other];
        journal.append(&entries).await?;
        let text = |text: &str| Some(text.to_owned());
        let [plain, dead, other] = &entries;
        for (set, wanted) in [
            (Box::new(|query: &mut JournalQuery| query.id = text("job-1")) as Box<dyn FnOnce(&mut JournalQuery) + Send>, vec![plain]),
            (Box::new(|query| query.id = text("job")), vec![]),
            (Box::new(|query| query.key = text("ada")), vec![dead]),
            (Box::new(|query| query.kind = text("letter")), vec![other]),
            (Box::new(|query| query.outcome = text("dead_lettered")), vec![dead]),
            (Box::new(|query| query.outcome = text(JournalEntry::COMPLETED)), vec![other, plain]),
            (Box::new(|query| query.error = text("such addr")), vec![dead]),
            (Box::new(|query| query.error = text("Such addr")), vec![]),
            (Box::new(|query| (query.id, query.kind) = (text("job-3"), text("mail"))), vec![]),
            (Box::new(|query| (query.key, query.outcome) = (text("ada"), text("completed"))), vec![]),
        ] {
            let found = journal.search(set).await?.entries;
            ensure!(found.iter().eq(wanted.iter().copied()), "found {found:?} instead of {wanted:?}");
        }
    }

    /// A range of time includes both of its ends.
    async fn ranges_include_their_ends(subject) {
        let journal = TestJournal::new(subject)?;
        journal.append(&[1, 2, 3, 4].map(|micros| journal.entry(micros))).await?;
        let [two, three] = [2, 3].map(|micros| journal.entry(micros).ended);
        let found = journal.search(|query| (query.since, query.until) = (Some(two), Some(three))).await?.entries;
        ensure!(found == [journal.entry(3), journal.entry(2)], "found {found:?}");
    }

    /// Entries that ended longer ago than the given time expire, and no others do.
    async fn expires_what_ended_long_ago(subject) {
        let journal = TestJournal::new(subject)?;
        // Long before the entries of other promises.
        let old = JournalEntry { ended: journal.start - 50 * YEAR, ..journal.entry(1) };
        journal.append(&[old, journal.entry(2)]).await?;
        journal.journal.expire(30 * YEAR).await?;
        let found = journal.search(|_| {}).await?.entries;
        ensure!(found == [journal.entry(2)], "found {found:?}");
    }
}
