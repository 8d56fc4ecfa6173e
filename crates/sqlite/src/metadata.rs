//! Stores metadata as a JSON list of pairs, so that names keep their case.

use jobqueue_storage::Metadata;

pub(super) fn to_text(metadata: &Metadata) -> String {
    serde_json::Value::from_iter(metadata.iter().map(|(name, value)| serde_json::json!([name, value])))
        .to_string()
}

pub(super) fn from_text(text: &str) -> rusqlite::Result<Metadata> {
    let pairs: Vec<(String, String)> = serde_json::from_str(text).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, Box::new(error))
    })?;
    Ok(pairs.into_iter().collect())
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
