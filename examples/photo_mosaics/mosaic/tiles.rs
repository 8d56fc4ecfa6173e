//! The tiles: their sources and their storage format.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use image::{GenericImageView, Rgb, RgbImage};

use super::color::{Signature, mean, signature};
use super::picture::{check_tile_size, decode_picture, decode_rendered, encode_png};
use super::{MosaicError, builtin, cut};

/// The number of pictures in a directory from which each becomes one tile; fewer are cut up.
const ENOUGH_PICTURES: usize = 64;

/// One small square picture.
pub(crate) struct Tile {
    pub(super) mean: Rgb<u8>,
    pub(super) signature: Signature,
    pub(super) pixels: RgbImage,
}

/// Small square pictures of one size, at least one, findable by mean colour.
pub(crate) struct TileLibrary {
    tile_size: u32,
    /// Without duplicates, sorted by green, then by the rest: the search walks along the greens.
    pub(super) tiles: Vec<Tile>,
}

impl Tile {
    /// Returns the mean colour.
    pub(crate) fn mean(&self) -> Rgb<u8> {
        self.mean
    }

    /// Returns the pixels, `tile_size` on each side.
    pub(crate) fn pixels(&self) -> &RgbImage {
        &self.pixels
    }
}

impl TileLibrary {
    /// Cuts the tiles out of the pictures that come with the example.
    ///
    /// # Errors
    ///
    /// [`MosaicError::TileSize`] when `tile_size` is not 1 to 64.
    pub(crate) fn built_in(tile_size: u32) -> Result<Self, MosaicError> {
        let pictures = builtin::PICTURES.iter().map(|(name, bytes)| decode_picture(name, bytes));
        Self::cut(&pictures.collect::<Result<Vec<_>, _>>()?, tile_size)
    }

    /// Reads every `.png`, `.jpg` and `.jpeg` file of a directory, in the order of their names.
    ///
    /// With 64 pictures or more each is one tile, its middle square; fewer are [cut](Self::cut) into many.
    ///
    /// # Errors
    ///
    /// [`MosaicError::NoTiles`] when there is no such file, [`MosaicError::ReadTiles`] and
    /// [`MosaicError::Decode`] when one cannot be read, [`MosaicError::TileSize`].
    pub(crate) fn from_directory(directory: &Path, tile_size: u32) -> Result<Self, MosaicError> {
        check_tile_size(tile_size)?;
        let paths = picture_files(directory)?;
        let whole = paths.len() >= ENOUGH_PICTURES;
        let read = |path: &PathBuf| {
            let bytes =
                fs::read(path).map_err(|source| MosaicError::ReadTiles { path: path.clone(), source })?;
            let picture = decode_picture(&path.display().to_string(), &bytes)?;
            // Scaled while reading: a thousand photographs do not fit into memory.
            Ok(if whole { cut::middle(&picture, tile_size) } else { picture })
        };
        let pictures = paths.iter().map(read).collect::<Result<Vec<_>, MosaicError>>()?;
        let squares = if whole { pictures } else { cut::squares(&pictures, tile_size) };
        Self::new(tile_size, squares).ok_or_else(|| MosaicError::NoTiles(directory.to_owned()))
    }

    /// Cuts squares of several scales out of the pictures and keeps some of every colour.
    ///
    /// # Errors
    ///
    /// [`MosaicError::TileSize`], or [`MosaicError::EmptyPicture`] when there is no picture with pixels.
    pub(crate) fn cut(pictures: &[RgbImage], tile_size: u32) -> Result<Self, MosaicError> {
        check_tile_size(tile_size)?;
        if pictures.iter().any(|picture| picture.is_empty()) {
            return Err(MosaicError::EmptyPicture);
        }
        Self::new(tile_size, cut::squares(pictures, tile_size)).ok_or(MosaicError::EmptyPicture)
    }

    /// Reads what [`to_png`](Self::to_png) wrote; the tile size is the width of the atlas.
    ///
    /// # Errors
    ///
    /// [`MosaicError::Decode`] and [`MosaicError::Atlas`] when the bytes are no atlas.
    pub(crate) fn from_png(bytes: &[u8]) -> Result<Self, MosaicError> {
        let atlas = decode_rendered("the tile atlas", bytes)?;
        let (tile_size, height) = atlas.dimensions();
        let no_atlas = MosaicError::Atlas { width: tile_size, height };
        if check_tile_size(tile_size).is_err() || !height.is_multiple_of(tile_size) {
            return Err(no_atlas);
        }
        let tile = |index| atlas.view(0, index * tile_size, tile_size, tile_size).to_image();
        Self::new(tile_size, (0..height / tile_size).map(tile).collect()).ok_or(no_atlas)
    }

    /// Writes all tiles, one under the other, as one picture; equal libraries give equal bytes.
    ///
    /// # Errors
    ///
    /// [`MosaicError::Encode`].
    pub(crate) fn to_png(&self) -> Result<Vec<u8>, MosaicError> {
        encode_png(&super::stack(self.tiles.iter().map(Tile::pixels))?)
    }

    /// Returns the side of every tile, in pixels.
    pub(crate) fn tile_size(&self) -> u32 {
        self.tile_size
    }

    /// Returns the number of tiles, at least one.
    pub(crate) fn len(&self) -> usize {
        self.tiles.len()
    }

    /// Sorts the tiles and drops duplicates; `None` when there are none.
    pub(super) fn new(tile_size: u32, squares: Vec<RgbImage>) -> Option<Self> {
        let mut tiles = squares
            .into_iter()
            .map(|pixels| Tile { mean: mean(&pixels), signature: signature(&pixels), pixels })
            .collect::<Vec<_>>();
        let key = |tile: &Tile| (tile.mean[1], tile.mean[0], tile.mean[2]);
        tiles.sort_by(|a, b| (key(a), a.pixels.as_raw()).cmp(&(key(b), b.pixels.as_raw())));
        tiles.dedup_by(|a, b| a.pixels == b.pixels);
        (!tiles.is_empty()).then_some(Self { tile_size, tiles })
    }
}

impl fmt::Debug for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tile").field("mean", &self.mean.0).finish_non_exhaustive()
    }
}

impl fmt::Debug for TileLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TileLibrary")
            .field("tile_size", &self.tile_size)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

fn picture_files(directory: &Path) -> Result<Vec<PathBuf>, MosaicError> {
    let unreadable = |source| MosaicError::ReadTiles { path: directory.to_owned(), source };
    let entries = fs::read_dir(directory).map_err(unreadable)?;
    let mut paths =
        entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
    let wanted = |path: &PathBuf| {
        let extension =
            path.extension().and_then(|extension| extension.to_str()).map(str::to_ascii_lowercase);
        path.is_file() && matches!(extension.as_deref(), Some("png" | "jpg" | "jpeg"))
    };
    paths.retain(wanted);
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
#[path = "tiles_tests.rs"]
mod tests;
