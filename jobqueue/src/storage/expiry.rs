//! The metadata by which a sweep finds blobs that are no longer needed.

use std::time::{Duration, SystemTime};

use super::{BlobProperties, Metadata};

/// The metadata key of the time after which the blob is not needed: seconds since 1970, by the clock of its
/// writer or of the storage, or [`NEVER`].
pub(crate) const EXPIRES: &str = "expires";
pub(crate) const NEVER: &str = "never";
/// The metadata key of the seconds from the write until that time. The writer's clock may be behind the
/// storage's.
const LIFE: &str = "life";

/// Returns the metadata of a blob that is written at `now`, by the writer's clock, and needed until
/// `expires`.
pub(crate) fn needed_until(now: SystemTime, expires: Option<SystemTime>) -> Metadata {
    let Some(expires) = expires else { return Metadata::new().with(EXPIRES, NEVER) };
    let seconds = |from| expires.duration_since(from).map_or(0, |left| left.as_secs()).to_string();
    Metadata::new().with(EXPIRES, seconds(SystemTime::UNIX_EPOCH)).with(LIFE, seconds(now))
}

/// Returns the time after which a blob is not needed: the stored time, or the blob's life counted from its
/// write by the storage's clock, whichever is later. Returns `None` if the blob has no such time, or a time
/// that cannot be represented.
pub(crate) fn needed_at_most_until(blob: &BlobProperties) -> Option<SystemTime> {
    let seconds = |name| blob.metadata.get(name)?.parse().ok().map(Duration::from_secs);
    let expires = SystemTime::UNIX_EPOCH.checked_add(seconds(EXPIRES)?)?;
    let end_of_life = blob.modified.checked_add(seconds(LIFE).unwrap_or_default())?;
    Some(expires.max(end_of_life))
}
