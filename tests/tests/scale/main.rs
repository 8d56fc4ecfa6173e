//! Metrics, figures for autoscalers, and health checks, as the programs that read them see them.

#![allow(clippy::unwrap_used)]

mod generated;
