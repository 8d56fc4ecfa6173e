//! Simulates a disk that loses power, fails or fills up, under the real SQLite and the real library.
//!
//! A [`Recorder`] sits between SQLite and the disk, as a VFS. It records, in order, every write, truncation,
//! sync, creation and deletion of the database and its logs in one folder, together with the acknowledgements
//! that the test reports. From this log, a [`Disk`] computes the possible contents of the folder after a
//! power cut at any moment: each unsynced sector of 512 bytes may be written or not, in any order. The
//! recorder can also fail a sync, and can run out of space.
//!
//! The recorder does not see everything. SQLite's index of the log (`-shm`) is memory and is gone after a
//! power cut. The library writes once without SQLite, when it creates the empty file; the recorder notices
//! this when SQLite opens the file.

mod disk;
mod recorder;
mod vfs;

pub use disk::{Disk, Image};
pub use recorder::{Event, Note, Recorder};

/// The unit that a disk writes completely or not at all, in bytes.
pub const SECTOR: u64 = 512;
