//! Simulated worlds: several processes on one runtime and one virtual clock, all chance from one seed.

#![allow(clippy::unwrap_used)]

mod repeats;
