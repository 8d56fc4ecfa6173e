//! The path of a field in a message.

use std::fmt;

/// The path of a field in a message. It lives on the stack, and becomes text (`slices[3].uri`) only if a rule
/// is broken.
///
/// ```
/// use jobqueue::validate::Path;
///
/// let slices = Path::ROOT.field("slices");
/// let third = slices.index(3);
/// assert_eq!(third.field("uri").to_string(), "slices[3].uri");
/// assert_eq!(third.key(&"a b").to_string(), r#"slices[3]["a b"]"#);
/// ```
#[derive(Clone, Copy)]
pub struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Root,
    Field(&'a str),
    Index(usize),
    Key(&'a dyn fmt::Display),
}

impl<'a> Path<'a> {
    /// The path of the message itself.
    pub const ROOT: Path<'static> = Path { parent: None, step: Step::Root };

    /// Returns the path of a field: `.name`.
    pub fn field(&'a self, name: &'a str) -> Path<'a> {
        Path { parent: Some(self), step: Step::Field(name) }
    }

    /// Returns the path of an item of a list: `[index]`.
    pub fn index(&'a self, index: usize) -> Path<'a> {
        Path { parent: Some(self), step: Step::Index(index) }
    }

    /// Returns the path of an entry of a map: `["key"]`. At most 64 characters of the key are shown.
    pub fn key(&'a self, key: &'a dyn fmt::Display) -> Path<'a> {
        Path { parent: Some(self), step: Step::Key(key) }
    }

    /// Returns the path of a field, or this path if `name` is empty because the value is not a named field.
    pub(super) fn to(&'a self, name: &'a str) -> Path<'a> {
        if name.is_empty() { *self } else { self.field(name) }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(parent) = self.parent else { return Ok(()) };
        parent.fmt(f)?;
        match self.step {
            Step::Root => Ok(()),
            Step::Field(name) if parent.parent.is_none() => f.write_str(name),
            Step::Field(name) => write!(f, ".{name}"),
            Step::Index(index) => write!(f, "[{index}]"),
            Step::Key(key) => write!(f, "[{:?}]", key.to_string().chars().take(64).collect::<String>()),
        }
    }
}

impl fmt::Debug for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Path({self})")
    }
}
