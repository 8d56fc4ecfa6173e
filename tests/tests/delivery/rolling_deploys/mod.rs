//! Old and new releases of a program side by side on one queue: no message that one of them knows is lost.

#![allow(clippy::unwrap_used)] // A helper that fails fails its test.

mod late;
mod messages;
mod processes;
mod raw_payloads;
mod workers;
