//! A disk that loses power, fails and fills up, under the real SQLite and the real library.
//!
//! A [`Recorder`] listens between SQLite and the disk (as its VFS). It records in order every write, truncation,
//! sync, creation and deletion of the database and its logs in one folder, together with the acknowledgements that
//! the test reports. From that log a [`Disk`] computes what the folder could look like after a power cut at any
//! moment: any of the unsynced sectors of 512 bytes may be written or not, in any order. The recorder can also fail a
//! sync, and run out of room.
//!
//! It does not know everything: SQLite's index of the log (`-shm`) is memory and is gone after a cut. The library
//! writes once without SQLite (it creates the empty file); that is noticed when SQLite opens the file.

mod disk;
mod recorder;
mod vfs;

pub use disk::{Disk, Image};
pub use recorder::{Event, Note, Recorder};

/// The unit that a disk writes completely or not at all, in bytes.
pub const SECTOR: u64 = 512;
