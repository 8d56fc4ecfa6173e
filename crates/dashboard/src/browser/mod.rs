//! The web pages of the dashboard (feature `pages`).

mod access;
mod app;
mod assets;
mod base;
mod basic_auth;
mod cached;
mod chart;
mod dashboard;
mod fields;
mod filters;
mod guard;
mod job_operations;
mod job_selection;
mod joined;
mod json;
mod links;
mod live;
mod log;
mod log_limit;
mod looks;
mod operation_spec;
mod operations;
mod origin;
mod paces;
mod page_error;
mod pages;
mod redact;
mod routes;
mod selection;
#[cfg(test)]
mod tests;
mod text;
mod throughput;

pub use access::Access;
pub use dashboard::Dashboard;
pub use links::LinkTemplate;
pub use redact::{Field, Shown};
