//! Limits the part of the volume that the store may fill, so that the content of the log always fits into the
//! file.
//!
//! A commit goes to the write-ahead log, and a checkpoint copies the log into the file. On a small volume the
//! log alone could take all the room. Then nothing can be copied, and the file cannot be opened again until
//! the volume grows. So the log is kept short where room is short, and the file may grow only as far as the
//! log can still be copied.

use std::path::PathBuf;

use rusqlite::Connection;

use super::open::platform;

/// The number of pages in the log after which to checkpoint if there is room: 8 MiB.
const MAX_CHECKPOINT_PAGES: u32 = 1_000;
/// The smallest number of pages after which to checkpoint; with fewer, checkpoints would cost more than they
/// gain.
const MIN_CHECKPOINT_PAGES: u32 = 16;
/// The free bytes above which no room need be reserved.
const PLENTY_BYTES: u64 = 256 << 20;
/// The pages reserved for operations on existing messages: the minimum, the maximum, and the divisor of the
/// allowed pages.
const MIN_RESERVE: i64 = 32;
const MAX_RESERVE: i64 = 256;
const RESERVE_DIVISOR: i64 = 16;
/// SQLite's limit on the number of pages.
const ALL_PAGES: i64 = 0xffff_fffe;

/// The part of the reserved pages that an operation must leave, in eighths.
///
/// Messages that are put back leave pages for leases, and new leases leave some for messages that are leased
/// again. So whatever is put back, a get finds messages, and their deletion frees pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reserve {
    Nothing = 0,
    /// Leaves pages for messages that are leased again.
    ForOldLeases = 1,
    ForLeases = 2,
    /// Leaves pages for texts that grow, and for leases.
    ForTexts = 3,
    All = 8,
}

#[derive(Debug)]
pub(super) struct Space {
    folder: PathBuf,
    /// The maximum number of pages that the application allows.
    max_pages: i64,
    page: u64,
    /// The number of pages that the file may have now.
    limit: i64,
    /// The free bytes at the last measurement; `None` if they cannot be known.
    free: Option<u64>,
}

impl Space {
    /// Returns the room in the folder of the store that `connection` has open. The file may have at most
    /// `max_bytes`.
    pub(super) fn new(
        connection: &Connection,
        folder: PathBuf,
        max_bytes: Option<u64>,
    ) -> rusqlite::Result<Self> {
        let page = number(connection, "page_size")?.max(512);
        let max_pages =
            max_bytes.map_or(ALL_PAGES, |bytes| i64::try_from(bytes / page).unwrap_or(ALL_PAGES).max(1));
        let mut space = Self { folder, max_pages, page, limit: ALL_PAGES, free: None };
        space.measure(connection)?;
        Ok(space)
    }

    /// Measures the free bytes again. Called after a checkpoint.
    pub(super) fn measure(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let had_plenty = self.has_plenty();
        self.free = platform::free_bytes(&self.folder);
        if had_plenty && self.has_plenty() && self.max_pages == ALL_PAGES {
            return Ok(());
        }
        let pages = self.allowed_pages(connection)?;
        let limit = format!("PRAGMA max_page_count = {pages}");
        self.limit = connection.query_row(&limit, [], |row| row.get(0))?;
        Ok(())
    }

    /// Returns the number of pages that the file may still take; [`ALL_PAGES`] if it is not limited.
    pub(super) fn free_pages(&self, connection: &Connection) -> rusqlite::Result<i64> {
        if self.limit >= ALL_PAGES {
            return Ok(ALL_PAGES);
        }
        let pages = |pragma: &str| -> rusqlite::Result<i64> {
            connection.prepare_cached(pragma)?.query_row([], |row| row.get(0))
        };
        Ok(self.limit - pages("PRAGMA page_count")? + pages("PRAGMA freelist_count")?)
    }

    /// Returns whether the open transaction has left `part` of the pages reserved for leases, renewals and
    /// messages that are put back, or has taken none of the pages that were `free` before. Otherwise a full
    /// file would stop the work that frees it.
    pub(super) fn has_reserve(
        &self,
        connection: &Connection,
        part: Reserve,
        free: i64,
    ) -> rusqlite::Result<bool> {
        let left = self.free_pages(connection)?;
        let reserve = (self.limit / RESERVE_DIVISOR).clamp(MIN_RESERVE, MAX_RESERVE).min(self.limit / 4);
        Ok(left >= free || left >= reserve * part as i64 / Reserve::All as i64)
    }

    pub(super) fn checkpoint_pages(&self) -> u32 {
        checkpoint_pages(self.free, self.page)
    }

    /// Returns the size of the log in bytes when it starts over, unless a reader uses an old snapshot.
    pub(super) fn log_bytes(&self) -> i64 {
        let frame = self.page + 24;
        i64::try_from(u64::from(self.checkpoint_pages()) * 2 * frame).unwrap_or(i64::MAX)
    }

    pub(super) fn has_plenty(&self) -> bool {
        self.free.is_none_or(|free| free >= PLENTY_BYTES)
    }

    /// Returns the number of pages that the file may have: its present pages, and the pages that fit beside a
    /// log of full length.
    fn allowed_pages(&self, connection: &Connection) -> rusqlite::Result<i64> {
        let Some(free) = self.free.filter(|free| *free < PLENTY_BYTES) else { return Ok(self.max_pages) };
        let present: i64 = connection.pragma_query_value(None, "page_count", |row| row.get(0))?;
        let log = u64::from(self.checkpoint_pages()) * 2;
        let room = (free / self.page).saturating_sub(log);
        Ok(present.saturating_add(i64::try_from(room).unwrap_or(ALL_PAGES)).min(self.max_pages))
    }
}

fn checkpoint_pages(free: Option<u64>, page: u64) -> u32 {
    let share = free.map_or(u64::MAX, |free| free / 16 / page);
    u32::try_from(share).unwrap_or(u32::MAX).clamp(MIN_CHECKPOINT_PAGES, MAX_CHECKPOINT_PAGES)
}

fn number(connection: &Connection, pragma: &str) -> rusqlite::Result<u64> {
    let number: i64 = connection.pragma_query_value(None, pragma, |row| row.get(0))?;
    Ok(u64::try_from(number).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(free: Option<u64>) -> Space {
        Space { folder: PathBuf::new(), max_pages: ALL_PAGES, page: 8_192, limit: ALL_PAGES, free }
    }

    #[test]
    fn little_room_keeps_the_log_short() {
        assert_eq!(space(None).checkpoint_pages(), MAX_CHECKPOINT_PAGES);
        assert_eq!(space(Some(1 << 40)).checkpoint_pages(), MAX_CHECKPOINT_PAGES);
        assert_eq!(space(Some(8 << 20)).checkpoint_pages(), 64);
        assert_eq!(space(Some(0)).checkpoint_pages(), MIN_CHECKPOINT_PAGES);
    }

    #[test]
    fn small_file_takes_messages_too() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch("CREATE TABLE t (x)").unwrap();
        let space = Space { limit: 32, ..space(None) };
        assert!(space.has_reserve(&connection, Reserve::All, 31).unwrap());
    }

    #[test]
    fn file_grows_only_as_far_as_the_log_can_be_copied() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch("CREATE TABLE t (x)").unwrap();
        let present: i64 = connection.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
        assert_eq!(space(Some(0)).allowed_pages(&connection).unwrap(), present);
        assert_eq!(space(Some(8 << 20)).allowed_pages(&connection).unwrap(), present + 1_024 - 128);
        assert_eq!(space(None).allowed_pages(&connection).unwrap(), ALL_PAGES);
    }
}
