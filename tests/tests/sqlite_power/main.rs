//! The disk fails the SQLite storage: power cuts (F55), syncs that fail (F56), and no room (F57).
//!
//! SQLite, the library and their files are the real ones. `jobqueue_tests::power` only listens to and
//! disturbs the way to the disk. Seeds are printed. `JOBQUEUE_SEED` repeats a run, `JOBQUEUE_POWER_CUTS` sets
//! the number of cuts in each recording, `JOBQUEUE_POWER_ROUNDS` the number of recordings of failures.

#![allow(clippy::unwrap_used)] // A helper that fails fails its test.

mod cuts;
mod full_disk;
mod oracle;
mod scene;
mod sync_failures;
mod workload;
