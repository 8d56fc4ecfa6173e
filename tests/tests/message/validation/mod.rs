//! The rules of `#[message(…)]`: their limits, the paths that they name, and that all violations are
//! collected.

mod any_number;
mod collected;
mod fields;
mod paths;
mod ranges;
mod texts;

use jobqueue::Validate;

/// Returns `path rule` of each violation, in order.
fn broken(value: &impl Validate) -> Vec<String> {
    let violations = value.validate().err().unwrap_or_default();
    violations.iter().map(|v| format!("{} {}", v.path(), v.rule())).collect()
}

fn only(value: &impl Validate) -> String {
    let violations = value.validate().unwrap_err();
    assert_eq!(violations.len(), 1, "{violations}");
    violations.to_string()
}
