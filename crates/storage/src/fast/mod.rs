//! Code that is written by hand where the standard library would do, because a measurement justifies it.
//!
//! `docs/benchmarks.md` has the measurements. What gains less than a hundredth of a message's cost does not belong here.

pub mod hex;
pub mod short_text;
