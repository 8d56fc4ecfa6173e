//! Simulated worlds: several processes on one runtime and one virtual clock, all chance from one seed.
//!
//! `JOBQUEUE_WORLDS=100000` runs as many worlds, `JOBQUEUE_SEED=17` one of them; `JOBQUEUE_FEATURES=InOrder,Blobs` only with these.

#![allow(clippy::unwrap_used)]

mod mix;
mod repeats;
