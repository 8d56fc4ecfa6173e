//! Rules that the application writes: `with = path` and `validate = path`.

use std::fmt::Display;

use super::super::{Path, Violations};

/// A field type that provides the argument of a rule function: the field itself, the value in an `Option` or
/// behind a pointer, the text of a `String`, or the items of a `Vec`.
#[diagnostic::on_unimplemented(
    message = "a rule over `&{A}` does not apply to a field of type `{Self}`",
    label = "the function given to `with` takes `&{A}`",
    note = "write the function as `fn(&{Self}) -> Result<(), E>` where `E: Display`"
)]
pub trait Provides<A: ?Sized> {
    /// Returns the argument, unless the value is absent.
    fn provide(&self) -> Option<&A>;
}

impl<T: ?Sized> Provides<T> for T {
    fn provide(&self) -> Option<&T> {
        Some(self)
    }
}

impl<T> Provides<T> for Option<T> {
    fn provide(&self) -> Option<&T> {
        self.as_ref()
    }
}

impl Provides<str> for String {
    fn provide(&self) -> Option<&str> {
        Some(self)
    }
}

impl Provides<str> for Option<String> {
    fn provide(&self) -> Option<&str> {
        self.as_deref()
    }
}

impl<T> Provides<[T]> for Vec<T> {
    fn provide(&self) -> Option<&[T]> {
        Some(self)
    }
}

impl<T> Provides<[T]> for Option<Vec<T>> {
    fn provide(&self) -> Option<&[T]> {
        self.as_deref()
    }
}

/// Calls `rule` with a field.
pub fn custom<T: Provides<A> + ?Sized, A: ?Sized, E: Display>(
    value: &T,
    path: &Path<'_>,
    name: &str,
    violations: &mut Violations,
    rule: fn(&A) -> Result<(), E>,
) {
    if let Some(value) = value.provide()
        && let Err(problem) = rule(value)
    {
        broken(&path.to(name), "with", violations, &problem);
    }
}

/// Calls `rule` with a whole message.
pub fn whole<T, E: Display>(
    value: &T,
    path: &Path<'_>,
    violations: &mut Violations,
    rule: fn(&T) -> Result<(), E>,
) {
    if let Err(problem) = rule(value) {
        broken(path, "validate", violations, &problem);
    }
}

#[cold]
fn broken(path: &Path<'_>, rule: &'static str, violations: &mut Violations, problem: &dyn Display) {
    violations.add(path, rule, problem.to_string());
}
