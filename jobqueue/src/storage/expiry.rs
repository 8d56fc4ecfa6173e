//! The metadata of blobs by which a sweep finds out that nothing needs them any more.

use std::time::{Duration, SystemTime};

use super::{BlobProperties, Metadata};

/// The seconds since 1970 after which nothing needs the blob, by the clock of its writer or of the storage, or [`NEVER`].
pub(crate) const EXPIRES: &str = "expires";
pub(crate) const NEVER: &str = "never";
/// The seconds from the write until then: the writer's clock may be behind that of the storage.
const LIFE: &str = "life";

/// Returns the metadata of a blob that is written at `now`, by the writer's clock, and needed until `expires`.
pub(crate) fn needed_until(now: SystemTime, expires: Option<SystemTime>) -> Metadata {
    let Some(expires) = expires else { return Metadata::new().with(EXPIRES, NEVER) };
    let seconds = |from| expires.duration_since(from).map_or(0, |left| left.as_secs()).to_string();
    Metadata::new().with(EXPIRES, seconds(SystemTime::UNIX_EPOCH)).with(LIFE, seconds(now))
}

/// Returns the time by the storage's clock after which nothing needs a blob, by whichever clock this is later; `None` if the blob has
/// no such time, or none that can be expressed.
pub(crate) fn needed_at_most_until(blob: &BlobProperties) -> Option<SystemTime> {
    let seconds = |name| blob.metadata.get(name)?.parse().ok().map(Duration::from_secs);
    let expires = SystemTime::UNIX_EPOCH.checked_add(seconds(EXPIRES)?)?;
    let lived = blob.modified.checked_add(seconds(LIFE).unwrap_or_default())?;
    Some(expires.max(lived))
}
