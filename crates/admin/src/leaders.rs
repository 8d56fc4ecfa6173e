//! Leaderships and their holders.

use std::time::SystemTime;

use jobqueue::__internals::{LEADER_HOLDER, LEADER_TERM, LEADERS};
use jobqueue::Error;
use jobqueue::storage::{BlobName, BlobProperties, ContainerName};
use jobqueue_storage::list_all;
use serde::Serialize;

use super::Admin;
use super::text::rfc3339;

/// A leadership, as its lease shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LeaderOverview {
    /// The name; for the leader of a schedule it begins with `schedules/`.
    pub name: String,
    /// The number of the newest term.
    pub term: Option<u64>,
    /// True if there is a leader now.
    pub held: bool,
    /// Host and process id of the current leader, or of the last one: `host:4711`.
    pub holder: Option<String>,
    /// The time at which the newest term began.
    #[serde(serialize_with = "rfc3339")]
    pub since: SystemTime,
}

impl Admin {
    /// Returns all leaderships with their holders, in order of name. Costs one request per 5,000 leaderships.
    ///
    /// # Errors
    /// [`Storage`](jobqueue::ErrorKind::Storage) if the leases cannot be listed.
    pub async fn leaders(&self) -> Result<Vec<LeaderOverview>, Error> {
        self.leaderships("").await
    }

    /// Returns the leaderships whose names begin with `prefix`.
    pub(super) async fn leaderships(&self, prefix: &str) -> Result<Vec<LeaderOverview>, Error> {
        let listed = list_all(&**self.storage.blobs(), &ContainerName::new(LEADERS)?, prefix).await?;
        let overview = |(blob, properties): (BlobName, BlobProperties)| LeaderOverview {
            name: blob.name().to_owned(),
            term: properties.metadata.get(LEADER_TERM).and_then(|term| term.parse().ok()),
            held: properties.is_leased,
            holder: properties.metadata.get(LEADER_HOLDER).map(ToString::to_string),
            since: properties.modified,
        };
        Ok(listed.blobs.into_iter().map(overview).collect())
    }
}
