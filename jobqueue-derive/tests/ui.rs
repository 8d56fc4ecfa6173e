//! Defines what the macros accept, and what they say about mistakes: one file in `ui/fail/<mistake>` for each sentence.
//!
//! After a sentence was changed, `TRYBUILD=overwrite cargo test -p jobqueue-derive --test ui` writes the new ones.

#[test]
fn ui() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/ui/pass/*.rs");
    cases.compile_fail("tests/ui/fail/*/*.rs");
}
