//! Tests of the tile library.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::PathBuf;

use image::{Rgb, RgbImage};

use super::*;

/// A directory that is removed at the end of the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("photo-mosaics-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.0.join(name), bytes).unwrap();
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn colorful(seed: u32) -> RgbImage {
    RgbImage::from_fn(50, 40, |x, y| Rgb([(x * 5 + seed) as u8, (y * 6) as u8, (x * y + seed * 3) as u8]))
}

#[test]
fn built_in_tiles_are_many_and_varied() {
    let library = TileLibrary::built_in(16).unwrap();
    let colors =
        library.tiles.iter().map(|tile| tile.mean.0.map(|channel| channel >> 5)).collect::<BTreeSet<_>>();
    assert!(library.len() > 500, "{}", library.len());
    assert!(colors.len() > 60, "{}", colors.len());
    let flat = |tile: &&Tile| tile.pixels.pixels().all(|pixel| *pixel == tile.pixels[(0, 0)]);
    assert_eq!(library.tiles.iter().filter(flat).count(), 0);
}

#[test]
fn built_in_tiles_exist_in_every_size() {
    for tile_size in [1, 2, 7, 64] {
        let library = TileLibrary::built_in(tile_size).unwrap();
        assert!(library.len() > 100, "{} of size {tile_size}", library.len());
    }
}

#[test]
fn atlas_round_trip_gives_the_same_bytes() {
    let library = TileLibrary::cut(&[colorful(5)], 8).unwrap();
    let bytes = library.to_png().unwrap();
    let read = TileLibrary::from_png(&bytes).unwrap();
    assert_eq!((read.len(), read.tile_size()), (library.len(), 8));
    assert_eq!(read.to_png().unwrap(), bytes);
}

#[test]
fn picture_that_is_no_atlas_is_refused() {
    assert!(matches!(TileLibrary::from_png(b"junk"), Err(MosaicError::Decode { .. })));
    for (width, height) in [(65, 65), (8, 9), (8, 7)] {
        let bytes = encode_png(&RgbImage::new(width, height)).unwrap();
        let error = TileLibrary::from_png(&bytes).unwrap_err();
        assert!(error.to_string().contains("TileLibrary::to_png"), "{error}");
    }
}

#[test]
fn a_few_pictures_in_a_directory_are_cut_up() {
    let scratch = Scratch::new("few");
    scratch.write("b.png", &encode_png(&colorful(1)).unwrap());
    scratch.write("a.PNG", &encode_png(&colorful(2)).unwrap());
    scratch.write("notes.txt", b"no picture, and not read");
    let read = TileLibrary::from_directory(&scratch.0, 8).unwrap();
    let cut = TileLibrary::cut(&[colorful(2), colorful(1)], 8).unwrap();
    assert_eq!(read.to_png().unwrap(), cut.to_png().unwrap());
}

#[test]
fn many_pictures_in_a_directory_are_one_tile_each() {
    let scratch = Scratch::new("many");
    for n in 0..70 {
        scratch.write(&format!("{n}.png"), &encode_png(&colorful(n * 3)).unwrap());
    }
    assert_eq!(TileLibrary::from_directory(&scratch.0, 8).unwrap().len(), 70);
}

#[test]
fn a_bad_directory_is_named_with_what_to_do() {
    let scratch = Scratch::new("bad");
    let open = |path: PathBuf| TileLibrary::from_directory(&path, 8).unwrap_err();
    assert!(open(scratch.0.join("absent")).to_string().contains("absent; check that it exists"));
    assert!(matches!(open(scratch.0.clone()), MosaicError::NoTiles(_)));
    scratch.write("torn.jpg", b"\xff\xd8\xff");
    assert!(open(scratch.0.clone()).to_string().contains("torn.jpg"));
}

#[test]
fn bad_sizes_and_empty_pictures_are_refused() {
    for tile_size in [0, 65] {
        let error = TileLibrary::built_in(tile_size).unwrap_err();
        assert!(error.to_string().contains("choose 1 to 64"), "{error}");
        assert!(matches!(
            TileLibrary::from_directory(&env::temp_dir(), tile_size),
            Err(MosaicError::TileSize(_))
        ));
    }
    assert!(matches!(TileLibrary::cut(&[], 8), Err(MosaicError::EmptyPicture)));
    assert!(matches!(
        TileLibrary::cut(&[colorful(1), RgbImage::new(0, 4)], 8),
        Err(MosaicError::EmptyPicture)
    ));
}
