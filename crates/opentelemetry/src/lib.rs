#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

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
mod text;
mod tracer;

pub use telemetry::{Telemetry, TelemetryBuilder, context_of};
