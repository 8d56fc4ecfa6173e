//! The content of logs. A program of its own: its tests take over the log of the process.

#![allow(clippy::unwrap_used)] // A helper that fails fails its test.

mod azure;
mod dashboard;
mod library;
mod telemetry;
