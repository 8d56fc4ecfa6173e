//! The promises of blob leases: each cell of Azure's table of lease states.

mod acquire;
mod breaking;
mod change;
mod expiry;
mod release;
mod renew;
mod writes;

use super::Promise;

pub(super) fn all() -> Vec<Promise> {
    [
        acquire::PROMISES,
        renew::PROMISES,
        change::PROMISES,
        release::PROMISES,
        breaking::PROMISES,
        writes::PROMISES,
        expiry::PROMISES,
    ]
    .concat()
}
