//! The rules `length(…)` and `non_empty`: characters of strings, items of collections.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet, LinkedList, VecDeque};

use super::super::{Path, Violations};

/// A type that has a length, or may hold a value that has one.
#[diagnostic::on_unimplemented(
    message = "`length` and `non_empty` do not apply to `{Self}`",
    label = "this is neither a string nor a collection, nor an `Option` or pointer to one",
    note = "use `range(…)` for a number, or `with = path` for a rule of your own"
)]
pub trait Measured {
    /// Requires a length from the first to the second of `bounds`, both allowed, unless the value is absent; `usize::MAX`
    /// means no upper limit.
    fn length(&self, path: &Path<'_>, name: &str, violations: &mut Violations, bounds: (usize, usize));

    /// Requires at least one character or item, unless the value is absent.
    fn non_empty(&self, path: &Path<'_>, name: &str, violations: &mut Violations);
}

/// The name of the counted items in the plural, and their number.
struct Found(&'static str, usize);

impl Found {
    fn length(self, path: &Path<'_>, name: &str, violations: &mut Violations, bounds: (usize, usize)) {
        let (min, max) = bounds;
        if !(min..=max).contains(&self.1) {
            violations.add(&path.to(name), "length", self.describe(min, max));
        }
    }

    fn non_empty(self, path: &Path<'_>, name: &str, violations: &mut Violations) {
        if self.1 == 0 {
            violations.add(&path.to(name), "non_empty", "must not be empty");
        }
    }

    #[cold]
    fn describe(self, min: usize, max: usize) -> String {
        let allowed = match (min, max) {
            (min, usize::MAX) => format!("at least {min}"),
            (0, max) => format!("at most {max}"),
            (min, max) if min == max => format!("exactly {min}"),
            (min, max) => format!("{min} to {max}"),
        };
        let Self(unit, found) = self;
        format!("must have {allowed} {unit}, has {found}")
    }
}

impl Measured for str {
    fn length(&self, path: &Path<'_>, name: &str, violations: &mut Violations, bounds: (usize, usize)) {
        // A character has one to four bytes, so that most texts need no counting.
        let (bytes, (min, max)) = (self.len(), bounds);
        if bytes > max || bytes.div_ceil(4) < min {
            Found("characters", self.chars().count()).length(path, name, violations, bounds);
        }
    }

    fn non_empty(&self, path: &Path<'_>, name: &str, violations: &mut Violations) {
        Found("characters", self.len()).non_empty(path, name, violations);
    }
}

impl Measured for String {
    fn length(&self, path: &Path<'_>, name: &str, violations: &mut Violations, bounds: (usize, usize)) {
        self.as_str().length(path, name, violations, bounds);
    }

    fn non_empty(&self, path: &Path<'_>, name: &str, violations: &mut Violations) {
        self.as_str().non_empty(path, name, violations);
    }
}

macro_rules! measured {
    ($unit:literal, $count:path: $([$($generics:tt)*] $type:ty),+ $(,)?) => {$(
        impl<$($generics)*> Measured for $type {
            fn length(&self, path: &Path<'_>, name: &str, violations: &mut Violations, bounds: (usize, usize)) {
                Found($unit, $count(self)).length(path, name, violations, bounds);
            }

            fn non_empty(&self, path: &Path<'_>, name: &str, violations: &mut Violations) {
                Found($unit, $count(self)).non_empty(path, name, violations);
            }
        }
    )+};
}
measured!("bytes", Self::len: [] bytes::Bytes);
measured!("items", Self::len:
    [T] [T],
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

impl<T, const N: usize> Measured for [T; N] {
    fn length(&self, path: &Path<'_>, name: &str, violations: &mut Violations, bounds: (usize, usize)) {
        self.as_slice().length(path, name, violations, bounds);
    }

    fn non_empty(&self, path: &Path<'_>, name: &str, violations: &mut Violations) {
        self.as_slice().non_empty(path, name, violations);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_lengths_are_measured_in_characters() {
        let texts = (0..6).flat_map(|count| ["a", "é", "€", "😀"].map(|one| (one.repeat(count), count)));
        for (text, count) in texts {
            for (min, max) in (0..7).flat_map(|min| (min..7).map(move |max| (min, max))) {
                let mut found = Violations::default();
                text.length(&Path::ROOT, "text", &mut found, (min, max));
                assert_eq!(found.is_empty(), (min..=max).contains(&count), "{text:?} {min}..={max}");
            }
        }
    }
}
