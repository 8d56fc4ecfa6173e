//! Tools for testing handlers of `jobqueue`: single runs of a handler, planned storage faults, simulated
//! processes, seeded worlds, and wire forms pinned by golden files.
//!
//! | to test | use |
//! |---|---|
//! | one run of a handler | [`run_one`], [`HandlerTest`] |
//! | a storage that loses an answer, refuses or hangs at a chosen call | [`faults::Faulty`] |
//! | several processes that crash, freeze and restart, driven by a seed | [`world::World`] |
//! | that waiting messages stay readable | [`assert_golden!`] |
//!
//! Add this crate as a dev-dependency: it enables tokio's `test-util`, which lets tests pause time.

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
