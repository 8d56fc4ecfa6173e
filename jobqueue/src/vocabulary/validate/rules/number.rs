//! `range(…)`: numbers, compared in the field's own type.

use std::fmt;
use std::num::NonZero;

use super::super::{Path, Violations};

/// A primitive number.
pub trait Number: Copy + PartialOrd + fmt::Display {}

/// A type that holds a number, or may hold one.
#[diagnostic::on_unimplemented(
    message = "`range` does not apply to `{Self}`",
    label = "this is not a number, nor an `Option` or pointer to one",
    note = "use `length(…)` for the size of a string or collection, or `with = path` for a rule of your own"
)]
pub trait Ranged {
    /// The primitive in which the bounds are written.
    type Number: Number;

    /// The number, unless it is absent.
    fn number(&self) -> Option<Self::Number>;
}

/// One end of a range.
#[derive(Debug, Clone, Copy)]
pub enum Limit<N> {
    /// No limit at this end.
    None,
    /// The limit itself is allowed.
    Included(N),
    /// The limit itself is not allowed.
    Excluded(N),
}

/// Requires a number between `low` and `high`. NaN is between no limits.
pub fn range<T: Ranged + ?Sized>(
    value: &T,
    path: &Path<'_>,
    violations: &mut Violations,
    low: Limit<T::Number>,
    high: Limit<T::Number>,
) {
    let Some(number) = value.number() else { return };
    let high_enough = match low {
        Limit::None => true,
        Limit::Included(limit) => number >= limit,
        Limit::Excluded(limit) => number > limit,
    };
    let low_enough = match high {
        Limit::None => true,
        Limit::Included(limit) => number <= limit,
        Limit::Excluded(limit) => number < limit,
    };
    if !(high_enough && low_enough) {
        violations.add(path, "range", describe(low, high));
    }
}

#[cold]
fn describe<N: Number>(low: Limit<N>, high: Limit<N>) -> String {
    match (low, high) {
        (Limit::Included(low), Limit::Included(high)) => format!("must be from {low} to {high}"),
        (Limit::None, high) => format!("must be {}", upper(high)),
        (low, Limit::None) => format!("must be {}", lower(low)),
        (low, high) => format!("must be {} and {}", lower(low), upper(high)),
    }
}

fn lower<N: Number>(limit: Limit<N>) -> String {
    match limit {
        Limit::None => "a number".to_owned(),
        Limit::Included(limit) => format!("at least {limit}"),
        Limit::Excluded(limit) => format!("more than {limit}"),
    }
}

fn upper<N: Number>(limit: Limit<N>) -> String {
    match limit {
        Limit::None => "a number".to_owned(),
        Limit::Included(limit) => format!("at most {limit}"),
        Limit::Excluded(limit) => format!("less than {limit}"),
    }
}

macro_rules! numbers {
    ($($number:ty)+) => {$(
        impl Number for $number {}
        impl Ranged for $number {
            type Number = $number;
            fn number(&self) -> Option<$number> {
                Some(*self)
            }
        }
    )+};
}
numbers!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64);

macro_rules! non_zero {
    ($($number:ty)+) => {$(
        impl Ranged for NonZero<$number> {
            type Number = $number;
            fn number(&self) -> Option<$number> {
                Some(self.get())
            }
        }
    )+};
}
non_zero!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize);
