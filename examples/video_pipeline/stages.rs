//! The stages: real work on real pictures, without a queue.

use std::io::{Cursor, Write};

use flate2::Compression;
use flate2::write::ZlibEncoder;
use image::{ImageError, ImageFormat, Rgb, RgbImage};

const SIDE: u32 = 128;

/// Draws a frame with a disc that moves over a gradient, as PNG.
pub(crate) fn draw(seed: u32, frame: u32) -> Result<Vec<u8>, ImageError> {
    let angle = f64::from(frame) / 12.0 + f64::from(seed);
    let (x, y) = (64.0 + 40.0 * angle.cos(), 64.0 + 40.0 * angle.sin());
    let picture = RgbImage::from_fn(SIDE, SIDE, |px, py| {
        let distance = (f64::from(px) - x).hypot(f64::from(py) - y);
        if distance < 16.0 { Rgb([250, 200, 40]) } else { Rgb([(px * 2) as u8, (py * 2) as u8, 90]) }
    });
    let mut png = Cursor::new(Vec::new());
    picture.write_to(&mut png, ImageFormat::Png)?;
    Ok(png.into_inner())
}

/// Checks that a frame is a readable picture.
pub(crate) fn scan(png: &[u8]) -> Result<(), ImageError> {
    decode(png).map(drop)
}

/// Encodes a frame as its difference from the one before: mostly zeros.
pub(crate) fn encode(before: Option<&[u8]>, png: &[u8]) -> Result<Vec<u8>, ImageError> {
    let frame = decode(png)?.into_raw();
    let Some(before) = before else { return Ok(frame) };
    let before = decode(before)?.into_raw();
    Ok(frame.iter().zip(before).map(|(now, then)| now.wrapping_sub(then)).collect())
}

/// Compresses all frames into one zlib stream.
pub(crate) fn compress(encoded: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = ZlibEncoder::new(Vec::new(), Compression::default());
    stream.write_all(encoded)?;
    stream.finish()
}

fn decode(png: &[u8]) -> Result<RgbImage, ImageError> {
    Ok(image::load_from_memory_with_format(png, ImageFormat::Png)?.into_rgb8())
}
