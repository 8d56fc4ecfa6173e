//! Forwards rules through options, pointers and references.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;

use super::super::{Path, Violations};
use super::number::Limits;
use super::{Measured, Ranged, Text};

impl<T: Ranged> Ranged for Option<T> {
    type Number = T::Number;
    fn range(&self, path: &Path<'_>, name: &str, violations: &mut Violations, limits: Limits<T::Number>) {
        if let Some(value) = self {
            value.range(path, name, violations, limits);
        }
    }
}

impl<T: Measured> Measured for Option<T> {
    fn length(&self, path: &Path<'_>, name: &str, violations: &mut Violations, bounds: (usize, usize)) {
        if let Some(value) = self {
            value.length(path, name, violations, bounds);
        }
    }

    fn non_empty(&self, path: &Path<'_>, name: &str, violations: &mut Violations) {
        if let Some(value) = self {
            value.non_empty(path, name, violations);
        }
    }
}

impl<T: Text> Text for Option<T> {
    fn text(&self) -> Option<&str> {
        self.as_ref().and_then(T::text)
    }
}

macro_rules! pointers {
    ($($pointer:ty),+) => {$(
        impl<T: Ranged + ?Sized> Ranged for $pointer {
            type Number = T::Number;
            fn range(
                &self,
                path: &Path<'_>,
                name: &str,
                violations: &mut Violations,
                limits: Limits<T::Number>,
            ) {
                (**self).range(path, name, violations, limits);
            }
        }

        impl<T: Measured + ?Sized> Measured for $pointer {
            fn length(&self, path: &Path<'_>, name: &str, violations: &mut Violations, bounds: (usize, usize)) {
                (**self).length(path, name, violations, bounds);
            }

            fn non_empty(&self, path: &Path<'_>, name: &str, violations: &mut Violations) {
                (**self).non_empty(path, name, violations);
            }
        }

        impl<T: Text + ?Sized> Text for $pointer {
            fn text(&self) -> Option<&str> {
                (**self).text()
            }
        }
    )+};
}
pointers!(&T, Box<T>, Rc<T>, Arc<T>);

impl<B: Measured + ToOwned + ?Sized> Measured for Cow<'_, B> {
    fn length(&self, path: &Path<'_>, name: &str, violations: &mut Violations, bounds: (usize, usize)) {
        (**self).length(path, name, violations, bounds);
    }

    fn non_empty(&self, path: &Path<'_>, name: &str, violations: &mut Violations) {
        (**self).non_empty(path, name, violations);
    }
}

impl<B: Text + ToOwned + ?Sized> Text for Cow<'_, B> {
    fn text(&self) -> Option<&str> {
        (**self).text()
    }
}
