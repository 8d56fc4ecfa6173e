//! Reads and lists blobs.

use bytes::Bytes;
use rusqlite::{Connection, params};

use super::row::{BlobRow, container, select_blob};
use crate::clock::to_instant;
use crate::error::{Applied, Failure};
use crate::reader::View;
use jobqueue_storage::rules::limits::MAX_LISTED_BLOBS;
use jobqueue_storage::rules::listing::NameRange;
use jobqueue_storage::{Blob, BlobListing, BlobName, ContainerName, Operation, StoreError, StoreErrorKind};

/// Reads a blob of at most `max_bytes` bytes. The content of a longer blob is not read.
pub(super) fn get(view: &View<'_>, blob: &BlobName, max_bytes: u64) -> Applied<Blob> {
    let row = BlobRow::require(&view.connection, Operation::GetBlob, blob)?;
    content(&view.connection, &row, blob, max_bytes, view.now)
}

pub(crate) fn content(
    connection: &Connection,
    row: &BlobRow,
    blob: &BlobName,
    max_bytes: u64,
    now: i64,
) -> Applied<Blob> {
    if row.length > max_bytes {
        let detail = format!("it has {} bytes; {max_bytes} are allowed", row.length);
        let error = StoreError::new(StoreErrorKind::TooLarge, Operation::GetBlob.as_str(), blob);
        return Err(Failure::Refused(error.with_detail(detail)));
    }
    let data: Vec<u8> = connection
        .prepare_cached("SELECT content FROM jobqueue_blob WHERE id = ?1")?
        .query_row([row.id], |row| row.get(0))?;
    Ok(Blob::new(Bytes::from(data), row.properties(now)))
}

pub(crate) const LIST: &str = select_blob!("WHERE container = ?1 AND name >= ?2 AND name < ?3 ORDER BY name");

/// Returns a page of names that begin with `prefix`, after `marker`, the last name of the previous page.
pub(super) fn list(
    view: &View<'_>,
    name: &ContainerName,
    prefix: &str,
    marker: Option<&str>,
) -> Applied<BlobListing> {
    let container =
        container(&view.connection, Operation::ListBlobs, name).map_err(|failure| match failure {
            Failure::Refused(error) => error.with_answered_at(to_instant(view.now)).into(),
            failure => failure,
        })?;
    let mut statement = view.connection.prepare_cached(LIST)?;
    // The page needs only one lower bound: given two, SQLite would search from one of them and scan up to the
    // other.
    let NameRange { from, end } = NameRange::of_page(prefix, marker);
    let mut rows = statement.query(params![container, from, end])?;
    let mut listing = BlobListing::default().with_now(to_instant(view.now));
    while let Some(row) = rows.next()? {
        let row = BlobRow::read(row)?;
        if listing.blobs.len() == MAX_LISTED_BLOBS {
            listing.next = listing.blobs.last().map(|(name, _)| name.clone());
            break;
        }
        let properties = row.properties(view.now);
        listing.blobs.push((row.name, properties));
    }
    Ok(listing)
}
