//! The pace and the size of the journal's writes, on paused time.

mod continued;

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use jobqueue_storage::has_any;
use jobqueue_testing::faults::{Fault, Faulty};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::blobs::BlobJournal;
use super::*;
use crate::clock::ManualClock;
use crate::envelope::{Envelope, Payload};
use crate::job::outcome::{Outcome, kept_text};
use crate::job::{JobInfo, TraceContext};
use crate::storage::{
    Blob, BlobListing, BlobName, BlobPowers, BlobProperties, BlobStore, ContainerName, JournalEntry,
    JournalPage, JournalQuery, LeaseId, Operation, PutBlob, QueueName, StoreError, StoreErrorKind, Stores,
    list_all,
};
use crate::{Runtime, memory};

const KEPT: Duration = Duration::from_secs(86_400);

fn job(id: &str, key: &str) -> JobInfo {
    let mut event = Envelope::new(id, "//shop", "letter", Payload::None);
    event.key = Some(key.to_owned());
    event.job(QueueName::new("letters").unwrap(), TraceContext::new(1, 1, 1).unwrap())
}

fn push(buffer: &JournalBuffer, id: &str, key: &str) {
    buffer.push(&job(id, key), &Outcome::Completed, Duration::ZERO, None);
}

fn buffer() -> Arc<JournalBuffer> {
    Arc::new(JournalBuffer::new("w", Runtime::paused()))
}

/// A journal whose appends take `delay`, and which refuses entries with the id `refused`.
#[derive(Debug, Default)]
struct SlowJournal {
    delay: Duration,
    refused: &'static str,
    appends: Mutex<Vec<Arc<[JournalEntry]>>>,
}

#[async_trait]
impl JournalStore for SlowJournal {
    async fn append(&self, entries: Arc<[JournalEntry]>) -> Result<(), StoreError> {
        sleep(self.delay).await;
        if entries.iter().any(|entry| *entry.id == *self.refused) {
            return Err(StoreError::new(StoreErrorKind::TooLarge, "append", "journal"));
        }
        self.appends.lock().unwrap().push(entries);
        Ok(())
    }

    async fn search(&self, _: &JournalQuery) -> Result<JournalPage, StoreError> {
        Ok(JournalPage::default())
    }

    async fn expire(&self, _: Duration) -> Result<(), StoreError> {
        Ok(())
    }
}

