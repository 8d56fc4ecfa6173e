//! The built program `jobqueue`, through pipes, a pseudo-terminal and signals. Only on Unix, because the
//! tests send signals and run a shell.

#![cfg(unix)]
#![allow(clippy::unwrap_used)] // A helper that fails fails its test.

mod api;
mod audit;
mod azurite;
mod bulk;
mod confirm;
mod contexts;
mod coordination;
mod documents;
mod exit_codes;
mod forged;
mod letters;
mod locked;
#[cfg(target_os = "linux")]
mod memory;
mod newcomers;
mod outages;
mod postgres;
mod schema;
mod send;
mod senders;
mod serve;
mod shape;
mod support;
mod workers;
