//! The disk fails the SQLite storage: power cuts (F55), syncs that fail (F56), and no room (F57).
//!
//! SQLite, the library and their files are the real ones; only the way to the disk is listened to and interfered with,
//! by `jobqueue_tests::power`. Seeds are printed. `JOBQUEUE_SEED` repeats a run, `JOBQUEUE_POWER_CUTS` says how
//! many cuts are made in each recording, `JOBQUEUE_POWER_ROUNDS` how many recordings of failures there are.

#![allow(clippy::unwrap_used)] // A helper that fails fails its test.

mod cuts;
mod full_disk;
mod oracle;
mod scene;
mod sync_failures;
mod workload;
