//! `length(…)` and `non_empty`: characters of strings, items of collections.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet, LinkedList, VecDeque};

use super::super::{Path, Violations};

/// A type that has a length, or may hold something that has one.
#[diagnostic::on_unimplemented(
    message = "`length` and `non_empty` do not apply to `{Self}`",
    label = "this is neither a string nor a collection, nor an `Option` or pointer to one",
    note = "use `range(…)` for a number, or `with = path` for a rule of your own"
)]
pub trait Measured {
    /// What is counted, in the plural.
    const UNIT: &'static str;

    /// How many there are, unless the value is absent.
    fn measure(&self) -> Option<usize>;
}

/// Requires a length from `min` to `max`, both allowed; `usize::MAX` is no upper limit.
pub fn length<T: Measured + ?Sized>(
    value: &T,
    path: &Path<'_>,
    violations: &mut Violations,
    min: usize,
    max: usize,
) {
    if let Some(found) = value.measure()
        && !(min..=max).contains(&found)
    {
        violations.add(path, "length", describe(T::UNIT, found, min, max));
    }
}

/// Requires at least one character or item.
pub fn non_empty<T: Measured + ?Sized>(value: &T, path: &Path<'_>, violations: &mut Violations) {
    if value.measure() == Some(0) {
        violations.add(path, "non_empty", "must not be empty");
    }
}

#[cold]
fn describe(unit: &str, found: usize, min: usize, max: usize) -> String {
    let allowed = match (min, max) {
        (min, usize::MAX) => format!("at least {min}"),
        (0, max) => format!("at most {max}"),
        (min, max) if min == max => format!("exactly {min}"),
        (min, max) => format!("{min} to {max}"),
    };
    format!("must have {allowed} {unit}, has {found}")
}

impl Measured for str {
    const UNIT: &'static str = "characters";
    fn measure(&self) -> Option<usize> {
        Some(self.chars().count())
    }
}

impl Measured for String {
    const UNIT: &'static str = str::UNIT;
    fn measure(&self) -> Option<usize> {
        self.as_str().measure()
    }
}

impl Measured for bytes::Bytes {
    const UNIT: &'static str = "bytes";
    fn measure(&self) -> Option<usize> {
        Some(self.len())
    }
}

macro_rules! collections {
    ($([$($generics:tt)*] $collection:ty),+ $(,)?) => {$(
        impl<$($generics)*> Measured for $collection {
            const UNIT: &'static str = "items";
            fn measure(&self) -> Option<usize> {
                Some(self.len())
            }
        }
    )+};
}
collections!(
    [T] [T],
    [T, const N: usize] [T; N],
    [T] Vec<T>,
    [T] VecDeque<T>,
    [T] LinkedList<T>,
    [T] BTreeSet<T>,
    [T] BinaryHeap<T>,
    [T, S] HashSet<T, S>,
    [K, V] BTreeMap<K, V>,
    [K, V, S] HashMap<K, V, S>,
    [] serde_json::Map<String, serde_json::Value>,
);
