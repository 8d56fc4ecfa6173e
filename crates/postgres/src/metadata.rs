//! Stores metadata as a JSON list of pairs, so that names keep their case.

use crate::database::Call;
use jobqueue_storage::{Metadata, StoreError, StoreErrorKind};

pub(crate) fn to_text(metadata: &Metadata) -> String {
    serde_json::Value::from_iter(metadata.iter().map(|(name, value)| serde_json::json!([name, value])))
        .to_string()
}

/// # Errors
/// `Corrupt` for a text that this adapter does not write.
pub(crate) fn from_text(call: Call<'_>, text: &str) -> Result<Metadata, StoreError> {
    let pairs: Vec<(String, String)> =
        serde_json::from_str(text).map_err(|_| call.refuse(StoreErrorKind::Corrupt))?;
    Ok(pairs.into_iter().collect())
}
