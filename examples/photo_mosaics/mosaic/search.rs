//! Finds the best tile for a cell.

use image::{GenericImageView, Rgb};

use super::color::{difference, distance, fingerprint, least_distance, mean, signature};
use super::tiles::{Tile, TileLibrary};

/// The greatest extra distance of a tile whose content is like the cell's, compared with the nearest tile, as
/// a
/// [`distance`]: about twelve steps of every channel.
const LEEWAY: u32 = 1300;

/// The greatest extra difference of a tile that is chosen for variety, compared with the best, as a
/// [`difference`].
const VARIETY: u32 = 3000;

impl TileLibrary {
    /// Returns the tile whose mean colour looks most like `color`; of equals always the same.
    pub(crate) fn nearest(&self, color: Rgb<u8>) -> &Tile {
        let start = self.tiles.partition_point(|tile| tile.mean[1] < color[1]).min(self.tiles.len() - 1);
        let (below, above) = self.tiles.split_at(start);
        let mut best = (distance(above[0].mean, color), &above[0]);
        for side in [&mut above.iter() as &mut dyn Iterator<Item = &Tile>, &mut below.iter().rev()] {
            for tile in side {
                if least_distance(tile.mean[1].abs_diff(color[1])) > best.0 {
                    break;
                }
                let candidate = distance(tile.mean, color);
                if candidate < best.0 {
                    best = (candidate, tile);
                }
            }
        }
        best.1
    }

    /// Returns the tile for a cell. Of the tiles whose mean is about as near to the cell's as the nearest
    /// one, takes one of those whose content is most similar, so that edges continue from tile to tile.
    ///
    /// The pixels of the cell choose among them: where the picture hardly changes, a single tile would make
    /// stripes. The place of the cell does not matter, because a renderer sees one slice only.
    pub(crate) fn best_match(&self, cell: &impl GenericImageView<Pixel = Rgb<u8>>) -> &Tile {
        let (color, wanted) = (mean(cell), signature(cell));
        let nearest = self.nearest(color);
        let limit = distance(nearest.mean, color) + LEEWAY;
        let start = self.tiles.partition_point(|t| t.mean[1] < color[1] && !within(t, color, limit));
        let in_reach =
            self.tiles[start..].iter().take_while(|t| t.mean[1] <= color[1] || within(t, color, limit));
        let near = in_reach.filter(|tile| distance(tile.mean, color) <= limit);
        let mut rated = near.map(|tile| (difference(&tile.signature, &wanted), tile)).collect::<Vec<_>>();
        let least = rated.iter().map(|(difference, _)| *difference).min().unwrap_or_default();
        rated.retain(|(difference, _)| *difference <= least + least / 4 + VARIETY);
        let chosen = fingerprint(cell) as usize % rated.len().max(1);
        rated.get(chosen).map_or(nearest, |(_, tile)| tile)
    }
}

fn within(tile: &Tile, color: Rgb<u8>, limit: u32) -> bool {
    least_distance(tile.mean[1].abs_diff(color[1])) <= limit
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::RgbImage;
    use std::collections::BTreeSet;

    fn grid() -> impl Iterator<Item = Rgb<u8>> {
        let steps = || (0..=255).step_by(51);
        steps().flat_map(move |r| steps().flat_map(move |g| steps().map(move |b| Rgb([r, g, b]))))
    }

    #[test]
    fn nearest_agrees_with_trying_every_tile() {
        let colorful = RgbImage::from_fn(90, 40, |x, y| Rgb([(x * 5) as u8, (y * 6) as u8, (x * y) as u8]));
        let library = TileLibrary::cut(&[colorful], 8).unwrap();
        for color in grid() {
            let least = library.tiles.iter().map(|tile| distance(tile.mean, color)).min().unwrap();
            assert_eq!(distance(library.nearest(color).mean, color), least, "{color:?}");
        }
    }

    #[test]
    fn the_match_is_near_and_the_same_every_time() {
        let library = TileLibrary::built_in(16).unwrap();
        for color in grid() {
            let cell = RgbImage::from_pixel(8, 8, color);
            let tile = library.best_match(&cell);
            assert!(distance(tile.mean, color) <= distance(library.nearest(color).mean, color) + LEEWAY);
            assert_eq!(tile.pixels, library.best_match(&cell).pixels);
        }
    }

    #[test]
    fn the_match_shows_what_the_cell_shows() {
        let half = |left: u8| RgbImage::from_fn(8, 8, |x, _| Rgb([if x < 4 { left } else { 255 - left }; 3]));
        let library = TileLibrary::new(8, vec![half(0), half(255)]).unwrap();
        assert_eq!(library.best_match(&half(20)).pixels, half(0));
        assert_eq!(library.best_match(&half(235)).pixels, half(255));
    }

    #[test]
    fn cells_of_about_one_colour_get_varied_tiles() {
        let library = TileLibrary::built_in(16).unwrap();
        let cell = |n: u8| {
            RgbImage::from_fn(8, 8, |x, y| Rgb([if (x, y) == (n.into(), 0) { 226 } else { 225 }, 90, 60]))
        };
        let tiles = (0..8).map(|n| library.best_match(&cell(n)).pixels.as_raw()).collect::<BTreeSet<_>>();
        assert!(tiles.len() > 2, "{}", tiles.len());
    }
}
