//! The timeout for reading a part of the storage.

use std::time::Duration;

use jobqueue::{Error, ErrorKind};
use tokio::time::timeout;

/// The time after which a part of the storage counts as unreadable: a request to it must not hold up the
/// figures of the other parts.
pub(super) const READ_TIMEOUT: Duration = Duration::from_secs(8);

/// Reads a part of the storage; fails if the read takes longer than [`READ_TIMEOUT`].
pub(super) async fn in_time<T>(read: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    timeout(READ_TIMEOUT, read).await.unwrap_or_else(|_| Err(timed_out()))
}

/// Returns the error of a part that was not read in time.
pub(super) fn timed_out() -> Error {
    let text = format!("no answer within {READ_TIMEOUT:?}: the storage is slow or out of reach");
    Error::new(ErrorKind::Storage, text).with_retryable(true)
}
