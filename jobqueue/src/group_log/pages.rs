//! Changes groups whose entries are in several documents: announces jobs in the last page, finds the document
//! that has an entry, and takes over pages into the head.

use std::sync::Arc;

use super::entry::{Announcement, EntryRef};
use super::log::{AnnounceRefusal, Announced, GroupLog, Millis, Position};
use super::log_blob::LogBlob;
use super::message::InOrder;
use super::store::GroupLogs;
use crate::error::{Error, ErrorKind};

/// The number of times that a send retries while other processes change the pages of its group.
const MAX_ROUNDS: u32 = 16;

impl GroupLogs {
    /// Gives jobs of one group their positions. Returns the page that has their entries; `None` if the head
    /// has them.
    ///
    /// # Errors
    /// The log cannot be read or changed.
    pub(super) async fn announce(
        &self,
        all: &[Announcement],
        now: Millis,
    ) -> Result<(Option<u64>, Vec<Announced>), Error> {
        let Some(Announcement { entry: group, .. }) = all.first() else { return Ok((None, Vec::new())) };
        let head = self.of(group)?;
        for _ in 0..MAX_ROUNDS {
            let latest = head.latest();
            let last = latest.last_page(group.key);
            let is_known = all.iter().all(|announcement| latest.has_record_of(&announcement.entry));
            let refused = match last.filter(|_| !is_known) {
                None => {
                    let announcements = all.to_vec();
                    match head.change(move |log| log.announce_all(&announcements, now)).await? {
                        Ok(answers) => return Ok((None, answers)),
                        Err(refused) => refused,
                    }
                }
                Some(page) => match self.announce_in(page, false, all, now).await? {
                    Ok(answers) => return Ok((Some(page), answers)),
                    Err(refused) => refused,
                },
            };
            // Another process may have changed the log.
            head.read_and_change(|_| ()).await?;
            let latest = head.latest();
            if is_known || latest.last_page(group.key) != last {
                continue;
            }
            match (refused, latest.first_page(group.key)) {
                (AnnounceRefusal::Full, _) => {
                    if let Some((page, answers)) = self.open(&head, last, all, now).await? {
                        return Ok((Some(page), answers));
                    }
                }
                (AnnounceRefusal::Closed, Some(first)) => self.take_over(&head, group, first).await?,
                (AnnounceRefusal::Closed, None) => {}
            }
        }
        Err(busy())
    }

    async fn announce_in(
        &self,
        page: u64,
        opens: bool,
        all: &[Announcement],
        now: Millis,
    ) -> Result<Result<Vec<Announced>, AnnounceRefusal>, Error> {
        let Some(Announcement { entry: group, .. }) = all.first() else { return Ok(Ok(Vec::new())) };
        let announcements = all.to_vec();
        let document = self.blob(group, Some(page))?;
        document.change(move |log| log.announce_in_page(opens, &announcements, now)).await
    }

    /// Opens the page behind `last`, which is sealed, with its first entries, and links it to the head. A
    /// page that is not linked does not count; the next sender links it. Returns `None` if another process
    /// was faster.
    async fn open(
        &self,
        head: &Arc<LogBlob>,
        last: Option<u64>,
        all: &[Announcement],
        now: Millis,
    ) -> Result<Option<(u64, Vec<Announced>)>, Error> {
        let Some(Announcement { entry: group, .. }) = all.first() else { return Ok(None) };
        // At most 52 bits, so that every JSON reader keeps all digits; not 0, and never the number of a
        // former page.
        let page = last.map_or_else(|| (self.runtime.random_u64() >> 12) + 1, |last| last + 1);
        self.seal(group, head.latest().passed_page(group.key)).await?;
        let opened = self.announce_in(page, true, all, now).await?;
        let key = group.key;
        let is_linked = head.change(move |log| log.link(key, last, page)).await?;
        if !is_linked {
            self.delete_page(group, page).await?;
        }
        Ok(opened.ok().filter(|_| is_linked).map(|answers| (page, answers)))
    }

    /// Seals a page if entries of the head are behind it. Call this before a send behind the page is
    /// acknowledged: a process with an older head would enter a later send in the page, before it.
    pub(super) async fn seal(&self, group: &EntryRef, passed: Option<u64>) -> Result<(), Error> {
        let Some(page) = passed else { return Ok(()) };
        self.blob(group, Some(page))?.change(GroupLog::seal).await
    }

