//! Code that several examples share: options and log, storage, progress, and an end with one clear line.

#![allow(clippy::print_stdout, reason = "programs for people to look at")]

mod ending;
mod folder;
mod progress;
mod start;
mod storage;

pub use ending::{Failure, end};
pub use folder::{BlobFolder, FolderError};
pub use progress::Progress;
pub use start::start;
pub use storage::{lesson_storage, open_storage};
