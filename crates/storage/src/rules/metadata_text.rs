//! The metadata of a queue or a blob as text, for a column of a table: a JSON list of pairs, which keeps the
//! case of names.

use crate::metadata::Metadata;

/// Returns the text of metadata.
pub fn to_text(metadata: &Metadata) -> String {
    serde_json::Value::from_iter(metadata.iter().map(|(name, value)| serde_json::json!([name, value])))
        .to_string()
}

/// Reads the output of [`to_text`].
///
/// # Errors
/// If the text is not such a list.
pub fn from_text(text: &str) -> serde_json::Result<Metadata> {
    serde_json::from_str::<Vec<(String, String)>>(text).map(|pairs| pairs.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_their_case() {
        let metadata = Metadata::new().with("PoisonThreshold", "3 \"x\"").with("a", "");
        let back = from_text(&to_text(&metadata)).unwrap();
        assert!(back.iter().eq(metadata.iter()));
    }
}
