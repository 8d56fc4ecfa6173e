//! Reads all logs of a queue, and removes the entries it has read once the messages of that time are gone.

use std::collections::BTreeMap;

use futures_util::{StreamExt, TryStreamExt, stream};

use super::entry::{Entry, EntryRef, KeyHash, LOGS};
use super::log::{FormerEntries, GroupLog};
use super::store::{CONTAINER, GroupLogs, page_of};
use crate::json_blob::{Edit, Known, Version};
use crate::storage::{
    BlobName, ContainerName, StoreError, StoreErrorKind as Kind, Tries, delete_if_present, list_all,
};
use crate::sync::lock;

/// The number of logs that are read or changed at the same time.
const CONCURRENT_LOGS: usize = 16;
/// The number of pages of one log that are read or changed at the same time.
const CONCURRENT_PAGES: usize = 4;
/// The number of times that a log is read while other processes take its pages over.
const MAX_READS: u32 = 3;
/// The number of further attempts to change all logs.
const MAX_RESENDS: u32 = 5;

/// The head of a log, or a page: `None` if it does not exist, an error if it is damaged.
type ReadDocument = Result<Option<Version<GroupLog>>, StoreError>;

/// A log as it was read.
#[derive(Debug)]
pub(crate) struct StoredLog {
    name: BlobName,
    head: ReadDocument,
    /// The linked pages.
    pages: BTreeMap<(KeyHash, u64), ReadDocument>,
}

impl StoredLog {
    /// Returns the entries; the entries of a group are in their order.
    ///
    /// # Errors
    /// A part of the log is damaged.
    pub(super) fn into_entries(self) -> Result<Vec<Entry>, StoreError> {
        let Self { head, mut pages, .. } = self;
        let mut entries = Vec::new();
        for entry in entries_of(head)? {
            let Some(linked) = entry.pages.clone() else {
                entries.push(entry);
                continue;
            };
            for page in linked {
                entries.extend(entries_of(pages.remove(&(entry.key, page)).unwrap_or(Ok(None)))?);
            }
        }
        Ok(entries)
    }

    fn former(&self) -> FormerEntries {
        let documents = [&self.head].into_iter().chain(self.pages.values());
        let versions = documents.filter_map(|document| document.as_ref().ok()?.as_ref());
        FormerEntries::of(versions.map(|version| &version.value))
    }
}

fn entries_of(document: ReadDocument) -> Result<Vec<Entry>, StoreError> {
    Ok(document?.map(|version| version.value.into_entries()).unwrap_or_default())
}

impl GroupLogs {
    /// Reads all stored logs, including ones unknown to this process.
    ///
    /// # Errors
    /// The errors of the storage; none for a damaged log.
    pub(crate) async fn stored(&self) -> Result<Vec<StoredLog>, StoreError> {
        let container = ContainerName::new(CONTAINER).map_err(|e| self.invalid(e))?;
        let prefix = format!("{}/", self.queue);
        let mut heads = Vec::new();
        for (name, _) in list_all(&*self.blobs, &container, &prefix).await?.blobs {
            let log = name.name().strip_prefix(&prefix).and_then(|log| log.parse::<u16>().ok());
            if log.is_some_and(|log| log < LOGS) {
                heads.push(name);
            }
        }
        let reads: Vec<_> = heads.into_iter().map(|head| self.read(head)).collect();
        stream::iter(reads).buffered(CONCURRENT_LOGS).try_collect().await
    }

    /// Reads the log that has the entry's group.
    pub(super) async fn stored_log_of(&self, entry: &EntryRef) -> Result<StoredLog, StoreError> {
        self.read(self.head(entry.log).map_err(|e| self.invalid(e))?).await
    }

    /// Reads a log with its pages.
    async fn read(&self, name: BlobName) -> Result<StoredLog, StoreError> {
        let mut reads = 1;
        loop {
            let head = self.read_document(name.clone()).await?;
            let known = head.as_ref().ok().and_then(Option::as_ref);
            let linked: Vec<_> = known.into_iter().flat_map(|head| head.value.linked_pages()).collect();
            let requests: Vec<_> = linked.iter().map(|(_, page)| self.read_page(&name, *page)).collect();
            let pages: Vec<_> = stream::iter(requests).buffered(CONCURRENT_PAGES).try_collect().await?;
            // The entries of a missing page are in a newer head.
            if reads == MAX_READS || !pages.iter().any(|page| matches!(page, Ok(None))) {
                return Ok(StoredLog { name, head, pages: linked.into_iter().zip(pages).collect() });
            }
            reads += 1;
        }
    }

