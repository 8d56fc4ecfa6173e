//! Sizes, decoding and encoding.

use std::io::Cursor;

use image::codecs::png::{CompressionType, FilterType, PngEncoder};
use image::{DynamicImage, ImageDecoder, ImageError, ImageReader, Limits, RgbImage};

use super::MosaicError;

/// The largest tile, in pixels.
pub(crate) const MAX_TILE_SIZE: u32 = 64;

/// The largest side of a submitted picture, in pixels: its mosaic is at most three times as large.
pub(super) const MAX_SIDE: u32 = 4096;

/// The number of bytes that decoding one picture may allocate.
const MAX_ALLOC: u64 = 512 * 1024 * 1024;

/// Returns the side, in source pixels, of the cell that becomes one tile of `tile_size` pixels.
///
/// Half the tile: the mosaic has twice the sides of the picture, so that the tiles can be seen and
/// the subject still recognised.
pub(crate) fn cell_size(tile_size: u32) -> u32 {
    (tile_size / 2).max(1)
}

/// Decodes a PNG or JPEG that a user gave; transparency is dropped and the camera's rotation applied.
///
/// `name` says in errors which picture it was.
///
/// # Errors
///
/// [`MosaicError::Decode`] when the bytes are no picture, or one larger than 4096 pixels a side.
pub(crate) fn decode_picture(name: &str, bytes: &[u8]) -> Result<RgbImage, MosaicError> {
    decode(bytes, Some(MAX_SIDE)).map_err(|source| MosaicError::Decode { name: name.to_owned(), source })
}

/// Decodes what [`encode_png`] wrote, which may be larger than a submitted picture.
///
/// # Errors
///
/// [`MosaicError::Decode`] when the bytes are no picture, or need more than 512 MiB.
pub(crate) fn decode_rendered(name: &str, bytes: &[u8]) -> Result<RgbImage, MosaicError> {
    decode(bytes, None).map_err(|source| MosaicError::Decode { name: name.to_owned(), source })
}

/// Encodes a picture without loss; equal pictures give equal bytes.
///
/// # Errors
///
/// [`MosaicError::EmptyPicture`] when it has no pixels, [`MosaicError::Encode`] when the encoder fails.
pub(crate) fn encode_png(picture: &RgbImage) -> Result<Vec<u8>, MosaicError> {
    check_not_empty(picture)?;
    let mut bytes = Vec::new();
    let encoder = PngEncoder::new_with_quality(&mut bytes, CompressionType::Fast, FilterType::Adaptive);
    picture.write_with_encoder(encoder).map_err(MosaicError::Encode)?;
    Ok(bytes)
}

/// Fails when `tile_size` is not one that the library, the slicer and the renderer take.
pub(super) fn check_tile_size(tile_size: u32) -> Result<(), MosaicError> {
    if (1..=MAX_TILE_SIZE).contains(&tile_size) { Ok(()) } else { Err(MosaicError::TileSize(tile_size)) }
}

/// Fails when the picture has no pixels.
pub(super) fn check_not_empty(picture: &RgbImage) -> Result<(), MosaicError> {
    if picture.is_empty() { Err(MosaicError::EmptyPicture) } else { Ok(()) }
}

/// Returns the number of cells in a column of cells, or in a row; the last may be narrower.
pub(super) fn cells(pixels: u32, tile_size: u32) -> u32 {
    pixels.div_ceil(cell_size(tile_size))
}

fn decode(bytes: &[u8], max_side: Option<u32>) -> Result<RgbImage, ImageError> {
    let mut limits = Limits::default();
    limits.max_image_width = max_side;
    limits.max_image_height = max_side;
    limits.max_alloc = Some(MAX_ALLOC);
    let mut reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format()?;
    reader.limits(limits);
    let mut decoder = reader.into_decoder()?;
    let orientation = decoder.orientation()?;
    let mut picture = DynamicImage::from_decoder(decoder)?;
    picture.apply_orientation(orientation);
    Ok(picture.into_rgb8())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn png_round_trip_keeps_every_pixel() {
        let picture = RgbImage::from_fn(7, 5, |x, y| image::Rgb([x as u8 * 9, y as u8 * 7, 3]));
        let bytes = encode_png(&picture).unwrap();
        assert_eq!(bytes, encode_png(&picture).unwrap());
        assert_eq!(decode_picture("p", &bytes).unwrap(), picture);
        assert_eq!(decode_rendered("p", &bytes).unwrap(), picture);
    }

    #[test]
    fn file_that_is_no_picture_is_named_in_the_error() {
        for bytes in [&b""[..], b"not a picture", b"\x89PNG\r\n\x1a\n"] {
            let error = decode_picture("holiday.jpg", bytes).unwrap_err();
            assert!(error.to_string().contains("holiday.jpg"), "{error}");
        }
    }

    #[test]
    fn only_submitted_pictures_have_a_size_limit() {
        let bytes = encode_png(&RgbImage::new(MAX_SIDE + 1, 1)).unwrap();
        assert!(matches!(decode_picture("wide", &bytes), Err(MosaicError::Decode { .. })));
        assert!(decode_rendered("wide", &bytes).is_ok());
    }

    #[test]
    fn an_empty_picture_is_refused() {
        assert!(matches!(encode_png(&RgbImage::new(0, 3)), Err(MosaicError::EmptyPicture)));
    }

    #[test]
    fn cells_cover_the_picture() {
        assert_eq!((cell_size(1), cell_size(16)), (1, 8));
        assert_eq!((cells(16, 16), cells(17, 16)), (2, 3));
    }
}
