//! What the macros accept, in `pass`, and their messages about mistakes: one file in `fail/<mistake>` for each message.
//!
//! After a message was changed, `TRYBUILD=overwrite cargo test -p jobqueue-derive --test ui` writes the new one.

// `pass/renamed_crate.rs` takes it as a program does that has renamed it.
extern crate jobqueue as renamed;

#[allow(
    dead_code,
    unreachable_pub,
    clippy::type_complexity,
    clippy::unwrap_used,
    reason = "declarations as a library has them"
)]
mod pass;

// A `pass` of trybuild would build all dependencies a second time, where mistakes only need them checked.
#[test]
fn mistakes() {
    trybuild::TestCases::new().compile_fail("tests/ui/fail/*/*.rs");
}
