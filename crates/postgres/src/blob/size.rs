//! The size of blobs, and the additional time for large ones.

use std::time::Duration;

use bytes::Bytes;

use crate::database::Call;
use jobqueue_storage::rules::limits;
use jobqueue_storage::{BlobName, Operation, PutBlob, StoreError, StoreErrorKind};

/// The maximum number of bytes of a blob. A value on the server can have twice as many, but the server copies
/// it more than once.
const MAX_BLOB_BYTES: usize = 512 << 20;

/// The maximum number of bytes of a blob that needs no additional time, and therefore does not wait for a
/// turn among large blobs.
pub(super) const MAX_SHORT_BYTES: u64 = (1 << 20) - 1;

/// Returns the additional time for a blob of this size: 1 second for each mebibyte.
pub(super) fn further_time(bytes: u64) -> Duration {
    Duration::from_secs(bytes >> 20)
}

/// Checks the arguments of a write.
///
/// # Errors
/// `InvalidInput` for the metadata, `TooLarge` for the content.
pub(crate) fn check_put(blob: &BlobName, data: &Bytes, options: &PutBlob) -> Result<(), StoreError> {
    limits::check_metadata(Operation::PutBlob, blob, &options.metadata)?;
    if data.len() <= MAX_BLOB_BYTES {
        return Ok(());
    }
    let detail = format!("the blob has {} bytes; {MAX_BLOB_BYTES} are allowed", data.len());
    Err(Call::new(Operation::PutBlob, blob).refuse(StoreErrorKind::TooLarge).with_detail(detail))
}
