//! Puts the sweeper and those who write blobs with a time together: neither knows the other.

use crate::claim_check::{PAYLOADS, SweepOptions, SweepReport, SweptContainer, sweep_containers};
use crate::error::Error;
use crate::storage::Storage;
use crate::{coordination, queue, worker};

/// All containers whose blobs have a time.
pub(crate) const CONTAINERS: &[SweptContainer] = &[
    PAYLOADS,
    SweptContainer::new(worker::ONCE),
    SweptContainer::new(worker::COMPLETED),
    SweptContainer::reused(queue::UNIQUE),
    SweptContainer::new(coordination::batch::CONTAINER),
];

/// Removes blobs of the framework that no message can need any more: what crashes between two writes left over, and
/// records whose time has passed. Workers do not do it by themselves unless told to
/// ([`WorkerBuilder::sweep_every`](crate::WorkerBuilder::sweep_every)).
///
/// # Errors
/// When a listing or a queue's count cannot be had; what was removed until then stays removed. A single blob that cannot
/// be removed is only counted.
///
/// # Cancel safety
/// If the future is dropped, the sweep stops; another can be begun at any time.
pub async fn sweep(storage: &Storage, options: SweepOptions) -> Result<SweepReport, Error> {
    sweep_containers(storage, CONTAINERS, options).await
}
