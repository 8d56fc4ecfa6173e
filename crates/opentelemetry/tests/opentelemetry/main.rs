//! Spans and metrics of jobs, queues, workers and storages, and their names in the semantic conventions.

#![allow(clippy::unwrap_used)]

mod conventions;
mod metrics;
mod spans;
mod storages;
mod support;
