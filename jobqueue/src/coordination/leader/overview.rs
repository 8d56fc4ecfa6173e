//! All leaderships of a storage, as their blobs show them.

use std::time::SystemTime;

use super::CONTAINER;
use super::blob::{HOLDER, TERM};
use crate::error::Error;
use crate::storage::ContainerName;
use crate::storage::{LeaseState, Storage, StoreErrorKind};

/// A leadership, as its blob shows it.
#[derive(Debug, Clone)]
pub struct LeaderRecord {
    /// The name.
    pub name: String,
    /// The number of the term that began last.
    pub term: Option<u64>,
    /// True if the lease is held.
    pub held: bool,
    /// Host and process id of the process that began it, if recorded.
    pub holder: Option<String>,
    /// The time at which the term began.
    pub since: SystemTime,
}

/// Returns all leaderships, in order of name. Costs one request for 5,000.
pub async fn leaders(storage: &Storage) -> Result<Vec<LeaderRecord>, Error> {
    let container = ContainerName::new(CONTAINER)?;
    let (mut all, mut next) = (Vec::new(), None::<String>);
    loop {
        let page = match storage.blobs().list_blobs(&container, "", next.as_deref()).await {
            Err(e) if e.kind() == StoreErrorKind::ContainerNotFound => return Ok(all),
            page => page?,
        };
        all.extend(page.blobs.into_iter().map(|(name, properties)| LeaderRecord {
            name,
            term: properties.metadata.get(TERM).and_then(|term| term.parse().ok()),
            holder: properties.metadata.get(HOLDER).map(ToString::to_string),
            held: matches!(properties.lease, LeaseState::Leased | LeaseState::Breaking),
            since: properties.modified,
        }));
        next = page.next;
        if next.is_none() {
            return Ok(all);
        }
    }
}
