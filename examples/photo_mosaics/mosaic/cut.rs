//! Cuts many small squares out of few pictures.

use std::collections::BTreeMap;

use image::imageops::FilterType;
use image::{DynamicImage, GenericImageView, RgbImage, imageops};

use super::color::mean;

/// The coarsest and the finest cut: how many squares fit on the shorter side of a picture.
const SQUARES_PER_SIDE: [u32; 5] = [1, 2, 4, 8, 12];

/// The number of squares of about one colour that are kept.
const KEPT_PER_COLOR: usize = 20;

/// Cuts squares of several scales out of every picture, overlapping by half. Keeps for each colour the
/// squares with the most contrast.
///
/// Without that, a picture of one colour would fill the library: most of the sky is black.
pub(super) fn squares(pictures: &[RgbImage], tile_size: u32) -> Vec<RgbImage> {
    let mut by_color = BTreeMap::<[u8; 3], Vec<RgbImage>>::new();
    for picture in pictures {
        for square in squares_of(picture, tile_size) {
            by_color.entry(mean(&square).0.map(|channel| channel >> 4)).or_default().push(square);
        }
    }
    by_color.into_values().flat_map(lively).collect()
}

/// Returns the middle square of a picture, scaled to one tile.
pub(super) fn middle(picture: &RgbImage, tile_size: u32) -> RgbImage {
    let side = picture.width().min(picture.height());
    let (x, y) = ((picture.width() - side) / 2, (picture.height() - side) / 2);
    scaled(&imageops::crop_imm(picture, x, y, side, side).to_image(), tile_size, tile_size)
}

fn squares_of(picture: &RgbImage, tile_size: u32) -> Vec<RgbImage> {
    let (width, height) = picture.dimensions();
    let short = width.min(height);
    let step = (tile_size / 2).max(1) as usize;
    let mut squares = Vec::new();
    for per_side in SQUARES_PER_SIDE {
        let side = per_side * tile_size;
        // Enlarging would blur; the whole picture is accepted at any size.
        if per_side > 1 && side > short {
            break;
        }
        // Scaling the picture once is cheaper than scaling a thousand squares.
        let scaled = scaled(picture, (width * side).div_ceil(short), (height * side).div_ceil(short));
        for y in (0..=scaled.height() - tile_size).step_by(step) {
            for x in (0..=scaled.width() - tile_size).step_by(step) {
                squares.push(scaled.view(x, y, tile_size, tile_size).to_image());
            }
        }
    }
    squares
}

/// Scales inside the image crate, which is optimised in debug builds too.
fn scaled(picture: &RgbImage, width: u32, height: u32) -> RgbImage {
    DynamicImage::from(picture.clone()).resize_exact(width, height, FilterType::Triangle).into_rgb8()
}

/// Keeps some of the livelier three quarters, the liveliest first; the others look like plain squares.
fn lively(mut squares: Vec<RgbImage>) -> Vec<RgbImage> {
    squares.sort_by_cached_key(|square| std::cmp::Reverse(contrast(square)));
    squares.truncate((squares.len() * 3).div_ceil(4));
    let step = squares.len().div_ceil(KEPT_PER_COLOR).max(1);
    squares.into_iter().step_by(step).collect()
}

/// Returns the sum over all pixels of how far they are from the mean.
fn contrast(square: &RgbImage) -> u64 {
    let mean = mean(square);
    let differences =
        |pixel: &image::Rgb<u8>| (0..3).map(|c| u64::from(pixel[c].abs_diff(mean[c]))).sum::<u64>();
    square.pixels().map(differences).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::Rgb;

    fn chequered(width: u32, height: u32) -> RgbImage {
        RgbImage::from_fn(width, height, |x, y| {
            Rgb([(x * 5) as u8, (y * 3) as u8, ((x / 4 + y / 4) % 2 * 200) as u8])
        })
    }

    #[test]
    fn squares_have_the_tile_size_and_come_in_one_order() {
        let pictures = [chequered(100, 70), chequered(40, 90)];
        let squares = super::squares(&pictures, 8);
        assert!(squares.len() > 50, "{}", squares.len());
        assert!(squares.iter().all(|square| square.dimensions() == (8, 8)));
        assert_eq!(squares, super::squares(&pictures, 8));
    }

    #[test]
    fn one_colour_does_not_fill_the_library() {
        let kept = squares(&[RgbImage::new(300, 300)], 8).len();
        assert!((1..=KEPT_PER_COLOR).contains(&kept), "{kept}");
    }

    #[test]
    fn of_one_colour_the_squares_with_most_to_see_are_kept() {
        let flat = RgbImage::from_pixel(8, 8, Rgb([100, 100, 100]));
        let striped = RgbImage::from_fn(8, 8, |x, _| Rgb([if x % 2 == 0 { 0 } else { 200 }; 3]));
        assert_eq!(
            lively(vec![flat.clone(), striped.clone(), flat.clone(), flat.clone()]),
            [striped, flat.clone(), flat]
        );
    }

    #[test]
    fn pictures_smaller_than_a_tile_and_very_long_ones_work() {
        for (width, height) in [(1, 1), (3, 2), (1, 400), (400, 1)] {
            let picture = chequered(width, height);
            assert!(!squares(std::slice::from_ref(&picture), 16).is_empty());
            assert_eq!(middle(&picture, 16).dimensions(), (16, 16));
        }
    }
}
