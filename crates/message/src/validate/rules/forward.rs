//! Forwards rules through options, pointers and references.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;

use super::super::{Path, Violations};
use super::number::Limits;
use super::{Measure, Measured, Provides, Ranged, Text};

impl<T: Ranged> Ranged for Option<T> {
    type Number = T::Number;
    fn range(&self, path: &Path<'_>, name: &str, violations: &mut Violations, limits: Limits<T::Number>) {
        if let Some(value) = self {
            value.range(path, name, violations, limits);
        }
    }
}

impl<T: Measured> Measured for Option<T> {
    fn measure(&self) -> Option<Measure<'_>> {
        self.as_ref().and_then(T::measure)
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
            fn range(&self, path: &Path<'_>, name: &str, violations: &mut Violations, limits: Limits<T::Number>) {
                (**self).range(path, name, violations, limits);
            }
        }

        impl<T: Measured + ?Sized> Measured for $pointer {
            fn measure(&self) -> Option<Measure<'_>> {
                (**self).measure()
            }
        }

        impl<T: Text + ?Sized> Text for $pointer {
            fn text(&self) -> Option<&str> {
                (**self).text()
            }
        }

        impl<T: ?Sized> Provides<T> for $pointer {
            fn provide(&self) -> Option<&T> {
                Some(&**self)
            }
        }

        impl<T: ?Sized> Provides<T> for Option<$pointer> {
            fn provide(&self) -> Option<&T> {
                self.as_deref()
            }
        }
    )+};
}
pointers!(&T, Box<T>, Rc<T>, Arc<T>);

impl<B: Measured + ToOwned + ?Sized> Measured for Cow<'_, B> {
    fn measure(&self) -> Option<Measure<'_>> {
        (**self).measure()
    }
}

impl<B: Text + ToOwned + ?Sized> Text for Cow<'_, B> {
    fn text(&self) -> Option<&str> {
        (**self).text()
    }
}

impl<B: ToOwned + ?Sized> Provides<B> for Cow<'_, B> {
    fn provide(&self) -> Option<&B> {
        Some(&**self)
    }
}
