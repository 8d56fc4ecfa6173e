//! Rules see through options, pointers and references.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;

use super::{Measured, Ranged, Text};

impl<T: Ranged> Ranged for Option<T> {
    type Number = T::Number;
    fn number(&self) -> Option<T::Number> {
        self.as_ref().and_then(T::number)
    }
}

impl<T: Measured> Measured for Option<T> {
    const UNIT: &'static str = T::UNIT;
    fn measure(&self) -> Option<usize> {
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
            fn number(&self) -> Option<T::Number> {
                (**self).number()
            }
        }

        impl<T: Measured + ?Sized> Measured for $pointer {
            const UNIT: &'static str = T::UNIT;
            fn measure(&self) -> Option<usize> {
                (**self).measure()
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
    const UNIT: &'static str = B::UNIT;
    fn measure(&self) -> Option<usize> {
        (**self).measure()
    }
}

impl<B: Text + ToOwned + ?Sized> Text for Cow<'_, B> {
    fn text(&self) -> Option<&str> {
        (**self).text()
    }
}