    /// Changes the document that has the entry of a job: its page, or the head.
    ///
    /// `change` may run several times, on documents of different versions; it must be idempotent.
    ///
    /// # Errors
    /// The log cannot be read or changed.
    ///
    /// # Cancel safety
    /// If the future is dropped, the change may or may not be made.
    pub(crate) async fn change<R: Send + 'static>(
        &self,
        entry: &EntryRef,
        change: impl FnMut(&mut GroupLog) -> R + Clone + Send + 'static,
    ) -> Result<R, Error> {
        // That the job was done once says nothing about an entry that a later send has made.
        let is_in_head = self.of(entry)?.latest().has_position(entry);
        let page = entry.page.filter(|_| !is_in_head);
        self.change_in(page, entry, change).await
    }

    /// Like [`change`](Self::change), but looks for the entry in `page` first, if that page still has
    /// entries.
    pub(super) async fn change_in<R: Send + 'static>(
        &self,
        page: Option<u64>,
        entry: &EntryRef,
        mut change: impl FnMut(&mut GroupLog) -> R + Clone + Send + 'static,
    ) -> Result<R, Error> {
        let head = self.of(entry)?;
        if let Some(page) = page {
            let mut in_page = change.clone();
            let in_page = move |log: &mut GroupLog| {
                let changed = log.is_open().then(|| in_page(log));
                (changed, log.is_closed())
            };
            match self.blob(entry, Some(page))?.change(in_page).await? {
                (Some(result), _) => return Ok(result),
                (None, true) => self.take_over(&head, entry, page).await?,
                (None, false) => {}
            }
        }
        head.change(move |log| change(log)).await
    }

    /// Returns the position of a delivery. Adds an entry if there is none, and gives the delivery the turn if
    /// it is the first.
    ///
    /// # Errors
    /// The log cannot be read or changed.
    ///
    /// # Cancel safety
    /// If the future is dropped, a write that is under way may still make the claim. No later write makes it,
    /// because the next delivery may have ended the job by then.
    pub(crate) async fn position(
        &self,
        head: &Arc<LogBlob>,
        own: InOrder,
        now: Millis,
    ) -> Result<Position, Error> {
        let InOrder { entry, turn } = own;
        loop {
            self.refill(head, &entry).await?;
            if let Some(position) = head.latest().position(&entry, turn, now) {
                return Ok(position);
            }
            let claimant = Arc::new(());
            let claimed_for = Arc::downgrade(&claimant);
            let claim = move |log: &mut GroupLog| match claimed_for.strong_count() {
                0 => Position::Superseded,
                _ => log.claim_position(&entry, turn, now),
            };
            let position = head.read_and_change(claim).await?;
            drop(claimant);
            if !head.latest().is_low(entry.key) {
                return Ok(position);
            }
        }
    }

    /// Takes over the next page of a group if few of its entries are left in the head. One delivery does this
    /// for all.
    async fn refill(&self, head: &Arc<LogBlob>, group: &EntryRef) -> Result<(), Error> {
        if !head.latest().is_low(group.key) {
            return Ok(());
        }
        let _refilling = head.refilling.lock().await;
        while let Some(page) = head.latest().first_page(group.key).filter(|_| head.latest().is_low(group.key))
        {
            self.take_over(head, group, page).await?;
        }
        Ok(())
    }

    /// Moves the entries of the first page of a group into the head: closes the page, so that nothing in it
    /// changes any more; adds its entries to the head; deletes it. Any process may continue after any of
    /// these steps.
    async fn take_over(&self, head: &Arc<LogBlob>, group: &EntryRef, page: u64) -> Result<(), Error> {
        let closed = self.blob(group, Some(page))?.change(GroupLog::close).await?;
        let (key, now) = (group.key, self.clock.now().await);
        let adopt = move |log: &mut GroupLog| {
            log.adopt(key, page, &closed, now);
            log.is_paged(key, page)
        };
        if !head.change(adopt).await? {
            self.delete_page(group, page).await?;
        }
        Ok(())
    }
}

fn busy() -> Error {
    let text = "the group log of a key cannot be changed: other processes change it all the time";
    Error::new(ErrorKind::Storage, text).with_retryable(true)
}
