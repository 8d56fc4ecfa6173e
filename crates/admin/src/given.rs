//! Optional arguments for the programs that use this crate.

/// Calls a setter only if a value was given.
pub trait Given: Sized {
    /// Returns `set(self, value)`, or `self` if there is no value.
    fn given<V>(self, value: Option<V>, set: impl FnOnce(Self, V) -> Self) -> Self {
        match value {
            Some(value) => set(self, value),
            None => self,
        }
    }
}

impl<T> Given for T {}
