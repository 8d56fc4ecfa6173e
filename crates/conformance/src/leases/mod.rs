//! The promises about blob leases: each cell of Azure's table of lease states, without break operations.

mod acquire;
mod expiry;
mod hold;
mod writes;

use super::Promise;
use jobqueue::Storage;

/// Returns whether the storage has the power that these promises are about.
fn are_granted(storage: &Storage) -> bool {
    storage.blob_powers().leases.is_some()
}

pub(super) fn all() -> Vec<Promise> {
    [acquire::PROMISES, hold::PROMISES, writes::PROMISES, expiry::PROMISES].concat()
}
