//! Helpers that several test programs share. The tests themselves are in `tests/tests/`.

pub mod children;
