//! The road of one delivery: reading, deciding, running, settling, and whatever goes wrong on the way.

#![allow(clippy::unwrap_used)] // A helper that fails fails its test.

mod forged_attributes;
mod large_attributes;
mod last_attempts;
mod panics;
mod payload_outages;
mod receiving;
