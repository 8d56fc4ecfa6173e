//! For tests of storages and of what is built on them: the conformance suite and planned faults.
//!
//! Behind the feature `testing`, which is off by default; nothing in here is meant for production.

pub mod conformance;

pub mod faults;
pub mod wire;
