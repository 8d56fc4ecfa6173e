//! Turns a slice into tiles, one row of tiles at a time.

use std::ops::Range;

use image::{GenericImage, GenericImageView, Rgb, RgbImage, SubImage};

use super::MosaicError;
use super::picture::{cell_size, cells, check_not_empty};
use super::tiles::{Tile, TileLibrary};

/// The percentage of the difference between a pixel of the slice and the mean of its tile that is added to
/// the tile.
///
/// Adding keeps the tile's contrast, where blending would wash it out.
const TINT_PERCENT: i32 = 33;

/// Renders one slice. It can stop between any two rows and continue later, also in another process.
pub(crate) struct SliceRenderer<'a> {
    library: &'a TileLibrary,
    slice: &'a RgbImage,
}

impl<'a> SliceRenderer<'a> {
    /// Prepares to render `slice` with the tiles of `library`.
    ///
    /// # Errors
    ///
    /// [`MosaicError::EmptyPicture`].
    pub(crate) fn new(library: &'a TileLibrary, slice: &'a RgbImage) -> Result<Self, MosaicError> {
        check_not_empty(slice)?;
        Ok(Self { library, slice })
    }

    /// Returns the number of rows of tiles.
    pub(crate) fn rows(&self) -> u32 {
        cells(self.slice.height(), self.library.tile_size())
    }

    /// Renders some rows; [stacked](super::stack) in order, all rows are the rendered slice.
    ///
    /// # Errors
    ///
    /// [`MosaicError::Rows`] when the range is empty or goes beyond [`rows`](Self::rows).
    pub(crate) fn render_rows(&self, rows: Range<u32>) -> Result<RgbImage, MosaicError> {
        if rows.is_empty() || rows.end > self.rows() {
            return Err(MosaicError::Rows { start: rows.start, end: rows.end, rows: self.rows() });
        }
        let tile_size = self.library.tile_size();
        let columns = cells(self.slice.width(), tile_size);
        let mut strip = RgbImage::new(columns * tile_size, (rows.end - rows.start) * tile_size);
        for (y, row) in rows.enumerate() {
            let y = y as u32 * tile_size;
            for column in 0..columns {
                let cell = self.cell(column, row);
                let tile = self.library.best_match(&*cell);
                let place = strip.sub_image(column * tile_size, y, tile_size, tile_size);
                paint(place, tile, &cell);
            }
        }
        Ok(strip)
    }

    /// Renders the whole slice.
    ///
    /// # Errors
    ///
    /// None that [`new`](Self::new) has not excluded.
    #[cfg(test)]
    pub(crate) fn render(&self) -> Result<RgbImage, MosaicError> {
        self.render_rows(0..self.rows())
    }

    /// Returns the cell at this place; at the right and lower edge it may be smaller than the others.
    fn cell(&self, column: u32, row: u32) -> SubImage<&RgbImage> {
        let cell = cell_size(self.library.tile_size());
        let (x, y) = (column * cell, row * cell);
        self.slice.view(x, y, cell.min(self.slice.width() - x), cell.min(self.slice.height() - y))
    }
}

/// Paints the tile, tinted with the content of the cell.
fn paint(mut place: SubImage<&mut RgbImage>, tile: &Tile, cell: &SubImage<&RgbImage>) {
    let (tile_size, (width, height)) = (tile.pixels().width(), cell.dimensions());
    for (x, y, pixel) in tile.pixels().enumerate_pixels() {
        let wanted = cell.get_pixel(x * width / tile_size, y * height / tile_size);
        let tinted = [0, 1, 2].map(|c| {
            let shift = (i32::from(wanted[c]) - i32::from(tile.mean()[c])) * TINT_PERCENT / 100;
            // Clamped to a byte, so that the fallback is never taken.
            u8::try_from((i32::from(pixel[c]) + shift).clamp(0, 255)).unwrap_or(u8::MAX)
        });
        place.put_pixel(x, y, Rgb(tinted));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mosaic::{Slice, join, slice, stack};

    fn library() -> TileLibrary {
        let picture = RgbImage::from_fn(90, 60, |x, y| Rgb([(x * 3) as u8, (y * 4) as u8, (x * y) as u8]));
        TileLibrary::cut(&[picture], 8).unwrap()
    }

    /// Neither side is a multiple of the cell.
    fn portrait() -> RgbImage {
        RgbImage::from_fn(41, 63, |x, y| Rgb([(x * 6) as u8, (255 - y * 4) as u8, (x + y) as u8]))
    }

    #[test]
    fn joined_slices_are_the_whole_whatever_their_number() {
        let (library, portrait) = (library(), portrait());
        let whole = SliceRenderer::new(&library, &portrait).unwrap().render().unwrap();
        assert_eq!(whole.dimensions(), (11 * 8, 16 * 8));
        for count in [1, 2, 5, 16] {
            let render = |slice: Slice| {
                let picture = SliceRenderer::new(&library, &slice.picture).unwrap().render().unwrap();
                Slice { picture, ..slice }
            };
            let rendered = slice(&portrait, 8, count).unwrap().into_iter().rev().map(render);
            assert_eq!(join(count, rendered).unwrap(), whole, "{count} slices");
        }
    }

    #[test]
    fn a_rendering_resumed_at_any_row_is_the_same() {
        let (library, portrait) = (library(), portrait());
        let renderer = SliceRenderer::new(&library, &portrait).unwrap();
        let whole = renderer.render().unwrap();
        for row in 1..renderer.rows() {
            let parts = [0..row, row..renderer.rows()].map(|rows| renderer.render_rows(rows).unwrap());
            assert_eq!(stack(parts).unwrap(), whole);
        }
    }

    #[test]
    fn the_mosaic_has_about_the_colours_of_the_picture() {
        let library = TileLibrary::built_in(8).unwrap();
        let picture = RgbImage::from_pixel(40, 40, Rgb([150, 90, 60]));
        let rendered = SliceRenderer::new(&library, &picture).unwrap().render().unwrap();
        let Rgb(mean) = crate::mosaic::color::mean(&rendered);
        assert!(mean.iter().zip([150, 90, 60]).all(|(a, b)| a.abs_diff(b) < 12), "{mean:?}");
    }

    #[test]
    fn rows_that_do_not_exist_are_refused() {
        let (library, portrait) = (library(), portrait());
        let renderer = SliceRenderer::new(&library, &portrait).unwrap();
        for rows in [0..0, 0..17, 16..17] {
            assert!(matches!(renderer.render_rows(rows), Err(MosaicError::Rows { rows: 16, .. })));
        }
        assert!(matches!(SliceRenderer::new(&library, &RgbImage::new(5, 0)), Err(MosaicError::EmptyPicture)));
    }
}
