//! Reads metadata from a column.

use jobqueue_storage::rules::metadata_text;
pub(crate) use jobqueue_storage::rules::metadata_text::to_text;
use jobqueue_storage::{Metadata, StoreError, StoreErrorKind};

use crate::database::Call;

/// Parses the text of a column.
///
/// # Errors
/// `Corrupt` for a text that this adapter does not write.
pub(crate) fn from_text(call: Call<'_>, text: &str) -> Result<Metadata, StoreError> {
    metadata_text::from_text(text).map_err(|error| call.refuse(StoreErrorKind::Corrupt).with_source(error))
}
