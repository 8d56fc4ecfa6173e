//! Helpers that several test programs share. The tests themselves are in `tests/tests/`.

pub mod azurite;
pub mod children;
pub mod death;
pub mod example;
pub mod jobs;
pub mod proxy;
pub mod python;
pub mod running;
pub mod sas;

#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
