//! Metrics, figures for autoscalers, and health checks, as the programs that read them see them.

#![allow(clippy::unwrap_used)]

mod closed_loop;
mod document;
mod exposition;
mod files;
mod generated;
mod health;
mod keda;
mod support;
