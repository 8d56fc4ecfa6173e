//! Tools for tests of handlers and of storages: runs of one handler, the conformance suite, planned faults, simulated processes.
//!
//! Behind the feature `testing`, which is off by default; nothing in here is meant for production.

pub mod conformance;

pub mod faults;
mod one_run;
pub mod simulation;
pub mod wire;
pub mod world;

pub use one_run::{HandlerTest, OneRun, run_one};
