//! A disk that loses power, fails and fills up, under the real SQLite and the real library.
//!
//! A [`Recorder`] listens at SQLite's own door to the disk (its VFS): it notes, in order, every write, truncation, sync,
//! creation and deletion of the database and its logs in one folder, together with what the test says that was
//! acknowledged meanwhile. From that log a [`Disk`] tells what the folder could look like after a power cut at any
//! moment: of what was not synced, any sectors of 512 bytes may be there or not, in any order. The recorder can also
//! fail a sync, and run out of room.
//!
//! What it does not know: SQLite's index of the log (`-shm`) is memory and is gone after a cut; what the library writes
//! past SQLite (it creates the file, empty) is noticed when SQLite opens it.

mod disk;
mod recorder;
mod vfs;

pub use disk::{Disk, Image};
pub use recorder::{Event, Note, Recorder};

/// The unit of writing that a disk does whole or not at all, in bytes.
pub const SECTOR: u64 = 512;
