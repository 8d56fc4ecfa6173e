//! Validation: rules over fields, all violations at once, each with the path of its field.

use std::fmt;

/// A type that can tell what is wrong with a value.
///
/// Derived together with [`QueueMessage`](crate::QueueMessage), or alone with `#[derive(Validate)]` for types
/// that are part of messages.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no validation rules",
    label = "this type does not implement `Validate`",
    note = "add `#[derive(jobqueue::Validate)]` to `{Self}`, or remove `nested` from the field"
)]
pub trait Validate {
    /// Adds every violation in `self` to `violations`, with field paths below `path`.
    fn validate_into(&self, path: &Path<'_>, violations: &mut Violations);

    /// Checks the whole value.
    ///
    /// # Errors
    /// All [`Violations`], not only the first.
    fn validate(&self) -> Result<(), Violations> {
        let mut violations = Violations::new();
        self.validate_into(&Path::ROOT, &mut violations);
        if violations.is_empty() { Ok(()) } else { Err(violations) }
    }
}

/// Where in a message a field is. Lives on the stack; becomes text (`slices[3].uri`) only when a rule is broken.
#[derive(Debug, Clone, Copy)]
pub struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    step: Step<'a>,
}

#[derive(Debug, Clone, Copy)]
enum Step<'a> {
    Root,
    Field(&'a str),
    Index(usize),
    Key(&'a str),
}

impl<'a> Path<'a> {
    /// The message itself.
    pub const ROOT: Path<'static> = Path { parent: None, step: Step::Root };

    /// The path of a field: `.name`.
    pub fn field(&'a self, name: &'a str) -> Path<'a> {
        Path { parent: Some(self), step: Step::Field(name) }
    }

    /// The path of an item of a list: `[index]`.
    pub fn index(&'a self, index: usize) -> Path<'a> {
        Path { parent: Some(self), step: Step::Index(index) }
    }

    /// The path of an entry of a map: `["key"]`.
    pub fn key(&'a self, key: &'a str) -> Path<'a> {
        Path { parent: Some(self), step: Step::Key(key) }
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
            Step::Key(key) => write!(f, "[{:?}]", key.chars().take(64).collect::<String>()),
        }
    }
}

/// One broken rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    path: String,
    rule: &'static str,
    problem: String,
}

impl Violation {
    /// The field, such as `slices[3].uri`; empty for the whole message.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The rule's name as in the attribute: `range`, `length`, `url`, ….
    pub fn rule(&self) -> &'static str {
        self.rule
    }

    /// What is wrong and what is allowed. Never quotes the value.
    pub fn problem(&self) -> &str {
        &self.problem
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let field = if self.path.is_empty() { "message" } else { &self.path };
        write!(f, "{field}: {}", self.problem)
    }
}

/// The rules a message breaks. At most 100 are kept, so that a hostile message cannot fill memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Violations {
    kept: Vec<Violation>,
    dropped: usize,
}

const MAX_KEPT: usize = 100;

impl Violations {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a violation of `rule` at `path`.
    pub fn add(&mut self, path: &Path<'_>, rule: &'static str, problem: impl Into<String>) {
        if self.kept.len() == MAX_KEPT {
            self.dropped += 1;
        } else {
            self.kept.push(Violation { path: path.to_string(), rule, problem: problem.into() });
        }
    }

    /// Whether nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// How many rules are broken, those not kept included.
    pub fn len(&self) -> usize {
        self.kept.len() + self.dropped
    }

    /// The violations that were kept, in the order of the fields.
    pub fn iter(&self) -> impl Iterator<Item = &Violation> {
        self.kept.iter()
    }
}

impl fmt::Display for Violations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, violation) in self.kept.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{violation}")?;
        }
        if self.dropped > 0 {
            write!(f, "; and {} more", self.dropped)?;
        }
        Ok(())
    }
}

impl std::error::Error for Violations {}
