//! The example programs, built and run as people run them.

#![allow(clippy::unwrap_used)] // A helper that fails fails its test.

mod azure;
mod mailing_list;
mod photo_mosaics;
mod shop;
mod small;
mod traffic_cop;
