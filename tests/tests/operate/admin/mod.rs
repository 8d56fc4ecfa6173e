//! The operator's view: it shows what there is, changes only what it is allowed to, and tells of every change.

#![allow(clippy::unwrap_used, missing_docs)]

mod access;
mod azurite;
mod cancel;
mod coordination;
mod dead_letters;
mod explain;
mod history;
mod killed;
mod peek;
mod presence;
mod queues;
mod support;
mod upkeep;
