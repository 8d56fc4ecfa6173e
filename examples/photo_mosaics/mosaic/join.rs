//! Joins the rendered parts.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use image::RgbImage;

use super::{MosaicError, Slice};

/// Joins the `count` slices of a picture, which may come in any order.
///
/// A slice that comes twice with the same pixels counts once: its message was delivered twice.
///
/// # Errors
///
/// [`MosaicError::MissingSlices`] names all that are missing; [`MosaicError::UnknownSlice`],
/// [`MosaicError::ConflictingSlice`] and [`MosaicError::Width`] when slices of different pictures are mixed.
pub(crate) fn join(count: u16, slices: impl IntoIterator<Item = Slice>) -> Result<RgbImage, MosaicError> {
    let mut by_index = BTreeMap::new();
    for Slice { index, picture } in slices {
        if index >= count {
            return Err(MosaicError::UnknownSlice { index, count });
        }
        if by_index.get(&index).is_some_and(|earlier| *earlier != picture) {
            return Err(MosaicError::ConflictingSlice(index));
        }
        by_index.insert(index, picture);
    }
    let missing = (0..count).filter(|index| !by_index.contains_key(index)).collect::<Vec<_>>();
    if !missing.is_empty() {
        return Err(MosaicError::MissingSlices { missing, count });
    }
    stack(by_index.values())
}

/// Puts pictures of one width under each other.
///
/// # Errors
///
/// [`MosaicError::Width`] when the widths differ, [`MosaicError::EmptyPicture`] when there is no picture.
pub(crate) fn stack<P: Borrow<RgbImage>>(
    parts: impl IntoIterator<Item = P>,
) -> Result<RgbImage, MosaicError> {
    let parts = parts.into_iter().collect::<Vec<_>>();
    let width = parts.first().ok_or(MosaicError::EmptyPicture)?.borrow().width();
    if let Some(other) = parts.iter().map(|part| part.borrow().width()).find(|other| *other != width) {
        return Err(MosaicError::Width { expected: width, found: other });
    }
    let height = parts.iter().map(|part| part.borrow().height()).sum();
    let pixels = parts.iter().flat_map(|part| part.borrow().as_raw()).copied().collect();
    RgbImage::from_raw(width, height, pixels).ok_or(MosaicError::EmptyPicture)
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::Rgb;

    fn part(index: u16) -> Slice {
        Slice { index, picture: RgbImage::from_pixel(3, 2, Rgb([index as u8; 3])) }
    }

    #[test]
    fn order_and_repetition_do_not_matter() {
        let expected = join(3, [0, 1, 2].map(part)).unwrap();
        assert_eq!(expected.dimensions(), (3, 6));
        assert_eq!(join(3, [2, 0, 1, 0].map(part)).unwrap(), expected);
    }

    #[test]
    fn all_missing_slices_are_named() {
        let error = join(4, [part(2)]).unwrap_err();
        assert!(matches!(&error, MosaicError::MissingSlices { missing, count: 4 } if *missing == [0, 1, 3]));
        assert!(error.to_string().contains("[0, 1, 3] of 4"), "{error}");
    }

    #[test]
    fn slices_of_other_pictures_are_refused() {
        let wide = Slice { index: 1, picture: RgbImage::new(4, 2) };
        let other = Slice { index: 0, picture: RgbImage::new(3, 9) };
        assert!(matches!(join(2, [part(0), part(2)]), Err(MosaicError::UnknownSlice { index: 2, count: 2 })));
        assert!(matches!(join(1, [part(0), other]), Err(MosaicError::ConflictingSlice(0))));
        assert!(matches!(join(2, [part(0), wide]), Err(MosaicError::Width { expected: 3, found: 4 })));
    }

    #[test]
    fn empty_list_cannot_be_joined() {
        assert!(matches!(join(0, []), Err(MosaicError::EmptyPicture)));
        assert!(matches!(stack::<RgbImage>([]), Err(MosaicError::EmptyPicture)));
    }
}