/// Runs the writer of a journal while a job ends every 20 ms for a minute.
async fn run_for_a_minute(journal: &Arc<SlowJournal>) {
    let (buffer, ended) = (buffer(), CancellationToken::new());
    let store = Arc::clone(journal) as Arc<dyn JournalStore>;
    let write = run_journal_writer(store, Arc::clone(&buffer), KEPT, ended.clone());
    let write = tokio::spawn(write);
    for number in 0..3_000 {
        push(&buffer, &number.to_string(), "key");
        sleep(Duration::from_millis(20)).await;
    }
    ended.cancel();
    write.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn busy_worker_writes_every_15_seconds() {
    for delay in [Duration::ZERO, Duration::from_millis(100)] {
        let journal = Arc::new(SlowJournal { delay, ..SlowJournal::default() });
        run_for_a_minute(&journal).await;
        let appends = journal.appends.lock().unwrap();
        assert!((4..=6).contains(&appends.len()), "{} appends of {delay:?}", appends.len());
        assert_eq!(appends.iter().map(|entries| entries.len()).sum::<usize>(), 3_000);
    }
}

#[tokio::test(start_paused = true)]
async fn refused_entries_do_not_hold_up_later_ones() {
    let journal = Arc::new(SlowJournal { refused: "7", ..SlowJournal::default() });
    run_for_a_minute(&journal).await;
    let appends = journal.appends.lock().unwrap();
    let written: Vec<_> = appends.iter().flat_map(|entries| entries.iter()).collect();
    assert!((1_500..3_000).contains(&written.len()), "{} entries", written.len());
    assert_eq!(&*written[written.len() - 1].id, "2999");
}

#[tokio::test(start_paused = true)]
async fn long_keys_are_cut_and_found() {
    let (buffer, key) = (buffer(), "ä".repeat(20_000));
    push(&buffer, "a", &format!("x{key}"));
    let entries = &buffer.take()[0];
    let kept = entries[0].key.as_deref().unwrap();
    assert_eq!(kept.len(), 1_023, "cut at the end of a character");
    assert_eq!(kept_text(&format!("x{key}")), kept);
}

#[tokio::test(start_paused = true)]
async fn waiting_entries_and_appends_are_limited_in_bytes() {
    let (buffer, key) = (buffer(), "k".repeat(1_024));
    for number in 0..32_768 {
        push(&buffer, &number.to_string(), &key);
    }
    let bytes =
        |entries: &[JournalEntry]| entries.iter().map(|e| e.key.as_ref().unwrap().len()).sum::<usize>();
    let appends = buffer.take();
    assert!((7..=8).contains(&appends.len()), "{} appends", appends.len());
    for entries in &appends {
        assert!(bytes(entries) <= 1024 * 1024 + 4_096, "{} bytes", bytes(entries));
    }
    assert!(buffer.take().is_empty());
}

#[tokio::test(start_paused = true)]
async fn many_bytes_are_written_before_their_time() {
    let (buffer, key, began) = (buffer(), "k".repeat(1_024), Instant::now());
    for number in 0..1_100 {
        push(&buffer, &number.to_string(), &key);
    }
    tokio::time::timeout(Duration::from_secs(1), buffer.full()).await.unwrap();
    assert_eq!(began.elapsed(), Duration::ZERO);
}

fn entries(numbers: std::ops::Range<u64>, error: &str) -> Arc<[JournalEntry]> {
    let buffer = buffer();
    push(&buffer, "id", "key");
    let model = buffer.take()[0][0].clone();
    let entry = |number| JournalEntry {
        ended: SystemTime::UNIX_EPOCH + Duration::from_secs(number),
        number,
        error: Some(Arc::from(error)),
        ..model.clone()
    };
    numbers.map(entry).collect()
}

fn journal_of(storage: &impl AsRef<Stores>) -> BlobJournal {
    BlobJournal::new(Arc::clone(&storage.as_ref().blobs), Runtime::paused())
}

fn everything() -> JournalQuery {
    let mut query = JournalQuery::default();
    query.limit = 1_000;
    query
}

#[tokio::test(start_paused = true)]
async fn segment_ends_before_an_append_would_make_it_too_large() {
    let storage = memory::open_on(Runtime::paused());
    let journal = journal_of(&storage);
    let error = "e".repeat(100_000);
    journal.append(entries(0..30, &error)).await.unwrap();
    journal.append(entries(30..90, &error)).await.unwrap();
    let container = ContainerName::new("jobqueue-history").unwrap();
    let blobs = list_all(&*storage.stores().blobs, &container, "").await.unwrap().blobs;
    assert_eq!(blobs.len(), 2);
    assert_eq!(journal.search(&everything()).await.unwrap().entries.len(), 90);
}

#[tokio::test(start_paused = true)]
async fn failed_append_leaves_nothing_in_the_segment() {
    // Quiet: the planned refusal is the only fault of the writes.
    let faulty = Faulty::quiet(&memory::open_on(Runtime::paused()));
    let journal = journal_of(&faulty.storage());
    journal.append(entries(0..2, "a")).await.unwrap();
    faulty.plan(Operation::PutBlob, 1, Fault::Refuse(StoreErrorKind::Unavailable));
    journal.append(entries(2..4, "a")).await.unwrap_err();
    journal.append(entries(4..6, "a")).await.unwrap();
    let found = journal.search(&everything()).await.unwrap().entries;
    assert_eq!(found.iter().map(|entry| entry.number).collect::<Vec<_>>(), [5, 4, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn search_is_incomplete_at_a_segment_that_is_too_large() {
    // Quiet: the planned refusal is the only fault of the search.
    let faulty = Faulty::quiet(&memory::open_on(Runtime::paused()));
    for start in [10, 20, 30] {
        journal_of(&faulty.storage()).append(entries(start..start + 5, "a")).await.unwrap();
    }
    // The newest segment is read first.
    faulty.plan(Operation::GetBlob, 2, Fault::Refuse(StoreErrorKind::TooLarge));
    let journal = journal_of(&faulty.storage());
    let page = journal.search(&everything()).await.unwrap();
    assert_eq!(page.entries.len(), 5);
    let before = SystemTime::UNIX_EPOCH + Duration::from_secs(20) - Duration::from_micros(1);
    assert_eq!(page.searched_to, Some(before));
    let mut further = everything();
    further.until = page.searched_to;
    let page = journal.search(&further).await.unwrap();
    assert_eq!(page.entries.len(), 5);
    assert_eq!(page.searched_to, None);
}

fn days(number: u64) -> u64 {
    number * 86_400
}

#[tokio::test(start_paused = true)]
async fn segment_has_the_jobs_of_one_day() {
    let storage = memory::open_on(Runtime::paused());
    let journal = journal_of(&storage);
    journal.append(entries(days(3) - 5..days(3) + 5, "a")).await.unwrap();
    journal.append(entries(days(3) + 5..days(3) + 6, "a")).await.unwrap();
    let container = ContainerName::new("jobqueue-history").unwrap();
    let blobs = list_all(&*storage.stores().blobs, &container, "").await.unwrap().blobs;
    let micros = |found: &BlobProperties, name| found.metadata.get(name).unwrap().parse::<u64>().unwrap();
    let day = |micros: u64| micros / 1_000_000 / 86_400;
    let segments = blobs
        .iter()
        .map(|(blob, found)| (&blob.name()[..9], day(micros(found, "first")), day(micros(found, "last"))));
    assert_eq!(segments.collect::<Vec<_>>(), [("19700103/", 2, 2), ("19700104/", 3, 3)]);
    assert_eq!(journal.search(&everything()).await.unwrap().entries.len(), 11);
}

/// The number of entries that a search has found, and of the requests that it has made.
#[derive(Debug, PartialEq, Eq)]
struct SearchCost {
    entries: usize,
    listings: usize,
    reads: usize,
}

#[tokio::test(start_paused = true)]
async fn search_lists_only_the_days_of_its_range() {
    let faulty = Faulty::new(&memory::open_on(Runtime::paused()));
    for day in 0..60 {
        journal_of(&faulty.storage()).append(entries(days(day)..days(day) + 2, "a")).await.unwrap();
    }
    let journal = journal_of(&faulty.storage());
    let at = |seconds| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
    let search = async |since, until, limit| {
        let mut query = everything();
        (query.since, query.until, query.limit) = (since, until, limit);
        let listings = faulty.calls_of(Operation::ListBlobs);
        let reads = faulty.calls_of(Operation::GetBlob);
        let page = journal.search(&query).await.unwrap();
        SearchCost {
            entries: page.entries.len(),
            listings: faulty.calls_of(Operation::ListBlobs) - listings,
            reads: faulty.calls_of(Operation::GetBlob) - reads,
        }
    };
    let two_days = search(at(days(10)), at(days(12) - 1), 100).await;
    assert_eq!(two_days, SearchCost { entries: 4, listings: 2, reads: 2 });
    let all_days = search(None, at(days(60) - 1), 1_000).await;
    assert_eq!(all_days, SearchCost { entries: 120, listings: 1, reads: 60 }, "one page lists all");
    let (blobs, options) = (Arc::clone(&faulty.storage().stores().blobs), PutBlob::new());
    let container = ContainerName::new("jobqueue-history").unwrap();
    for number in 0..5_000 {
        let name = BlobName::new(container.clone(), format!("19700101/{number}")).unwrap();
        let _ = blobs.put_blob(&name, bytes::Bytes::new(), options.clone()).await.unwrap();
    }
    let newest = search(None, at(days(60) - 1), 3).await;
    assert_eq!(newest.entries, 3);
    assert_eq!(newest.listings, 3, "a page of all, then the newest days");
    let all_days = search(None, at(days(60) - 1), 1_000).await;
    assert_eq!(all_days.entries, 120);
    assert_eq!(all_days.listings, 1 + 60 + 1, "each day, and the first day has two pages");
    // round 29, coordination 3: the days before these were listed although the time was over.
    faulty.plan(Operation::GetBlob, 31, Fault::DelayBefore(Duration::from_secs(6)));
    let last_days = search(None, at(days(60) - 1), 1_000).await;
    assert_eq!(last_days.entries, 31 * 2);
    assert_eq!(last_days.listings, 1 + 31, "nothing more after five seconds");
    let earlier = search(None, at(days(29) - 1), 1_000).await;
    assert_eq!(earlier.entries, 29 * 2, "where the search ended, the next begins");
}

#[tokio::test(start_paused = true)]
async fn removal_of_old_segments_lists_and_removes_no_newer_ones() {
    let faulty = Faulty::new(&memory::open_on(Runtime::paused()));
    let storage = faulty.storage();
    let journal = journal_of(&storage);
    for day in 0..4 {
        journal.append(entries(days(day) + 10..days(day) + 12, "a")).await.unwrap();
    }
    let container = ContainerName::new("jobqueue-history").unwrap();
    for number in 0..5_000 {
        let name = BlobName::new(container.clone(), format!("19700201/{number}")).unwrap();
        let _ = storage.blobs().put_blob(&name, bytes::Bytes::new(), PutBlob::new()).await.unwrap();
    }
    let lists = faulty.calls_of(Operation::ListBlobs);
    let before = SystemTime::UNIX_EPOCH + Duration::from_secs(days(2));
    journal.expire(storage.runtime().now().duration_since(before).unwrap()).await.unwrap();
    assert_eq!(faulty.calls_of(Operation::ListBlobs) - lists, 1, "newer segments are not listed");
    let mut query = everything();
    query.until = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(days(4)));
    let left = journal.search(&query).await.unwrap().entries;
    assert_eq!(left.iter().map(|entry| entry.number / 86_400).collect::<Vec<_>>(), [3, 3, 2, 2]);
}

#[tokio::test(start_paused = true)]
async fn clock_that_is_ahead_removes_no_segment_before_its_time() {
    let storage = memory::open_on(Runtime::paused());
    let (now, year) = (storage.runtime().now(), Duration::from_secs(366 * 86_400));
    let today = now.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    journal_of(&storage).append(entries(today..today + 2, "a")).await.unwrap();
    let ahead = Runtime::virtual_time(Arc::new(ManualClock::at(now + year)));
    let journal = BlobJournal::new(Arc::clone(storage.blobs()), ahead);
    journal.expire(KEPT).await.unwrap();
    assert_eq!(journal.search(&everything()).await.unwrap().entries.len(), 2);
}

/// A storage that answers the first request of each listing with an empty page, as Azure may.
#[derive(Debug)]
struct EmptyFirstPages(Arc<dyn BlobStore>);

#[async_trait]
impl BlobStore for EmptyFirstPages {
    async fn create_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        self.0.create_container(container).await
    }

    async fn delete_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        self.0.delete_container(container).await
    }

    async fn put_blob(
        &self,
        blob: &BlobName,
        data: bytes::Bytes,
        options: PutBlob,
    ) -> Result<BlobProperties, StoreError> {
        self.0.put_blob(blob, data, options).await
    }

    async fn get_blob(&self, blob: &BlobName, max_bytes: u64) -> Result<Blob, StoreError> {
        self.0.get_blob(blob, max_bytes).await
    }

    async fn blob_properties(&self, blob: &BlobName) -> Result<BlobProperties, StoreError> {
        self.0.blob_properties(blob).await
    }

    async fn delete_blob(&self, blob: &BlobName, lease: Option<&LeaseId>) -> Result<(), StoreError> {
        self.0.delete_blob(blob, lease).await
    }

    async fn list_blobs(
        &self,
        container: &ContainerName,
        prefix: &str,
        marker: Option<&str>,
    ) -> Result<BlobListing, StoreError> {
        let Some(marker) = marker else {
            let mut empty = BlobListing::default();
            empty.next = Some(String::new());
            return Ok(empty);
        };
        self.0.list_blobs(container, prefix, Some(marker).filter(|marker| !marker.is_empty())).await
    }

    fn powers(self: Arc<Self>) -> BlobPowers {
        Arc::clone(&self.0).powers()
    }
}

#[tokio::test(start_paused = true)]
async fn empty_page_is_not_the_end_of_a_listing() {
    let storage = memory::open_on(Runtime::paused());
    let blobs = Arc::new(EmptyFirstPages(Arc::clone(storage.blobs())));
    let journal = BlobJournal::new(Arc::<EmptyFirstPages>::clone(&blobs), storage.runtime().clone());
    journal.append(entries(10..12, "a")).await.unwrap();
    let container = ContainerName::new("jobqueue-history").unwrap();
    assert!(has_any(&*blobs, &container, "1970").await.unwrap());
    assert!(!has_any(&*blobs, &container, "1971").await.unwrap());
    journal.expire(KEPT).await.unwrap();
    assert!(!has_any(&*blobs, &container, "1970").await.unwrap());
}
