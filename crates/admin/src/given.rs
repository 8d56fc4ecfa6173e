//! Optional arguments of the programs over this crate.

/// Calls a setter only for a value that was given.
pub trait Given: Sized {
    /// Returns `set(self, value)`, or `self` without a value.
    fn given<V>(self, value: Option<V>, set: impl FnOnce(Self, V) -> Self) -> Self {
        match value {
            Some(value) => set(self, value),
            None => self,
        }
    }
}

impl<T> Given for T {}
