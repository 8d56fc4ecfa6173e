//! The rule `range(…)` for numbers, compared in the field's type.

use std::fmt::Display;
use std::num::NonZero;

use super::super::{Path, Violations};

/// A type of numbers, or of values that may contain a number.
#[diagnostic::on_unimplemented(
    message = "`range` does not apply to `{Self}`",
    label = "this is not a number, nor an `Option` or pointer to one",
    note = "use `length(…)` for the size of a string or collection, or `with = path` for a rule of your own"
)]
pub trait Ranged {
    /// The primitive type of the bounds.
    type Number;

    /// Requires a number between the limits, unless it is absent. NaN is in no range.
    fn range(&self, path: &Path<'_>, name: &str, violations: &mut Violations, limits: Limits<Self::Number>);
}

/// The lower and the upper end of a range.
pub(super) type Limits<N> = (Limit<N>, Limit<N>);

/// An end of a range.
#[derive(Debug, Clone, Copy)]
pub enum Limit<N> {
    /// No limit at this end.
    None,
    /// The limit itself is allowed.
    Included(N),
    /// The limit itself is not allowed.
    Excluded(N),
}

impl<N: PartialOrd> Limit<N> {
    fn is_below(&self, number: &N) -> bool {
        match self {
            Self::None => true,
            Self::Included(limit) => number >= limit,
            Self::Excluded(limit) => number > limit,
        }
    }

    fn is_above(&self, number: &N) -> bool {
        match self {
            Self::None => true,
            Self::Included(limit) => number <= limit,
            Self::Excluded(limit) => number < limit,
        }
    }
}

impl<N: Display> Limit<N> {
    fn shown(&self) -> Limit<&dyn Display> {
        match self {
            Self::None => Limit::None,
            Self::Included(limit) => Limit::Included(limit),
            Self::Excluded(limit) => Limit::Excluded(limit),
        }
    }
}

#[cold]
fn describe(low: Limit<&dyn Display>, high: Limit<&dyn Display>) -> String {
    match (low, high) {
        (Limit::Included(low), Limit::Included(high)) => format!("must be from {low} to {high}"),
        (Limit::None, high) => format!("must be {}", upper(high)),
        (low, Limit::None) => format!("must be {}", lower(low)),
        (low, high) => format!("must be {} and {}", lower(low), upper(high)),
    }
}

fn lower(limit: Limit<&dyn Display>) -> String {
    match limit {
        Limit::None => "a number".to_owned(),
        Limit::Included(limit) => format!("at least {limit}"),
        Limit::Excluded(limit) => format!("more than {limit}"),
    }
}

fn upper(limit: Limit<&dyn Display>) -> String {
    match limit {
        Limit::None => "a number".to_owned(),
        Limit::Included(limit) => format!("at most {limit}"),
        Limit::Excluded(limit) => format!("less than {limit}"),
    }
}

macro_rules! numbers {
    ($($number:ty)+) => {$(
        impl Ranged for $number {
            type Number = $number;
            fn range(
                &self,
                path: &Path<'_>,
                name: &str,
                violations: &mut Violations,
                limits: Limits<$number>,
            ) {
                let (low, high) = limits;
                if !(low.is_below(self) && high.is_above(self)) {
                    violations.add(&path.to(name), "range", describe(low.shown(), high.shown()));
                }
            }
        }
    )+};
}
numbers!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64);

macro_rules! non_zero {
    ($($number:ty)+) => {$(
        impl Ranged for NonZero<$number> {
            type Number = $number;
            fn range(
                &self,
                path: &Path<'_>,
                name: &str,
                violations: &mut Violations,
                limits: Limits<$number>,
            ) {
                self.get().range(path, name, violations, limits);
            }
        }
    )+};
}
non_zero!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize);
