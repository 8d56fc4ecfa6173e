//! For tests of storages and of what is built on them: the conformance suite, planned faults and simulated processes.
//!
//! Behind the feature `testing`, which is off by default; nothing in here is meant for production.

pub mod conformance;

pub mod faults;
pub mod simulation;
pub mod wire;
