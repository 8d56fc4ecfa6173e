//! Reads metadata from a column, with errors that name a column.

use jobqueue_storage::Metadata;
use jobqueue_storage::rules::metadata_text;
pub(super) use jobqueue_storage::rules::metadata_text::to_text;

pub(super) fn from_text(text: &str) -> rusqlite::Result<Metadata> {
    metadata_text::from_text(text).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, Box::new(error))
    })
}
