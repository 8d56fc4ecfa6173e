//! Advice of a storage on its settings.

/// A setting, in the storage itself, that does not suit the framework.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Advice {
    /// True if the setting breaks a promise of the framework; false if jobs are safe, but another setting
    /// would be better.
    pub is_warning: bool,
    /// The consequence, and the change to make.
    pub text: String,
}

impl Advice {
    /// Returns advice on a setting that breaks a promise of the framework.
    pub fn warning(text: impl Into<String>) -> Self {
        Self { is_warning: true, text: text.into() }
    }

    /// Returns advice on a setting that works, but could be better.
    pub fn note(text: impl Into<String>) -> Self {
        Self { is_warning: false, text: text.into() }
    }
}
