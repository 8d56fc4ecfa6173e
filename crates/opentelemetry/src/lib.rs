#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

// A metric comes from one of three places: `listener` turns the events of workers and queues into records and counts, which `cells` adds up until they are
// collected; `queues` reads figures from the storage; `instruments` declares them all. Their names are in `conventions`, and the table of the README
// lists them.

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
