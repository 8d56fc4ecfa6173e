//! Metrics, figures for autoscalers, and health checks, as the programs that read them see them.

mod closed_loop;
mod document;
mod exposition;
mod files;
mod health;
mod pace;
mod states;
mod support;
