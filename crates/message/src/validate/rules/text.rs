//! The types to which the rules `url`, `email` and `pattern = "…"` apply.

/// A type of texts, or of values that may contain text.
#[diagnostic::on_unimplemented(
    message = "`url`, `email` and `pattern` do not apply to `{Self}`",
    label = "this is not a string, nor an `Option` or pointer to one",
    note = "use `with = path` for a rule of your own, or `nested` and `#[derive(Validate)]` for the items of a collection"
)]
pub trait Text {
    /// Returns the text, unless it is absent.
    fn text(&self) -> Option<&str>;
}

impl Text for str {
    fn text(&self) -> Option<&str> {
        Some(self)
    }
}

impl Text for String {
    fn text(&self) -> Option<&str> {
        Some(self)
    }
}
