//! The steps of one delivery (read, decide, run, settle), and their failures.

#![allow(clippy::unwrap_used)] // A helper that fails fails its test.

mod forged_attributes;
mod large_attributes;
mod last_attempts;
mod panics;
mod payload_outages;
mod receiving;
