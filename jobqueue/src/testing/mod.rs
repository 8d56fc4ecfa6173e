//! Tools for testing handlers and storages: single runs of a handler, planned faults,
//! simulated processes.
//!
//! The module needs the feature `testing`, which is off by default. Do not use it in production.

pub mod faults;
mod one_run;
pub mod simulation;
pub mod wire;
pub mod world;

pub use one_run::{HandlerTest, OneRun, run_one};
