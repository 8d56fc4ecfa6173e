//! The promises about blobs, except for leases.

mod conditions;
mod containers;
mod content;
mod listing;

use super::Promise;

pub(super) fn all() -> Vec<Promise> {
    [containers::PROMISES, content::PROMISES, conditions::PROMISES, listing::PROMISES].concat()
}
