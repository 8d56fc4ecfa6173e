//! Reads and lists blobs.

use std::time::SystemTime;

use bytes::Bytes;
use tokio_postgres::types::Type;

use super::row::{BlobRow, blob_columns};
use super::size::{MAX_BLOB_BYTES, further_time};
use crate::database::Call;
use crate::store::Store;
use crate::time::to_instant;
use jobqueue_storage::rules::limits::MAX_LISTED_BLOBS;
use jobqueue_storage::{Blob, BlobListing, BlobName, ContainerName, Operation, StoreError, StoreErrorKind};

/// The content of a blob of more than $3 bytes is not read.
const GET: &str = concat!(
    "SELECT ",
    blob_columns!(),
    ", jobqueue.now(), CASE WHEN b.length <= $3 THEN b.content END FROM jobqueue.container c
    LEFT JOIN jobqueue.blob b ON b.container = c.id AND b.name = $2 WHERE c.name = $1"
);

/// A page begins at the prefix, or behind the last name of the page before.
const LIST: &str = concat!(
    "SELECT ",
    blob_columns!(),
    ", jobqueue.now() FROM jobqueue.container c JOIN jobqueue.blob b ON b.container = c.id
    WHERE c.name = $1 AND b.name >= $2 AND b.name > $3 ORDER BY b.name LIMIT $4"
);

/// The time of a listing without a row that has it.
const TIME: &str = "SELECT jobqueue.now(), EXISTS (SELECT FROM jobqueue.container WHERE name = $1)";

impl Store {
    /// Reads a blob of at most `max_bytes` bytes.
    pub(super) async fn content(&self, blob: &BlobName, max_bytes: u64) -> Result<Blob, StoreError> {
        let call = Call::new(Operation::GetBlob, blob);
        let most = i64::try_from(max_bytes).unwrap_or(i64::MAX);
        let values = [
            (&blob.container().as_str() as _, Type::TEXT),
            (&blob.name() as _, Type::TEXT),
            (&most as _, Type::INT8),
        ];
        let further = further_time(max_bytes.min(MAX_BLOB_BYTES as u64));
        let rows = self.database.query_longer(call, GET, &values, further).await?;
        let row = rows.first().ok_or_else(|| call.refuse(StoreErrorKind::ContainerNotFound))?;
        if call.get::<Option<i64>>(row, 0)?.is_none() {
            return Err(call.refuse(StoreErrorKind::BlobNotFound));
        }
        let found = BlobRow::read(call, row)?;
        let content: Option<&[u8]> = call.get(row, 11)?;
        let content = content.ok_or_else(|| {
            let detail = format!("it has {} bytes; {max_bytes} are allowed", found.length);
            call.refuse(StoreErrorKind::TooLarge).with_detail(detail)
        })?;
        let now = to_instant(call.get(row, 10)?);
        Ok(Blob::new(Bytes::copy_from_slice(content), found.properties(now)))
    }

    /// Returns a page of names that begin with `prefix`, after `marker`, the last name of the previous page.
    pub(super) async fn list(
        &self,
        container: &ContainerName,
        prefix: &str,
        marker: Option<&str>,
    ) -> Result<BlobListing, StoreError> {
        let call = Call::new(Operation::ListBlobs, container);
        // No name has this character, nor can a text of the server. The empty marker is less than all names.
        let before_nul = |text: &str| text.split('\0').next().unwrap_or_default().to_owned();
        let most = if prefix.contains('\0') { 0 } else { MAX_LISTED_BLOBS as i64 + 1 };
        let (prefix, marker) = (&before_nul(prefix), before_nul(marker.unwrap_or_default()));
        let values = [
            (&container.as_str() as _, Type::TEXT),
            (&prefix as _, Type::TEXT),
            (&marker as _, Type::TEXT),
            (&most as _, Type::INT8),
        ];
        let rows = self.database.query(call, LIST, &values).await?;
        let mut listing = BlobListing::default();
        for row in &rows {
            let found = BlobRow::read(call, row)?;
            if !found.name.starts_with(prefix) {
                break;
            }
            if listing.blobs.len() == MAX_LISTED_BLOBS {
                listing.next = listing.blobs.last().map(|(name, _)| name.clone());
                break;
            }
            let now = to_instant(call.get(row, 10)?);
            listing.now = listing.now.or(Some(now));
            let properties = found.properties(now);
            listing.blobs.push((found.name, properties));
        }
        if listing.now.is_none() {
            listing.now = Some(self.time_of(call, container).await?);
        }
        Ok(listing)
    }

    /// Returns the time, if the container exists. The refusal has it too.
    async fn time_of(&self, call: Call<'_>, container: &ContainerName) -> Result<SystemTime, StoreError> {
        let rows = self.database.query(call, TIME, &[(&container.as_str() as _, Type::TEXT)]).await?;
        let missing = || call.refuse(StoreErrorKind::ContainerNotFound);
        let row = rows.first().ok_or_else(missing)?;
        let now = to_instant(call.get(row, 0)?);
        if call.get(row, 1)? { Ok(now) } else { Err(missing().with_answered_at(now)) }
    }
}
