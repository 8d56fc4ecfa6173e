//! The blobs of a request: `<request>/image`, `tiles`, `slice-3`, `strip-3-0007`, `rendered-3`, `mosaic`.

use jobqueue::Storage;
use jobqueue_examples::{BlobFolder, FolderError};
use uuid::Uuid;

pub(crate) const IMAGE: &str = "image";
pub(crate) const TILES: &str = "tiles";
pub(crate) const MOSAIC: &str = "mosaic";
pub(crate) const RENDERED: &str = "rendered-";

pub(crate) async fn of(storage: &Storage, request: Uuid) -> Result<BlobFolder, FolderError> {
    BlobFolder::open(storage, "photo-mosaics", request.to_string()).await
}

pub(crate) fn slice(index: u16) -> String {
    format!("slice-{index}")
}

pub(crate) fn rendered(index: u16) -> String {
    format!("{RENDERED}{index}")
}

/// Returns the name of one rendered row of tiles, while the slice is being rendered.
pub(crate) fn strip(index: u16, row: u32) -> String {
    format!("strip-{index}-{row:04}")
}
