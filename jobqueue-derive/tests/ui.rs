//! The messages of the macros about mistakes: one file in `ui/fail/<mistake>` for each message.
//!
//! After a message was changed, `TRYBUILD=overwrite cargo test -p jobqueue-derive --test ui` writes the new one.

#[test]
fn ui() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/ui/pass/*.rs");
    cases.compile_fail("tests/ui/fail/*/*.rs");
}
