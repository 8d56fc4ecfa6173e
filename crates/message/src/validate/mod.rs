//! Validation by rules for fields. All violations are reported at once, each with the path of its field.

mod nested;
mod path;
pub(crate) mod rules;
mod violations;

pub use path::Path;
pub use violations::{Violation, Violations};

/// A type that can check its values against rules.
///
/// Deriving [`QueueMessage`](crate::message::QueueMessage) also derives this trait. `#[derive(Validate)]`
/// derives it alone, for types that are parts of messages. The containers of the standard library are
/// validated item by item.
///
/// ```
/// use jobqueue::Validate;
///
/// #[derive(Validate)]
/// struct Slice {
///     #[message(non_empty)]
///     uri: String,
/// }
///
/// #[derive(Validate)]
/// struct Mosaic {
///     #[message(range(1..=64))]
///     tile_size: u32,
///     #[message(nested)]
///     slices: Vec<Slice>,
/// }
///
/// let mosaic = Mosaic { tile_size: 65, slices: vec![Slice { uri: String::new() }] };
/// let violations = mosaic.validate().unwrap_err();
/// assert_eq!(violations.to_string(), "tile_size: must be from 1 to 64; slices[0].uri: must not be empty");
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no validation rules",
    label = "this type does not implement `Validate`",
    note = "add `#[derive(jobqueue::Validate)]` to `{Self}`, or remove `nested` from the field"
)]
pub trait Validate {
    /// Adds every violation in `self` to `violations`, with paths of fields below `path`.
    fn validate_into(&self, path: &Path<'_>, violations: &mut Violations);

    /// Checks the whole value.
    ///
    /// # Errors
    /// All [`Violations`], not just the first.
    fn validate(&self) -> Result<(), Violations> {
        let mut violations = Violations::new();
        self.validate_into(&Path::ROOT, &mut violations);
        if violations.is_empty() { Ok(()) } else { Err(violations) }
    }
}
