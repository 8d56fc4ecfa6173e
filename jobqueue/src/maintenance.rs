//! Maintenance: removes what crashes and ended jobs leave behind in a storage.
// Connects the sweeper with the modules that write temporary blobs; neither knows the other.

use crate::claim_check::{PAYLOADS, SweptContainer, sweep_containers};
pub use crate::claim_check::{SweepOptions, SweepReport};
use crate::error::Error;
use crate::storage::Storage;
use crate::{coordination, queue, worker};

/// A list of all containers with temporary blobs.
pub(crate) const CONTAINERS: &[SweptContainer] = &[
    PAYLOADS,
    SweptContainer::new(worker::ONCE),
    SweptContainer::new(worker::COMPLETED),
    SweptContainer::reused(queue::UNIQUE),
    SweptContainer::new(coordination::batch::CONTAINER),
];

/// Removes blobs of the framework that no message can need any more: remains of crashes between two writes, and
/// expired records. Workers do this only if [`WorkerBuilder::sweep_every`](crate::WorkerBuilder::sweep_every) is set.
///
/// # Errors
/// [`Storage`](crate::ErrorKind::Storage) if a listing or the count of a queue fails. Blobs that were already removed
/// stay removed. A single blob that cannot be removed is only counted.
///
/// # Cancel safety
/// If the future is dropped, the sweep stops; another can be started at any time.
pub async fn sweep(storage: &Storage, options: SweepOptions) -> Result<SweepReport, Error> {
    sweep_containers(storage, CONTAINERS, options).await
}
