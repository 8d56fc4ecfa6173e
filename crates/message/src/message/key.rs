//! The key of a message, as text. It names the subject of the message.

use std::any::Any;
use std::borrow::Cow;
use std::fmt::Display;
use std::sync::Arc;

/// A type that can be the `key` of a message.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the `key` of a message",
    label = "a key is written with `Display`, which this type does not implement",
    note = "put `key` on a field that is always present and implements `Display`, such as a `String`, an integer or a `Uuid`"
)]
pub trait Key: Any {
    /// Returns the key as text; strings are borrowed.
    fn text(&self) -> Cow<'_, str>;
}

impl<T: Display + Any> Key for T {
    fn text(&self) -> Cow<'_, str> {
        match borrowed(self) {
            Some(text) => Cow::Borrowed(text),
            None => Cow::Owned(self.to_string()),
        }
    }
}

fn borrowed(value: &dyn Any) -> Option<&str> {
    let text = value.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| value.downcast_ref::<&'static str>().copied())
        .or_else(|| value.downcast_ref::<Cow<'static, str>>().map(|text| &**text))
        .or_else(|| value.downcast_ref::<Box<str>>().map(|text| &**text))
        .or_else(|| value.downcast_ref::<Arc<str>>().map(|text| &**text))
}

/// Returns the key of a message.
pub fn key<T: Key>(value: &T) -> Option<Cow<'_, str>> {
    Some(value.text())
}
