//! The pure part of the photo mosaics: pictures in, pictures out; no queue, no blob, no clock.
//!
//! ```text
//! picture ──slice──▶ Slice 0 ──SliceRenderer──▶ Slice 0 ──join──▶ mosaic
//!                    Slice 1 ──SliceRenderer──▶ Slice 1 ──┘
//!                                  ▲
//!                             TileLibrary
//! ```
//!
//! A picture is divided into *cells* of [`cell_size`] pixels; each cell becomes one *tile* of `tile_size`
//! pixels. Slices are cut between rows of cells, so that the joined mosaic is, byte for byte, the
//! mosaic of the whole picture. Everything is deterministic: a slice rendered twice, because its
//! message was delivered twice, gives the same bytes.
//!
//! The functions here compute or read files and never await. In a debug build one row of a 512-pixel portrait
//! takes about ten milliseconds, and building a library about a second.

mod builtin;
mod color;
mod cut;
mod error;
mod join;
mod picture;
mod render;
mod search;
mod slice;
mod tiles;

pub(crate) use error::MosaicError;
pub(crate) use join::{join, stack};
pub(crate) use picture::{decode_picture, decode_rendered, encode_png};
pub(crate) use render::SliceRenderer;
pub(crate) use slice::{MAX_SLICES, Slice, max_slices, slice};
pub(crate) use tiles::TileLibrary;
