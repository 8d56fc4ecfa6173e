//! Hand-written replacements for the standard library, each justified by a measurement.
//!
//! `docs/benchmarks.md` has the measurements. Code that saves less than a hundredth of a message's cost does
//! not belong here.

pub mod hex;
pub mod short_text;
