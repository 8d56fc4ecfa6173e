//! Helpers that several test programs share. The tests themselves are in `tests/tests/`.

pub mod children;

#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
