//! The promises about queues.

mod clear;
mod counts;
mod create;
mod dead_letters;
mod delete;
mod get;
mod groups;
mod index;
mod list;
mod log;
mod metadata;
mod missing;
mod peek;
mod put;
mod receipt;
mod text;
mod ttl;
mod update;

use super::Promise;

pub(super) fn all() -> Vec<Promise> {
    [
        create::PROMISES,
        missing::PROMISES,
        list::PROMISES,
        metadata::PROMISES,
        put::PROMISES,
        text::PROMISES,
        ttl::PROMISES,
        get::PROMISES,
        peek::PROMISES,
        index::PROMISES,
        log::PROMISES,
        update::PROMISES,
        delete::PROMISES,
        receipt::PROMISES,
        clear::PROMISES,
        groups::PROMISES,
        counts::PROMISES,
        dead_letters::PROMISES,
    ]
    .concat()
}
