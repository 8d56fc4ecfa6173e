//! The advice of a storage about a queue's settings.

/// A setting of a queue, in the storage itself, that does not suit the framework.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Advice {
    /// True if the setting contradicts a promise; false if jobs are safe, and another setting would serve them better.
    pub is_warning: bool,
    /// The consequence, and the change to make.
    pub text: String,
}

impl Advice {
    /// Returns the advice to change a setting that contradicts a promise.
    pub fn warning(text: impl Into<String>) -> Self {
        Self { is_warning: true, text: text.into() }
    }

    /// Returns the advice about a setting that another would serve better.
    pub fn note(text: impl Into<String>) -> Self {
        Self { is_warning: false, text: text.into() }
    }
}
