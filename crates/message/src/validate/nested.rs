//! Validates containers of validated values: options, pointers, lists, sets and maps.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet, LinkedList, VecDeque};
use std::fmt::Display;
use std::rc::Rc;
use std::sync::Arc;

use super::{Path, Validate, Violations};

/// An absent value breaks no rule.
impl<T: Validate> Validate for Option<T> {
    fn validate_into(&self, path: &Path<'_>, violations: &mut Violations) {
        if let Some(value) = self {
            value.validate_into(path, violations);
        }
    }
}

macro_rules! pointers {
    ($([$($bound:tt)*] $pointer:ty),+) => {$(
        impl<T: Validate $($bound)*> Validate for $pointer {
            fn validate_into(&self, path: &Path<'_>, violations: &mut Violations) {
                (**self).validate_into(path, violations);
            }
        }
    )+};
}
pointers!([+ ?Sized] &T, [+ ?Sized] Box<T>, [+ ?Sized] Rc<T>, [+ ?Sized] Arc<T>, [] Vec<T>, [+ ToOwned + ?Sized] Cow<'_, T>);

/// Uses no iterator, whose methods would be compiled for each item type in the message's crate.
impl<T: Validate> Validate for [T] {
    fn validate_into(&self, path: &Path<'_>, violations: &mut Violations) {
        let mut index = 0;
        let mut rest = self;
        while let [item, others @ ..] = rest {
            item.validate_into(&path.index(index), violations);
            rest = others;
            index += 1;
        }
    }
}

impl<T: Validate, const N: usize> Validate for [T; N] {
    fn validate_into(&self, path: &Path<'_>, violations: &mut Violations) {
        self.as_slice().validate_into(path, violations);
    }
}

/// Implements validation of lists. Items are numbered in iteration order, which is their order on the wire.
macro_rules! lists {
    ($([$($generics:tt)*] $list:ty),+ $(,)?) => {$(
        impl<T: Validate, $($generics)*> Validate for $list {
            fn validate_into(&self, path: &Path<'_>, violations: &mut Violations) {
                for (index, item) in self.iter().enumerate() {
                    item.validate_into(&path.index(index), violations);
                }
            }
        }
    )+};
}
lists!(
    [] VecDeque<T>,
    [] LinkedList<T>,
    [] BTreeSet<T>,
    [] BinaryHeap<T>,
    [S] HashSet<T, S>,
);

/// Implements validation of maps. Values are validated, and keys only name them in paths.
macro_rules! maps {
    ($([$($generics:tt)*] $map:ty),+ $(,)?) => {$(
        impl<K: Display, V: Validate, $($generics)*> Validate for $map {
            fn validate_into(&self, path: &Path<'_>, violations: &mut Violations) {
                for (key, value) in self {
                    value.validate_into(&path.key(key), violations);
                }
            }
        }
    )+};
}
maps!([] BTreeMap<K, V>, [S] HashMap<K, V, S>);
