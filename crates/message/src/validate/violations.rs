//! Broken rules, and their collection.

use std::fmt;

use super::Path;

/// A broken rule. Its text is safe to log and to send back: it names the field and the rule, and never quotes
/// the value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    path: String,
    rule: &'static str,
    problem: String,
}

impl Violation {
    /// Returns the path of the field, such as `slices[3].uri`; empty for the whole message.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the rule's name in the attribute: `range`, `length`, `url`, ….
    pub fn rule(&self) -> &'static str {
        self.rule
    }

    /// Describes the broken rule and the allowed values. Never quotes the value.
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

/// The rules that a message breaks. At most 100 are kept, so that a hostile message cannot fill the memory.
///
/// ```
/// use jobqueue::Validate;
///
/// #[derive(Validate)]
/// struct Thumbnail {
///     #[message(non_empty)]
///     photo: String,
///     #[message(range(16..=4096))]
///     width: u32,
/// }
///
/// let violations = Thumbnail { photo: String::new(), width: 8 }.validate().unwrap_err();
/// assert_eq!(violations.len(), 2);
/// let width = violations.iter().find(|violation| violation.path() == "width").unwrap();
/// assert_eq!((width.rule(), width.problem()), ("range", "must be from 16 to 4096"));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Violations {
    kept: Vec<Violation>,
    dropped: usize,
}

const MAX_KEPT: usize = 100;

impl Violations {
    /// Returns an empty collection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a violation of `rule` at `path`.
    pub fn add(&mut self, path: &Path<'_>, rule: &'static str, problem: impl Into<String>) {
        if self.kept.len() == MAX_KEPT {
            self.dropped += 1;
        } else {
            self.keep(path, rule, problem.into());
        }
    }

    // Not generic, so that it is compiled here and not again in the crates of messages.
    fn keep(&mut self, path: &Path<'_>, rule: &'static str, problem: String) {
        self.kept.push(Violation { path: path.to_string(), rule, problem });
    }

    /// Returns whether no rule is broken.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Returns the number of broken rules, including dropped ones.
    pub fn len(&self) -> usize {
        self.kept.len() + self.dropped
    }

    /// Returns the violations that were kept, in the order of the fields.
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
