//! Messages: their declaration, validation, versions, wire format and golden files.

#![allow(clippy::unwrap_used)] // A helper that fails fails its test.

mod golden;
mod limits;
mod numbers;
mod validation;
mod versions;
mod wire_format;
