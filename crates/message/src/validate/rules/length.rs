//! The rules `length(…)` and `non_empty` for the characters of strings and the items of collections.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet, LinkedList, VecDeque};

use super::super::{Path, Violations};

/// A type with a length, or whose value may have a length.
#[diagnostic::on_unimplemented(
    message = "`length` and `non_empty` do not apply to `{Self}`",
    label = "this is neither a string nor a collection, nor an `Option` or pointer to one",
    note = "use `range(…)` for a number, or `with = path` for a rule of your own"
)]
pub trait Measured {
    /// Returns the value to measure, unless it is absent.
    fn measure(&self) -> Option<Measure<'_>>;
}

/// A value with a length.
#[derive(Debug, Clone, Copy)]
pub enum Measure<'a> {
    /// A text, whose characters are counted.
    Text(&'a str),
    /// The number of items or bytes, and their name in the plural.
    Count(usize, &'static str),
}

/// Requires a length within `bounds`, both inclusive. `usize::MAX` means no upper limit.
pub fn length(
    value: Option<Measure<'_>>,
    path: &Path<'_>,
    name: &str,
    violations: &mut Violations,
    bounds: (usize, usize),
) {
    let (min, max) = bounds;
    let (found, unit) = match value {
        None => return,
        // A character has one to four bytes, so most texts need no counting.
        Some(Measure::Text(text)) if text.len() <= max && text.len().div_ceil(4) >= min => return,
        Some(Measure::Text(text)) => (text.chars().count(), "characters"),
        Some(Measure::Count(count, unit)) => (count, unit),
    };
    if !(min..=max).contains(&found) {
        let allowed = match (min, max) {
            (min, usize::MAX) => format!("at least {min}"),
            (0, max) => format!("at most {max}"),
            (min, max) if min == max => format!("exactly {min}"),
            (min, max) => format!("{min} to {max}"),
        };
        violations.add(&path.to(name), "length", format!("must have {allowed} {unit}, has {found}"));
    }
}

/// Requires at least one character or item.
pub fn non_empty(value: Option<Measure<'_>>, path: &Path<'_>, name: &str, violations: &mut Violations) {
    if matches!(value, Some(Measure::Text("") | Measure::Count(0, _))) {
        violations.add(&path.to(name), "non_empty", "must not be empty");
    }
}

macro_rules! texts {
    ($($type:ty),+) => {$(
        impl Measured for $type {
            fn measure(&self) -> Option<Measure<'_>> {
                Some(Measure::Text(self))
            }
        }
    )+};
}
texts!(str, String);

macro_rules! counted {
    ($unit:literal: $([$($generics:tt)*] $type:ty),+ $(,)?) => {$(
        impl<$($generics)*> Measured for $type {
            fn measure(&self) -> Option<Measure<'_>> {
                Some(Measure::Count(self.len(), $unit))
            }
        }
    )+};
}
counted!("bytes": [] bytes::Bytes);
counted!("items":
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_lengths_are_measured_in_characters() {
        let texts = (0..6).flat_map(|count| ["a", "é", "€", "😀"].map(|one| (one.repeat(count), count)));
        for (text, count) in texts {
            for (min, max) in (0..7).flat_map(|min| (min..7).map(move |max| (min, max))) {
                let mut found = Violations::default();
                length(text.measure(), &Path::ROOT, "text", &mut found, (min, max));
                assert_eq!(found.is_empty(), (min..=max).contains(&count), "{text:?} {min}..={max}");
            }
        }
    }
}
