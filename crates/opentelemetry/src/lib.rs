#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod cells;
mod contexts;
mod conventions;
mod instruments;
mod listener;
mod queues;
mod span;
mod telemetry;
mod text;
mod tracer;

pub use telemetry::{Telemetry, TelemetryBuilder, context_of};
