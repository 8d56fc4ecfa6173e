//! Stand-ins for the rules `url`, `email` and `pattern` without the feature `validation`. Each use of them is
//! a compile error that names the feature.

use super::super::{Path, Violations};

/// A trait that no type implements.
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

/// A stand-in for a pattern.
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
