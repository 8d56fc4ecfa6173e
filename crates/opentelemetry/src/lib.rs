#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

// Metrics come from three modules: `listener` turns events of workers and queues into records and counts,
// `cells` adds up the counts until they are collected, and `queues` reads figures from the storage.
// `instruments` declares the instruments and `conventions` their names. The table in the README lists them.

mod attributes;
mod cells;
mod contexts;
mod conventions;
mod instruments;
mod listener;
mod queues;
mod shared;
mod span;
mod telemetry;
mod tracer;

pub use telemetry::{Telemetry, TelemetryBuilder, context_of};
