//! The declarations that the macros accept, in `pass`, and their messages about mistakes, in `fail/<mistake>`
//! with a file for each message.
//!
//! After a change of a message, `TRYBUILD=overwrite cargo test -p jobqueue-derive --test ui` writes the new
//! text.

// `pass/renamed_crate.rs` uses the crate under this name, like a program that has renamed the dependency.
extern crate jobqueue as renamed;

#[allow(
    dead_code,
    unreachable_pub,
    clippy::type_complexity,
    clippy::unwrap_used,
    reason = "declarations as in a library"
)]
mod pass;

// `pass` is a module and no `pass` of trybuild, which would build all dependencies a second time; for
// mistakes a check of the dependencies is enough.
#[test]
fn mistakes() {
    trybuild::TestCases::new().compile_fail("tests/ui/fail/*/*.rs");
}
