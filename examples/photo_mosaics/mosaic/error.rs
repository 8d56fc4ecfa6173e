//! The errors of mosaics; each says what to do.

use std::path::PathBuf;

use super::picture::{MAX_SIDE, MAX_TILE_SIZE};
use super::slice::MAX_SLICES;

/// The reason why a picture, a tile library or a set of slices cannot be used.
///
/// A retry with the same input cannot fix any of these.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum MosaicError {
    /// The tile size is zero or too large.
    #[error("tile size {0} is out of range; choose 1 to {MAX_TILE_SIZE} pixels")]
    TileSize(u32),

    /// The bytes are not a readable picture.
    #[error(
        "cannot read {name}; it must be an undamaged PNG or JPEG of at most {MAX_SIDE} x {MAX_SIDE} pixels"
    )]
    Decode {
        /// The name of the picture.
        name: String,
        /// The error of the decoder.
        source: image::ImageError,
    },

    /// The picture has no pixels.
    #[error("the picture is empty; give one of at least 1 x 1 pixel")]
    EmptyPicture,

    /// The PNG encoder failed.
    #[error("cannot encode the picture as PNG")]
    Encode(#[source] image::ImageError),

    /// A directory of tiles, or a file in it, cannot be read.
    #[error("cannot read {}; check that it exists and that you may read it", path.display())]
    ReadTiles {
        /// The directory or file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },

    /// The directory contains no picture.
    #[error("no usable picture in {}; put .png, .jpg or .jpeg files there, or leave the directory out to use the built-in tiles", .0.display())]
    NoTiles(PathBuf),

    /// The atlas is not one column of square tiles.
    #[error(
        "a picture of {width} x {height} pixels is no tile atlas; write the atlas again with TileLibrary::to_png"
    )]
    Atlas {
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
    },

    /// A picture cannot be cut into this number of slices.
    #[error("cannot cut {rows} rows of tiles into {asked} slices; choose 1 to {}", (*rows).min(MAX_SLICES.into()))]
    SliceCount {
        /// The number of slices asked for.
        asked: u16,
        /// The rows of tiles that the picture has.
        rows: u32,
    },

    /// The requested rows do not exist in the slice.
    #[error("rows {start}..{end} do not exist; the slice has rows 0..{rows} and a range must not be empty")]
    Rows {
        /// The first row asked for.
        start: u32,
        /// The row after the last one asked for.
        end: u32,
        /// The number of rows of the slice.
        rows: u32,
    },

    /// Slices are missing.
    #[error("slices {missing:?} of {count} are missing; render them and join again")]
    MissingSlices {
        /// The indices of the missing slices, ascending.
        missing: Vec<u16>,
        /// The number of slices of the picture.
        count: u16,
    },

    /// A slice does not belong to the picture.
    #[error("there is no slice {index} in a picture of {count} slices; join only slices of one picture")]
    UnknownSlice {
        /// The index of the wrong slice.
        index: u16,
        /// The number of slices of the picture.
        count: u16,
    },

    /// Two slices have one index and different pixels.
    #[error("slice {0} came twice with different pixels; render all slices with one tile library")]
    ConflictingSlice(u16),

    /// The parts to be stacked differ in width.
    #[error(
        "cannot stack a picture {found} pixels wide under one of {expected}; render all parts with one tile size"
    )]
    Width {
        /// The width of the first part.
        expected: u32,
        /// The width that differs.
        found: u32,
    },
}
