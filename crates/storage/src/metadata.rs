//! Name–value pairs of queues and blobs.

use std::collections::BTreeMap;

/// The metadata of a queue or blob.
///
/// Names are compared without regard to case and keep the case in which they were first written, as in Azure.
/// They must be C# identifiers (a letter or `_`, then letters, digits, `_`), and all names and values
/// together may have at most 8 KiB; [`Metadata::check`] checks this.
///
/// ```
/// use jobqueue::storage::Metadata;
///
/// let metadata = Metadata::new().with("PoisonThreshold", "3").with("paused", "true");
/// assert_eq!(metadata.get("poisonthreshold"), Some("3"));
/// assert!(metadata.check().is_ok());
/// assert!(metadata.with("no-identifier", "").check().is_err());
/// ```
#[derive(Debug, Clone, Default)]
pub struct Metadata {
    // Lower-cased name → (name as written, value).
    entries: BTreeMap<String, (String, String)>,
}

/// The maximum size in bytes of all names and values of metadata together: 8 KiB.
pub const MAX_METADATA_BYTES: usize = 8 * 1024;

impl Metadata {
    /// The entry with the number of failed attempts after which the framework dead-letters a message of the
    /// queue.
    pub const POISON_THRESHOLD: &str = "poisonthreshold";

    /// The entry with the number of deliveries after which the framework dead-letters a message of the queue.
    pub const MAX_DELIVERIES: &str = "maxdeliveries";

    /// Returns metadata without entries.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds or replaces an entry, and returns the metadata for chaining.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.insert(name, value);
        self
    }

    /// Adds or replaces an entry.
    pub fn insert(&mut self, name: impl Into<String>, value: impl Into<String>) {
        let name = name.into();
        self.entries.insert(name.to_ascii_lowercase(), (name, value.into()));
    }

    /// Removes an entry, and returns its value.
    pub fn remove(&mut self, name: &str) -> Option<String> {
        self.entries.remove(&name.to_ascii_lowercase()).map(|(_, value)| value)
    }

    /// Returns the value under `name`, whatever its case.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.entries.get(&name.to_ascii_lowercase()).map(|(_, value)| value.as_str())
    }

    /// Returns all entries as (name, value), ordered by lower-cased name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.entries.values().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Checks names, characters and size by Azure's rules. Blanks around a value pass, although Azure drops
    /// them.
    ///
    /// # Errors
    /// A sentence that names the broken rule.
    pub fn check(&self) -> Result<(), String> {
        for (name, value) in self.iter() {
            let mut chars = name.chars();
            let first = chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
            if !first || !chars.all(|c| c.is_ascii_alphanumeric() || c == '_') {
                return Err(format!(
                    "metadata name {name:?} is not an identifier; use letters, digits and _, not beginning with a digit"
                ));
            }
            if value.chars().any(|c| c.is_control() || !c.is_ascii()) {
                return Err(format!(
                    "the value of metadata {name:?} has characters that an HTTP header cannot carry"
                ));
            }
        }
        let bytes: usize = self.iter().map(|(name, value)| name.len() + value.len()).sum();
        if bytes > MAX_METADATA_BYTES {
            return Err(format!("metadata has {bytes} bytes; {MAX_METADATA_BYTES} are allowed"));
        }
        Ok(())
    }
}

/// Compares names without regard to case, and values exactly.
impl PartialEq for Metadata {
    fn eq(&self, other: &Self) -> bool {
        let (own, others) = (self.entries.iter(), other.entries.iter());
        own.map(|(name, (_, value))| (name, value)).eq(others.map(|(name, (_, value))| (name, value)))
    }
}

impl Eq for Metadata {}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Metadata {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(entries: I) -> Self {
        entries.into_iter().fold(Self::new(), |all, (name, value)| all.with(name, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_any_case_and_kept_as_written() {
        let metadata = Metadata::new().with("PoisonThreshold", "3");
        assert_eq!(metadata.get("poisonthreshold"), Some("3"));
        assert_eq!(metadata.iter().next(), Some(("PoisonThreshold", "3")));
        assert_eq!(metadata, Metadata::new().with("poisonthreshold", "3"));
    }

    #[test]
    fn bad_names_and_sizes_are_refused() {
        assert!(Metadata::new().with("1bad", "").check().is_err());
        assert!(Metadata::new().with("a-b", "").check().is_err());
        assert!(Metadata::new().with("a", "x".repeat(MAX_METADATA_BYTES)).check().is_err());
        assert!(Metadata::new().with("a", "x\r\ny").check().is_err());
        assert!(Metadata::new().with("_a1", "x").check().is_ok());
    }
}
