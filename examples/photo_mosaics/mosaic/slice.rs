//! Cuts a picture into horizontal slices, between two rows of tiles.

use std::fmt;

use image::{GenericImageView, RgbImage};

use super::MosaicError;
use super::picture::{cell_size, cells, check_not_empty, check_tile_size, decode_rendered, encode_png};

/// The largest number of slices.
pub(crate) const MAX_SLICES: u16 = 256;

/// One horizontal part of a picture, before or after it is rendered.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Slice {
    /// Its place, counted from the top and from zero.
    pub(crate) index: u16,
    /// Its pixels.
    pub(crate) picture: RgbImage,
}

impl Slice {
    /// Decodes the PNG of slice `index`.
    ///
    /// # Errors
    ///
    /// [`MosaicError::Decode`] when the bytes are no picture.
    pub(crate) fn from_png(index: u16, bytes: &[u8]) -> Result<Self, MosaicError> {
        Ok(Self { index, picture: decode_rendered(&format!("slice {index}"), bytes)? })
    }

    /// Encodes the pixels as PNG, without loss; equal slices give equal bytes.
    ///
    /// # Errors
    ///
    /// [`MosaicError::EmptyPicture`] and [`MosaicError::Encode`].
    pub(crate) fn to_png(&self) -> Result<Vec<u8>, MosaicError> {
        encode_png(&self.picture)
    }
}

/// Cuts a picture into `count` slices whose numbers of tile rows differ by at most one.
///
/// # Errors
///
/// [`MosaicError::SliceCount`] when `count` is zero or more than [`max_slices`],
/// [`MosaicError::EmptyPicture`], [`MosaicError::TileSize`].
pub(crate) fn slice(picture: &RgbImage, tile_size: u32, count: u16) -> Result<Vec<Slice>, MosaicError> {
    check_tile_size(tile_size)?;
    check_not_empty(picture)?;
    let (width, height) = picture.dimensions();
    let rows = cells(height, tile_size);
    if !(1..=max_slices(height, tile_size)).contains(&count) {
        return Err(MosaicError::SliceCount { asked: count, rows });
    }
    let edge = |index: u16| (rows * u32::from(index) / u32::from(count) * cell_size(tile_size)).min(height);
    let cut = |index| {
        let (top, bottom) = (edge(index), edge(index + 1));
        Slice { index, picture: picture.view(0, top, width, bottom - top).to_image() }
    };
    Ok((0..count).map(cut).collect())
}

/// Returns into how many slices a picture of this height, in pixels, can be cut: one a row of tiles,
/// and not more than 256.
///
/// A computed number is brought into range with `count.clamp(1, max_slices(…))`.
pub(crate) fn max_slices(height: u32, tile_size: u32) -> u16 {
    u16::try_from(cells(height, tile_size)).unwrap_or(MAX_SLICES).min(MAX_SLICES)
}

impl fmt::Debug for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slice").field("index", &self.index).field("size", &self.picture.dimensions()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::Rgb;

    fn gradient(width: u32, height: u32) -> RgbImage {
        RgbImage::from_fn(width, height, |x, y| Rgb([x as u8, y as u8, (x ^ y) as u8]))
    }

    #[test]
    fn slices_cover_the_picture_and_end_between_rows() {
        let picture = gradient(30, 101);
        for count in 1..=max_slices(101, 16) {
            let slices = slice(&picture, 16, count).unwrap();
            let raw = slices.iter().flat_map(|slice| slice.picture.as_raw().clone()).collect::<Vec<_>>();
            assert_eq!(&raw, picture.as_raw());
            let (_, all_but_last) = slices.split_last().unwrap();
            assert!(all_but_last.iter().all(|slice| slice.picture.height() % cell_size(16) == 0));
            assert!(slices.iter().zip(0..count).all(|(slice, index)| slice.index == index));
        }
    }

    #[test]
    fn png_round_trip() {
        let slice = slice(&gradient(20, 20), 4, 3).unwrap().remove(1);
        let bytes = slice.to_png().unwrap();
        assert_eq!(bytes, slice.to_png().unwrap());
        assert_eq!(Slice::from_png(1, &bytes).unwrap(), slice);
        assert!(Slice::from_png(7, b"").unwrap_err().to_string().contains("slice 7"));
    }

    #[test]
    fn bad_counts_say_what_to_choose() {
        let picture = gradient(20, 20);
        for count in [0, 4, u16::MAX] {
            let error = slice(&picture, 16, count).unwrap_err();
            assert!(error.to_string().contains("choose 1 to 3"), "{error}");
        }
        let error = slice(&gradient(1, 1000), 1, 257).unwrap_err();
        assert!(error.to_string().contains("choose 1 to 256"), "{error}");
        assert_eq!(max_slices(u32::MAX, 1), MAX_SLICES);
    }

    #[test]
    fn empty_pictures_and_bad_tile_sizes_are_refused() {
        assert!(matches!(slice(&RgbImage::new(0, 0), 16, 1), Err(MosaicError::EmptyPicture)));
        for tile_size in [0, 65, u32::MAX] {
            assert!(matches!(slice(&gradient(9, 9), tile_size, 1), Err(MosaicError::TileSize(_))));
        }
    }
}
