//! The views and actions of operators: admin, dashboard, scaling documents, events, metrics and traces.

#![allow(clippy::unwrap_used)] // A helper that fails fails its test.

mod admin;
mod dashboard;
mod incidents;
mod observing;
mod scale;
mod telemetry;
