//! Simulated worlds: several processes on one runtime and one virtual clock, with all randomness from one seed.
//!
//! `JOBQUEUE_WORLDS=100000` runs this many worlds, `JOBQUEUE_SEED=17` one of them, `JOBQUEUE_FEATURES=InOrder,Blobs`
//! only worlds with these features.
//! `JOBQUEUE_SQLITE_WORLDS=500` runs this many worlds on files of SQLite, which are slower.

#![allow(clippy::unwrap_used)]

mod mix;
mod repeats;
