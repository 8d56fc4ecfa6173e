//! Tools for testing handlers of `jobqueue` and what they use: single runs of a handler, planned faults, simulated processes, seeded
//! worlds, and wire forms pinned by golden files.
//!
//! | to test | use |
//! |---|---|
//! | one run of a handler | [`run_one`], [`HandlerTest`] |
//! | a lost answer, a refusal, a hang of the storage at a chosen call | [`faults::Faulty`] |
//! | several processes that crash, freeze and come back, from a seed | [`world::World`] |
//! | that waiting messages stay readable | [`assert_golden!`] |
//!
//! Depend on it as a dev-dependency: it enables tokio's `test-util`, so that time can be paused.

#![forbid(unsafe_code)]

pub mod faults;
pub mod golden;
mod one_run;
pub mod simulation;
pub mod world;

pub use one_run::{HandlerTest, OneRun, run_one};

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
