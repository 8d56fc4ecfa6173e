//! Stands in for the rules `url`, `email` and `pattern` without the feature `validation`: to use one is a compile error that
//! names the feature.

use super::super::{Path, Violations};

/// Implemented by no type.
#[diagnostic::on_unimplemented(
    message = "the rules `email`, `url` and `pattern` need the feature `validation` of jobqueue",
    label = "this rule needs the feature `validation`",
    note = "add \"validation\" to the features of jobqueue in Cargo.toml"
)]
pub trait ValidationFeature {}

/// Refuses the rule `url`.
pub fn url<T: ValidationFeature>(_: T, _: &Path<'_>, _: &str, _: &mut Violations) {}

/// Refuses the rule `email`.
pub fn email<T: ValidationFeature>(_: T, _: &Path<'_>, _: &str, _: &mut Violations) {}

/// Refuses the rule `pattern`.
pub fn pattern<T: ValidationFeature>(_: T, _: &Path<'_>, _: &str, _: &mut Violations, _: &'static Pattern) {}

/// A pattern that is not compiled.
#[derive(Debug)]
pub struct Pattern;

impl Pattern {
    /// Returns a stand-in for a pattern.
    pub const fn new(_: &'static str) -> Self {
        Self
    }

    /// Does nothing.
    pub fn discard(self) {}
}
