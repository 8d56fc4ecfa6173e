//! The size of a blob, and the time that it takes.

use std::time::Duration;

/// The greatest number of bytes of a blob. The server holds twice as many in a value, but copies it more than once.
pub(super) const MAX_BLOB_BYTES: usize = 512 << 20;

/// Returns the further time for a blob of this size: 1 second for each mebibyte.
pub(super) fn further_time(bytes: u64) -> Duration {
    Duration::from_secs(bytes >> 20)
}