    async fn read_page(&self, head: &BlobName, page: u64) -> Result<ReadDocument, StoreError> {
        self.read_document(self.page_of(head, page)?).await
    }

    async fn read_document(&self, name: BlobName) -> Result<ReadDocument, StoreError> {
        match self.document(name).read().await {
            Err(error) if !is_damaged(&error) => Err(error),
            document => Ok(document),
        }
    }

    fn page_of(&self, head: &BlobName, page: u64) -> Result<BlobName, StoreError> {
        page_of(head, page).map_err(|e| self.invalid(e))
    }

    /// Removes the entries and the ended jobs of `logs`. Call it once the messages that were in the queue
    /// before `logs` were read are gone: entries of later sends stay. Retries for a while: a job that is left
    /// in a log without its message holds up its key.
    pub(crate) async fn forget(&self, logs: &[StoredLog]) -> Result<(), StoreError> {
        Tries::brief(&self.runtime, MAX_RESENDS, MAX_RESENDS).run(|| self.forget_once(logs)).await
    }

    async fn forget_once(&self, logs: &[StoredLog]) -> Result<(), StoreError> {
        let forget: Vec<_> = logs.iter().map(|log| self.forget_log(log)).collect();
        let forgotten = stream::iter(forget).buffer_unordered(CONCURRENT_LOGS).try_collect::<()>().await;
        lock(&self.known).clear();
        forgotten
    }

    async fn forget_log(&self, stored: &StoredLog) -> Result<(), StoreError> {
        let Ok(head) = &stored.head else {
            // No send can enter a damaged log. An earlier attempt may have deleted it, and a send may have
            // written a new log since.
            return match self.read_document(stored.name.clone()).await? {
                Err(_) => delete_if_present(&*self.blobs, &stored.name).await,
                Ok(_) => Ok(()),
            };
        };
        let (former, now) = (stored.former(), self.clock.now().await);
        // The same steps as when a delivery takes over pages: close, add to the head, delete.
        let pages = stored.pages.iter();
        let close: Vec<_> = pages.map(|((_, page), known)| self.close(&stored.name, *page, known)).collect();
        let mut closed: Vec<_> = stream::iter(close).buffered(CONCURRENT_PAGES).try_collect().await?;
        closed.iter_mut().for_each(|page| page.forget(&former, now));
        let forget = |found: Option<GroupLog>| {
            let mut log = found.unwrap_or_default();
            for ((key, page), closed) in stored.pages.keys().zip(&closed) {
                log.adopt(*key, *page, closed, now);
            }
            log.forget(&former, now);
            let linked: Vec<_> = log.linked_pages().collect();
            if log.take_changed() { Edit::Write(log, linked) } else { Edit::Keep(linked) }
        };
        let linked = self.document(stored.name.clone()).change(known_version(head), forget).await?.result;
        let unlinked = stored.pages.keys().filter(|page| !linked.contains(page));
        let delete: Vec<_> = unlinked.map(|(_, page)| self.delete_unlinked(&stored.name, *page)).collect();
        stream::iter(delete).buffer_unordered(CONCURRENT_PAGES).try_collect().await
    }

    async fn delete_unlinked(&self, head: &BlobName, page: u64) -> Result<(), StoreError> {
        delete_if_present(&*self.blobs, &self.page_of(head, page)?).await
    }

    /// Closes a page, so that nothing in it changes any more, and returns it; returns an empty page if it is
    /// gone or damaged.
    async fn close(&self, head: &BlobName, page: u64, known: &ReadDocument) -> Result<GroupLog, StoreError> {
        let close = |found: Option<GroupLog>| {
            let mut page = found.unwrap_or_default();
            let closed = page.close();
            if page.take_changed() { Edit::Write(page, closed) } else { Edit::Keep(closed) }
        };
        let known = known.as_ref().map_or(Known::Nothing, known_version);
        match self.document(self.page_of(head, page)?).change(known, close).await {
            Err(error) if is_damaged(&error) => Ok(GroupLog::default()),
            closed => Ok(closed?.result),
        }
    }
}

fn known_version(version: &Option<Version<GroupLog>>) -> Known<GroupLog> {
    version.clone().map_or(Known::Nothing, Known::Version)
}

fn is_damaged(error: &StoreError) -> bool {
    matches!(error.kind(), Kind::Corrupt | Kind::TooLarge)
}
