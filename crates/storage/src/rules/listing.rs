//! The range of names on a page of a listing, for storages that search an index.

/// The range of names of a page of a listing, in the order of their bytes: `from` is included, `end`
/// excluded. Neither contains U+0000, which not every database accepts.
#[derive(Debug, PartialEq, Eq)]
pub struct NameRange {
    /// The first possible name.
    pub from: String,
    /// The end of the range, which is not a valid name.
    pub end: String,
}

impl NameRange {
    /// Returns the range of the blob names that begin with `prefix` and come after `marker`, the last name of
    /// the page before.
    ///
    /// Blob names are ASCII without control characters. So U+007F sorts after every character that may follow
    /// the prefix, and U+0001 before every character that may follow the marker.
    pub fn of_page(prefix: &str, marker: Option<&str>) -> Self {
        if let Some((before, _)) = prefix.split_once('\0') {
            return Self { from: before.to_owned(), end: before.to_owned() };
        }
        let behind = |marker: &str| format!("{}\u{1}", marker.split('\0').next().unwrap_or_default());
        let from = marker.map(behind).filter(|behind| behind.as_str() > prefix);
        Self { from: from.unwrap_or_else(|| prefix.to_owned()), end: format!("{prefix}\u{7f}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_has_the_names_with_the_prefix_behind_the_marker() {
        let names = ["a", "a-", "a.b", "a/b", "aZ", "a_", "az", "azz", "b"];
        for prefix in ["", "a", "a/", "az", "b", "c", "\u{1}", "a\u{7f}", "é", "a\0", "\0"] {
            for marker in
                [None, Some(""), Some("a"), Some("a/b"), Some("az"), Some("b"), Some("a\0b"), Some("é")]
            {
                let NameRange { from, end } = NameRange::of_page(prefix, marker);
                let found: Vec<_> =
                    names.iter().filter(|name| **name >= from.as_str() && **name < end.as_str()).collect();
                let wanted =
                    |name: &&&str| name.starts_with(prefix) && marker.is_none_or(|marker| **name > marker);
                let wanted: Vec<_> = names.iter().filter(wanted).collect();
                assert_eq!(found, wanted, "{prefix:?} {marker:?}");
            }
        }
    }
}
