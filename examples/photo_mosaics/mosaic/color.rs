//! Mean colours, and how different they look.

use image::{GenericImageView, Rgb};

/// Returns the mean colour of a picture or of a part of one, rounded; black when it has no pixels.
pub(super) fn mean(pixels: &impl GenericImageView<Pixel = Rgb<u8>>) -> Rgb<u8> {
    let mut sums = [0_u64; 3];
    let mut count = 0_u64;
    for (_, _, Rgb(channels)) in pixels.pixels() {
        for (sum, channel) in sums.iter_mut().zip(channels) {
            *sum += u64::from(channel);
        }
        count += 1;
    }
    let count = count.max(1);
    // A mean of bytes is a byte, so that the fallback is never taken.
    Rgb(sums.map(|sum| u8::try_from((sum + count / 2) / count).unwrap_or(u8::MAX)))
}

/// The number of parts of a side in a [`Signature`].
const PARTS: u32 = 4;

/// The mean colours of the parts of a picture, row by row: what it shows, coarsely.
pub(super) type Signature = [Rgb<u8>; (PARTS * PARTS) as usize];

/// Returns the mean colours of the parts of a picture; where it has fewer pixels than parts, the parts
/// overlap.
pub(super) fn signature(picture: &impl GenericImageView<Pixel = Rgb<u8>>) -> Signature {
    let (width, height) = picture.dimensions();
    let part = |index: u32, side: u32| {
        let start = index * side / PARTS;
        (start, ((index + 1) * side / PARTS).max(start + 1).min(side) - start)
    };
    std::array::from_fn(|index| {
        let index = index as u32;
        let ((x, width), (y, height)) = (part(index % PARTS, width), part(index / PARTS, height));
        mean(&*picture.view(x, y, width, height))
    })
}

/// Returns how different two pictures look, part by part.
pub(super) fn difference(a: &Signature, b: &Signature) -> u32 {
    a.iter().zip(b).map(|(a, b)| distance(*a, *b)).sum()
}

/// Hashes the pixels of a picture (FNV-1a, upper half: the lower bits are its weak ones).
pub(super) fn fingerprint(picture: &impl GenericImageView<Pixel = Rgb<u8>>) -> u32 {
    let bytes = picture.pixels().flat_map(|(_, _, Rgb(channels))| channels);
    let hash = bytes
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    (hash >> 32) as u32
}

/// Returns a number that grows with the visible difference of two colours.
///
/// It uses the "redmean" weighting: squared differences, of which green counts most; the weights of red and
/// blue depend on how red the colours are. It uses whole numbers only, so that every machine picks the same
/// tile. OKLab would be more exact but needs roots.
pub(super) fn distance(Rgb(a): Rgb<u8>, Rgb(b): Rgb<u8>) -> u32 {
    let red_mean = (u32::from(a[0]) + u32::from(b[0])) / 2;
    let [red, green, blue] = [0, 1, 2].map(|c| u32::from(a[c].abs_diff(b[c])).pow(2));
    (((512 + red_mean) * red) >> 8) + 4 * green + (((767 - red_mean) * blue) >> 8)
}

/// Returns the least [`distance`] of two colours whose greens differ by `difference`.
pub(super) fn least_distance(difference: u8) -> u32 {
    4 * u32::from(difference).pow(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::RgbImage;

    #[test]
    fn mean_is_rounded() {
        let picture = RgbImage::from_fn(2, 1, |x, _| Rgb([x as u8, 10 * x as u8, 255]));
        assert_eq!(mean(&picture), Rgb([1, 5, 255]));
        assert_eq!(mean(&RgbImage::new(0, 0)), Rgb([0, 0, 0]));
    }

    #[test]
    fn distance_is_symmetric_and_zero_only_for_equals() {
        let colors =
            [[0, 0, 0], [255, 255, 255], [255, 0, 0], [0, 255, 0], [0, 0, 255], [90, 91, 92]].map(Rgb);
        for a in colors {
            for b in colors {
                assert_eq!(distance(a, b), distance(b, a));
                assert_eq!(distance(a, b) == 0, a == b);
                assert!(distance(a, b) >= least_distance(a[1].abs_diff(b[1])));
            }
        }
    }

    #[test]
    fn distance_follows_the_eye_where_plain_rgb_does_not() {
        let grey = Rgb([120, 120, 120]);
        assert!(distance(grey, Rgb([120, 140, 120])) > distance(grey, Rgb([120, 120, 140])));
    }
}
