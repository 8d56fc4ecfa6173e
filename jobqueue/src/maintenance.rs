//! Maintenance: removes leftovers of crashes and ended jobs from a storage.
// Connects the sweeper with the modules that write temporary blobs; these modules do not depend on each
// other.

use crate::claim_check::{PAYLOADS, SweptContainer, sweep_containers};
use crate::error::Error;
use crate::storage::Storage;
use crate::{delivery, queue_core, send};

pub use crate::claim_check::{SweepOptions, SweepReport};

/// All containers with temporary blobs.
pub(crate) const CONTAINERS: &[SweptContainer] = &[
    PAYLOADS,
    SweptContainer::reused(queue_core::ONCE),
    SweptContainer::new(delivery::COMPLETED),
    SweptContainer::reused(send::UNIQUE),
];

/// Deletes orphaned blobs of the framework, left by crashes between two writes, and expired records. Leaves
/// batches to [`sweep_batches`](crate::batch::sweep_batches). Workers sweep only if
/// [`WorkerBuilder::sweep_every`](crate::WorkerBuilder::sweep_every) is set.
///
/// # Errors
/// [`Storage`](crate::ErrorKind::Storage) if a listing or the count of a queue fails, or 96 removals in a row
/// because the storage throttles or cannot be reached. Blobs that were already removed stay removed, and the
/// error contains their number. Any other blob that cannot be removed causes no error; it is counted.
///
/// # Cancel safety
/// If the future is dropped, the sweep stops; another can be started at any time.
pub async fn sweep(storage: &Storage, options: SweepOptions) -> Result<SweepReport, Error> {
    sweep_containers(storage, CONTAINERS, options).await
}
