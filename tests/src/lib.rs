//! Helpers that several test programs share. The tests themselves are in `tests/tests/`.

pub mod children;
pub mod completions;
pub mod death;
pub mod example;
pub mod faults;
pub mod fork;
pub mod jobs;
pub mod log;
pub mod patched;
pub mod power;
pub mod proxy;
pub mod python;
pub mod running;
pub mod sas;
mod seed;
pub mod sqlite_file;

pub use jobqueue_test_support::azurite;
pub use seed::seed;

#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../../crates/conformance/README.md")]
struct ConformanceReadme;

#[cfg(doctest)]
#[doc = include_str!("../../jobqueue-derive/README.md")]
struct DeriveReadme;
